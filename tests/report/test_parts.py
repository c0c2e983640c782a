"""What a report is made of: the order of clients, the sentence, intervals, packed numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.server.report.data import packed, run_data, unpacked
from coterie.server.report.order import ordered
from coterie.server.report.several import gain
from coterie.server.report.trouble import trouble
from coterie.server.report.words import by_name, in_ranges, summary
from coterie.strategies.findings import Finding


@given(st.integers(3, 30), st.integers(1, 5), st.integers(0, 2**16))
def test_planted_groups_are_found_and_nobody_is_lost(clients, kinds, seed):
    rng = np.random.default_rng(seed)
    kind = rng.integers(kinds, size=clients)
    values = np.where(kind[:, None] == kind, 1.0, -0.5) + rng.uniform(-0.1, 0.1, (clients, clients))
    order, groups = ordered(Finding.pairs("relevance", [str(i) for i in range(clients)], values), [])
    assert sorted(order) == list(range(clients))
    if len(set(kind.tolist())) > 1 and np.bincount(kind)[np.unique(kind)].min() > 1:
        assert {frozenset(members) for members in groups} == {
            frozenset(np.flatnonzero(kind == k).tolist()) for k in set(kind)
        }


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=50))
def test_packed_numbers_come_back_within_half_a_step(values):
    told = packed(np.array(values))
    np.testing.assert_allclose(unpacked(told), values, atol=0.51 * told["step"], rtol=1e-12)


def test_a_client_gains_only_if_its_interval_excludes_zero():
    assert gain(0.8, 0.95, 70, "accuracy", False)[3] == "gains" and gain(0.95, 0.8, 70, "accuracy", False)[3] == "loses"
    assert gain(0.8, 0.85, 70, "accuracy", False)[3] == "cannot tell"
    value, low, high, _ = gain(0.5, 0.6, 400, "accuracy", False)
    assert value == pytest.approx(0.1) and high - low == pytest.approx(2 * 1.96 * (0.49 / 400) ** 0.5, rel=0.01)
    assert gain(2.0, 1.5, 70, "loss", True)[:2] == (0.5, None)  # less is better, and of it nothing is sure
    assert gain(None, 0.5, 70, "accuracy", False) == (None, None, None, "")


def test_clients_stand_as_people_count():
    names = ["b", "A10", "10", "A2", "2", "A", "ward 3b", "ward 3a", "A02"]
    wanted = ["2", "10", "A", "A02", "A2", "A10", "b", "ward 3a", "ward 3b"]
    assert sorted(names, key=by_name) == sorted(reversed(names), key=by_name) == wanted


def test_thirty_kinds_of_many_clients_are_thirty_coalitions(made_run, tmp_path):
    run = run_data(made_run(tmp_path / "run", clients=600, rounds=1, kinds=30))
    kinds = [{run["clients"][place].partition("-")[0] for place in members} for members in run["groups"]]
    assert len(kinds) == 30 and all(len(kind) == 1 for kind in kinds)


def test_who_takes_and_does_not_give_is_named():
    """Eight alike; the models of all help the last one, and its own hurts them. One who is weak hurts nobody."""
    names = [f"c{i}" for i in range(8)]
    rng = np.random.default_rng(5)
    values = rng.normal(0.05, 0.02, (8, 8))
    honest = {"relevance": Finding.pairs("relevance", names, values.copy())}
    assert trouble([], honest, {}, names) == []
    values[7, :], values[6, :] = 0.9, 0.6
    values[:, 7], values[:, 6] = -0.2, 0.01
    told = trouble([], {"relevance": Finding.pairs("relevance", names, values)}, {}, names)
    assert [(row["client"], row["what"]) for row in told] == [("c7", "takes, does not give")]
    assert "+0.9 to its own" in told[0]["why"] and "-0.2 to theirs" in told[0]["why"]


def test_the_sentence(made_run, tmp_path):
    assert in_ranges(["A1", "A2", "A3", "B7", "ward"]) == ["ward", "A1-A3", "B7"] and in_ranges(["1", "2"]) == [
        "1",
        "2",
    ]
    run = run_data(made_run(tmp_path / "run"))
    verdicts = {word: run["verdict"].count(word) for word in ("gains", "cannot tell")}
    said = " ".join(summary(run))
    assert said.startswith(
        f"{verdicts['gains']} of 12 clients gain by training with others, {verdicts['cannot tell']} cannot"
    )
    assert said.endswith("B1 is suspect. A1-A4, B1-B4 and C1-C4 train together.")
    assert {row["what"] for row in run["trouble"]} == {"suspect", "left out", "slow"}
