"""Who does harm: scores by hand, and rounds with clients that differ."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.strategies.evidence import Evidence, shortfalls
from coterie.strategies.findings import Finding


def judged(evidence: Evidence, bound: float) -> Finding:
    (finding,) = evidence.findings(bound)
    assert (finding.name, finding.kind) == ("suspects", "scores")
    return finding


def test_scores_are_deviations_below_the_median_with_the_benefit_of_doubt():
    evidence = Evidence()
    assert evidence.findings(1.0) == []
    for _ in range(4):  # median 3, median distance 1
        evidence.learn(["10", "a", "2", "b", "c"], np.array([3.0, 2.0, -1e9, 4.0, 5.0]), None)
    found = judged(evidence, 1.0)
    assert found.facts["suspects"] == ["2"] and found.facts["score-below"] == -1.0
    assert found.values["a"] == pytest.approx(-1 / 1.4826 + 2 / 2) and found.values["2"] == -5 + 1
    evidence.learn([], None, None, ["10"])
    assert judged(evidence, 1.0).values["10"] == pytest.approx((4 * 0 - 5) / 5 + 2 / 5**0.5)
    assert judged(evidence, 0.0).facts["suspects"] == ["2", "10"]
    equal = Evidence()
    equal.learn(["0", "1", "2"], np.array([0.1 + 0.2, 0.3, 0.3]), None)
    assert set(judged(equal, 0.0).values.values()) == {2.0}


def test_worth_and_explanation_are_put_together_and_survive_a_restart():
    evidence = Evidence()
    shares = np.array([0.9, 0.9, 0.9, 0.8, 0.2])  # upper quartile .9; median distance 0, so the least spread counts
    for _ in range(4):
        evidence.learn(["0", "1", "2", "3", "4"], np.zeros(5), shares)
    again = Evidence()
    again.load_state_dict(json.loads(json.dumps(evidence.state_dict())))
    found = judged(again, 1.5)
    assert found == judged(evidence, 1.5)
    assert found.values["0"] == 1.0  # well explained does not make up for harm
    assert found.values["3"] == pytest.approx(-2 / 2**0.5 + 1)  # (.8 - .9) / .05
    assert found.values["4"] == pytest.approx(-5 / 2**0.5 + 1)  # no round counts more
    assert found.facts["suspects"] == ["4"]
    alone = Evidence()
    alone.learn(["0", "1"], None, np.array([0.1, 0.9]))  # without a game
    assert judged(alone, 1.0).values["0"] == pytest.approx(-0.6 / 0.15 + 2)  # quartile .7; no more than .15 of spread


def test_bad_clients_may_be_most_of_a_round_if_right_labels_do_not_explain_them():
    evidence = Evidence()
    evidence.learn([str(i) for i in range(10)], None, np.array([0.05] * 6 + [0.9, 0.92, 0.94, 0.96]))
    assert judged(evidence, 1.5).facts["suspects"] == ["0", "1", "2", "3", "4", "5"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.1, 0.9))
def test_shortfalls_are_never_above_zero_and_follow_the_order(shares, more):
    found = shortfalls(np.array(shares))
    assert (found <= 0).all() and found[np.argmax(shares)] == 0
    assert (found[np.argsort(shares, kind="stable")[:-1]] <= found[np.argsort(shares, kind="stable")[1:]]).all()
    assert shortfalls(np.array(shares) + more) == pytest.approx(found, abs=1e-9)  # only differences count


@pytest.mark.parametrize("bad", [0, 6])
def test_honest_clients_are_seldom_suspects_and_bad_ones_always(bad):
    """Rounds of 10 of 20 clients, whose values differ from client to client and from round to round."""
    alarms = missed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        skill = rng.normal(size=20) - 12 * (np.arange(20) < bad)
        evidence = Evidence()
        for stake in 0.5 ** np.arange(15):
            chosen = rng.permutation(20)[:10]
            evidence.learn([str(i) for i in chosen], stake * (skill[chosen] + rng.standard_t(5, size=10)), None)
        suspects = {int(name) for name in judged(evidence, 1.0).facts["suspects"]}
        alarms += len(suspects - set(range(bad)))
        missed += len(set(range(bad)) - suspects)
    assert alarms <= 0.02 * 100 * (20 - bad) and missed <= 0.02 * 100 * bad
