"""AFedSV and AFedSV+ against their formulas, worked out here from the messages alone."""

import functools
import itertools
import json
import math

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from coterie.games.shapley import estimate, shapley_from_table
from coterie.server.app import initial_layout
from coterie.simulate import prepare
from coterie.strategies.evidence import Evidence
from coterie.strategies.registry import method_of, parse_config, section_of
from coterie.strategies.server_game import ServerGame, server_samples
from coterie.strategies.shapleyfl import moved, shortened, weighted_median
from coterie.tasks.models import WEIGHTS, build_network
from coterie.tasks.training import evaluate
from coterie.wire.arrays import pack, unpack
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import MODEL
from coterie.wire.randomness import derive_seed

GAME = {"strategy": "afedsv", "model": "mlp", "partition": "pathological", "num-server-rounds": 2, "learning-rate": 0.2}


def settings_of(run):
    return parse_config(json.loads((run.path / "config.json").read_text()))


def utility_by_hand(run, server_round: int, metric: str = "accuracy"):
    """What a coalition of clients, by their names, is worth on the server's samples; every one evaluated on its own."""
    config, _ = settings_of(run)
    samples = server_samples(config, "cpu")
    network = build_network(config.model, tuple(samples.x.shape[1:]), 10, seed=0)
    thetas = run.uploaded(server_round)
    base = next(iter(run.sent(server_round).values()))

    @functools.cache
    def utility(coalition: frozenset[str]) -> float:
        parts = {
            part: np.mean([thetas[name][part] for name in sorted(coalition)], axis=0) if coalition else base[part]
            for part in base
        }
        network.load({part: value.astype(base[part].dtype) for part, value in parts.items()})
        value = evaluate(network, samples)[metric]
        return -value if metric == "loss" else value

    return list(thetas), utility


def shapley_by_hand(run, server_round: int, metric: str = "accuracy") -> dict[str, float]:
    """All permutations' marginals."""
    names, utility = utility_by_hand(run, server_round, metric)
    total = dict.fromkeys(names, 0.0)
    for order in itertools.permutations(names):
        for place, name in enumerate(order):
            total[name] += utility(frozenset(order[: place + 1])) - utility(frozenset(order[:place]))
    return {name: value / math.factorial(len(names)) for name, value in total.items()}


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_whole_round_by_hand(federate, metric):
    """Game, normalisation, contribution, weights and the server's step; all four clients take part."""
    run = federate(**GAME, **{"shapleyfl.metric": metric, "shapleyfl.beta": 0.4, "shapleyfl.clip": 0.0})
    contribution = dict.fromkeys("0123", 0.5)
    for server_round, event in enumerate(run.events, start=1):
        expected = shapley_by_hand(run, server_round, metric)
        low, high = min(expected.values()), max(expected.values())
        assert high - low > 0.005
        for name, value in expected.items():
            assert event["shapley"][name] == pytest.approx(value, abs=1e-5)
            scaled = (value - low) / (high - low)
            assert event["normalised-shapley"][name] == pytest.approx(scaled, abs=1e-3)
            contribution[name] = 0.4 * contribution[name] + 0.6 * scaled
            assert event["contribution"][name] == pytest.approx(contribution[name], abs=1e-3)
        total = sum(contribution.values())
        base, thetas = run.sent(server_round)["0"], run.uploaded(server_round)
        after = run.sent(server_round, "evaluate")["0"]
        for part in ("extractor", "classifier"):
            step = sum(contribution[name] / total * (thetas[name][part].astype(float) - base[part]) for name in thetas)
            np.testing.assert_allclose(after[part], base[part] + step, rtol=1e-3, atol=1e-4)
        assert event["evaluations"] == 2**4 and event["estimator"] == "exact"


def test_probabilities_and_factors_of_importance_sampling(federate):
    """p from the contributions before the round, by bisection; the step weighs with w / p."""
    run = federate(
        **{**GAME, "strategy": "afedsv-plus", "num-clients": 6, "fraction-train": 0.5, "num-server-rounds": 5},
        **{"shapleyfl.floor": 0.2, "shapleyfl.clip": 0.0},
    )
    before = dict.fromkeys("012345", 0.5)
    for server_round, event in enumerate(run.events, start=1):
        weights = np.array(list(before.values())) / sum(before.values())
        low, high = 0.0, 1e9
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if np.clip(middle * weights, 0.2 * 3 / 6, 1).sum() < 3 else (low, middle)
        p = np.clip(low * weights, 0.2 * 3 / 6, 1)
        np.testing.assert_allclose(list(event["probabilities"].values()), p, atol=1e-6)
        after = np.array(list(event["contribution"].values()))
        nonempty = 1 - np.prod(1 - p)
        for name, factor in event["weights"].items():
            assert factor == pytest.approx(after[int(name)] / after.sum() / p[int(name)] * nonempty, rel=1e-6)
        base, thetas = next(iter(run.sent(server_round).values())), run.uploaded(server_round)
        result = run.sent(server_round, "evaluate")["0"]
        step = sum(event["weights"][n] * (thetas[n]["classifier"].astype(float) - base["classifier"]) for n in thetas)
        np.testing.assert_allclose(result["classifier"], base["classifier"] + step, rtol=1e-4, atol=1e-5)
        before = event["contribution"]
    drawn = [len(event["train"]) for event in run.events]
    assert len(set(drawn)) > 1 or drawn[0] != 3  # drawn one by one, not a fixed number


def test_the_step_is_unbiased():
    """The mean of the aggregate over draws is the aggregate of all."""
    from coterie.games.sampling import horvitz_thompson_weights, inclusion_probabilities, poisson_draw

    rng = np.random.default_rng(0)
    base = {"extractor": np.zeros(3, np.float32)}
    thetas = [{"extractor": rng.standard_normal(3).astype(np.float32)} for _ in range(5)]
    weights = np.array([0.5, 0.3, 0.1, 0.07, 0.03])
    p = inclusion_probabilities(weights, 2, floor=0.05)
    total = np.zeros(3)
    for _ in range(20_000):
        chosen = poisson_draw(p, rng).selected
        factors = horvitz_thompson_weights(weights, p, chosen, redrawn=True)
        total += moved(base, [thetas[i] for i in chosen], factors, 1.0)["extractor"]
    everybody = sum(w * theta["extractor"] for w, theta in zip(weights, thetas, strict=True))
    np.testing.assert_allclose(total / 20_000, everybody, atol=0.02)


def test_equal_clients_and_a_single_client_leave_contributions_as_they_are(federate):
    def equal(asked: Message, answered: Message, client: str) -> Message:
        if asked.metadata.message_type == "train":
            answered.content[MODEL] = asked.content.array_records[MODEL]
        return answered

    run = federate(tamper=equal, **GAME)
    assert all(set(event["contribution"].values()) == {0.5} for event in run.events)
    assert "normalised-shapley" not in run.events[0]
    alone = federate(**{**GAME, "fraction-train": 0.25})
    assert all(set(event["contribution"].values()) == {0.5} and event["evaluations"] == 0 for event in alone.events)


def test_an_answer_that_cannot_be_used_counts_as_no_contribution_but_absence_does_not(federate):
    def spoil(asked: Message, answered: Message, client: str) -> Message:
        if asked.metadata.message_type == "train" and client == "1":
            parts = unpack(answered.content.array_records[MODEL])
            parts["classifier"] = np.full_like(parts["classifier"], np.nan)
            answered.content[MODEL] = pack(parts)
        if asked.metadata.message_type == "train" and client == "2":
            return Message(Error(code=2, reason="MemoryError"), reply_to=asked)
        return answered

    run = federate(tamper=spoil, **{**GAME, "strategy": "afedsv-plus"})
    assert run.events[-1]["contribution"]["1"] == pytest.approx(0.3**2 * 0.5)
    assert run.events[-1]["contribution"]["2"] == 0.5


def test_statistics_are_averaged_with_normalised_weights():
    base = {"extractor": np.zeros(2, np.float32), "buffers": np.ones(2, np.float32), "counters": np.array([3])}
    thetas = [
        {"extractor": np.full(2, v, np.float32), "buffers": np.full(2, v, np.float32), "counters": np.array([int(v)])}
        for v in (2.0, 6.0)
    ]
    result = moved(base, thetas, np.array([1.0, 3.0]), 0.5)
    np.testing.assert_allclose(result["extractor"], 0.5 * (1 * 2 + 3 * 6))
    np.testing.assert_allclose(result["buffers"], (2 + 3 * 6) / 4)
    assert result["counters"].tolist() == [5] and result["counters"].dtype == np.int64


def test_a_huge_update_is_shortened_to_the_median_times_clip():
    base = {"extractor": np.ones(4, np.float32)}
    thetas = [{"extractor": np.ones(4, np.float32) + np.float32(v)} for v in (1.0, -1.0, 1e6, 1e6)]
    for weights in ([0.4, 0.4, 0.1, 0.1], [0.1, 0.4, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]):
        short = shortened(base, thetas, 3.0, np.array(weights))
        np.testing.assert_allclose(short[2]["extractor"], 1 + 3.0, rtol=1e-5)
        np.testing.assert_array_equal(short[0]["extractor"], thetas[0]["extractor"])
    assert shortened(base, thetas, 0.0, np.ones(4))[2]["extractor"][0] > 1e5


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_weighted_median_is_that_of_the_values_repeated(pairs):
    values, counts = np.array(pairs, dtype=float).T
    repeated = sorted(v for v, n in pairs for _ in range(n or not counts.any()))
    assert weighted_median(values, counts) == repeated[(len(repeated) - 1) // 2]


@pytest.mark.parametrize("strategy", ["afedsv", "afedsv-plus"])
def test_where_half_are_bad_a_step_is_no_longer_than_honest_ones(federate, strategy):
    """Two of four send random directions, 60 times as long as their updates: not so long that every method leaves them out.
    Shares sum to 1, so a step is at most as long as the longest update that counts in it: `clip` times an honest one."""
    attack = {"attack.kind": "random-gradient", "attack.clients": "0,2", "attack.strength": 60.0}
    values = {**GAME, **attack, "strategy": strategy, "partition": "iid", "shapleyfl.clip": 2.0}
    run = federate(**{**values, "num-server-rounds": 4})
    for number in (1, 2, 3, 4):
        before, after = run.sent(number)["1"], run.sent(number, "evaluate")["1"]
        honest = max(model_distance(before, run.uploaded(number)[name]) for name in "13")
        assert model_distance(before, run.uploaded(number)["0"]) > 20 * honest
        assert 0 < model_distance(before, after) <= 2.001 * honest
        assert run.events[number - 1]["left-out"] == {}
    assert run.result["mean-test-accuracy"]["global"] > 0.8


def model_distance(one, other) -> float:
    return float(np.sqrt(sum(np.sum((one[part].astype(float) - other[part]) ** 2) for part in one if part in WEIGHTS)))


@pytest.mark.parametrize("estimator", ["mc", "tmc", "dmc", "cc"])
def test_estimators_with_enough_budget_find_the_exact_values(federate, estimator):
    exact, other = (
        federate(**{**GAME, "num-server-rounds": 1}, **{"shapleyfl.estimator": name, "shapleyfl.budget": 16})
        for name in ("exact", estimator)
    )
    found = other.events[0]
    if estimator != "tmc":  # it stops early
        for name, value in exact.events[0]["normalised-shapley"].items():
            assert found["normalised-shapley"][name] == pytest.approx(value, abs=1e-9)
    assert found["estimator"] == estimator and found["evaluations"] <= 16


@pytest.mark.parametrize(("kind", "partition"), [("sign-flip", "iid"), ("closed-set", "shards"), ("collude", "shards")])
def test_bad_clients_are_found_and_told(kind, partition, federate, tmp_path, capsys):
    from coterie.cli.main import main

    arguments = [
        "run",
        "--strategy",
        "afedsv-plus",
        "--num-server-rounds",
        "12",
        "--num-clients",
        "6",
        "--workers",
        "0",
    ]
    arguments += ["--partition", partition, "--server-data", "0.2", "--model", "mlp", "--learning-rate", "0.2"]
    arguments += ["--set", f"attack.kind={kind}", "--set", "attack.clients=1,4", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    found = json.loads((tmp_path / "run" / "findings.json").read_text())["suspects"]["facts"]
    assert found["bad-clients"] == ["1", "4"] and found["recall"] == 1.0
    told = "suspects, with a score below -2: 1, 4 (bad are 1, 4; precision 1.00; recall 1.00)"
    assert told in capsys.readouterr().out


def test_the_state_comes_back(federate):
    run = federate(**GAME)
    config, settings = settings_of(run)
    saved = json.loads((run.path / "checkpoint" / "state.json").read_text())
    method = method_of("afedsv")(config, settings[section_of("afedsv")], initial_layout(config))
    method.load_state_dict({**saved, "arrays": run.model})
    assert method.contribution == run.events[-1]["contribution"] and method.last_round == 2
    evidence = Evidence()
    for event in run.events:
        worth, shares = (np.array(list(event[key].values())) for key in ("shapley", "explained"))
        evidence.learn(list(event["shapley"]), worth, shares)
    assert method.findings() == evidence.findings(2.0) != []


def test_only_a_server_with_samples_of_every_class_says_what_right_labels_explain(tmp_path, caplog):
    digits = load_digits()
    for name, own in (("all", digits.target >= 0), ("without-3", digits.target != 3)):
        np.savez(tmp_path / name, x=digits.images[own].astype(np.uint8), y=digits.target[own])
        server_data = {"server-data": str(tmp_path / f"{name}.npz")}
        config, settings = parse_config(prepare({"strategy": "afedsv", "model": "mlp", **server_data}))
        game = ServerGame(config, settings["shapleyfl"])
        base = game.models.network.dump()
        found = game.explained(base, [base, base])
        if name == "all":
            assert found.tolist() == [0.0, 0.0] and "no sample of label" not in caplog.text
        else:
            assert found is None and "server-data has no sample of label 3" in caplog.text


def test_s_fedavg_and_fedsv_go_by_true_shapley_values(federate):
    value = dict.fromkeys("0123", 0.0)
    fedsv = federate(**{**GAME, "strategy": "fedsv"})
    for number, event in enumerate(fedsv.events, start=1):
        value = {name: value[name] + worth for name, worth in shapley_by_hand(fedsv, number).items()}
        assert event["contribution"] == pytest.approx(value, abs=1e-6)
        positive = {name: max(worth, 0) for name, worth in value.items()}
        shares = {name: worth / sum(positive.values()) for name, worth in positive.items()}
        assert event["weights"] == pytest.approx(shares, abs=1e-5)
    relevance = dict.fromkeys("0123", 0.0)
    s_fedavg = federate(**{**GAME, "strategy": "s-fedavg"})
    for number, event in enumerate(s_fedavg.events, start=1):
        worth = shapley_by_hand(s_fedavg, number)
        relevance = {name: 0.75 * old + 0.25 * worth[name] for name, old in relevance.items()}
        assert event["contribution"] == pytest.approx(relevance, abs=1e-6)


def test_fedsv_gives_every_honest_client_weight(federate):
    """Ten clients with the same kind of data, the first round: all that they gain together is shared out among them."""
    run = federate(**{**GAME, "strategy": "fedsv", "partition": "iid", "num-clients": 10, "num-server-rounds": 1})
    names, utility = utility_by_hand(run, 1)
    table = [utility(frozenset(names[i] for i in range(10) if mask >> i & 1)) for mask in range(1024)]
    expected = shapley_from_table(table)
    assert expected.sum() == pytest.approx(table[-1] - table[0]) and table[-1] - table[0] > 0.3 and expected.min() > 0
    event = run.events[0]
    assert event["shapley"] == pytest.approx(dict(zip(names, expected, strict=True)), abs=1e-6)
    assert list(event["weights"].values()) == pytest.approx(expected / expected.sum(), abs=1e-5)


@pytest.mark.parametrize("estimator", ["auto", "dmc", "mc"])
def test_estimates_sum_to_what_all_gain_and_scaled_ones_need_not_know_it(federate, estimator):
    settings = {"num-clients": 9, "num-server-rounds": 1, "shapleyfl.estimator": estimator, "shapleyfl.budget": 100}
    run = federate(**{**GAME, **settings})
    names, utility = utility_by_hand(run, 1)
    ends = [frozenset(), frozenset(names)]
    event = run.events[0]
    gain = utility(ends[1]) - utility(ends[0])
    assert sum(event["shapley"].values()) == pytest.approx(gain, abs=1e-6) and abs(gain) > 0.01
    assert event["evaluations"] <= 102
    if estimator != "mc":
        found = estimate(
            lambda coalition: utility(frozenset(names[i] for i in coalition)),
            9,
            method=estimator,
            budget=100,
            rng=np.random.default_rng(derive_seed(1, "shapley", 1)),
            known={frozenset(): 7.0, frozenset(range(9)): -3.0},  # any number will do
        )
        low, high = found.values.min(), found.values.max()
        assert list(event["normalised-shapley"].values()) == pytest.approx(
            (found.values - low) / (high - low), abs=1e-6
        )


def test_no_server_data_and_wrong_budgets_are_refused():
    with pytest.raises(ConfigError, match="server-data is empty; give"):
        prepare({"strategy": "afedsv"})
    with pytest.raises(ConfigError, match=r"shapleyfl.budget = 0: must be greater than or equal to 1"):
        prepare({"strategy": "afedsv", "server-data": "0.1", "shapleyfl.budget": 0})


def test_a_budget_that_is_too_small_ends_the_run_with_a_message(federate):
    with pytest.raises(RunFailed, match=r"shapleyfl.budget = 3, shapleyfl.estimator = 'exact'"):
        federate(**GAME, **{"shapleyfl.estimator": "exact", "shapleyfl.budget": 3})


def test_parts_that_stay_with_clients_are_not_moved(federate):
    run = federate(**{**GAME, "model": "lenet5", "buffers": "local"})
    assert all("buffers" not in parts for parts in run.uploaded(1).values())
    assert set(WEIGHTS) <= set(run.model) and torch.isfinite(torch.from_numpy(run.model["norm"])).all()


def test_a_client_drawn_against_the_odds_does_not_move_the_model_alone(federate):
    run = federate(**GAME)
    config, settings = settings_of(run)
    method = method_of("afedsv-plus")(config, settings[section_of("afedsv-plus")], initial_layout(config))
    method.probability = {"0": 0.05, "1": 0.95, "2": 0.5, "3": 0.5}  # two clients in a round on average
    factors = method.factors(["0", "1", "2"], {"0": 0.4, "1": 0.3, "2": 0.2, "3": 0.1})
    not_empty = 1 - 0.95 * 0.05 * 0.5 * 0.5
    assert factors == pytest.approx(
        [3 / 2, 0.3 / 0.95 * not_empty, 0.2 / 0.5 * not_empty]
    )  # not 8, which is 0.4 / 0.05
    method.probability = {"0": 1.0, "1": 1.0, "2": 1.0, "3": 1.0}  # always drawn: weights are weights
    assert method.factors(["0"], {"0": 0.97, "1": 0.01, "2": 0.01, "3": 0.01}) == pytest.approx([0.97])


TWELVE = {**GAME, "strategy": "afedsv-plus", "model": "linear", "num-clients": 12, "fraction-train": 0.6}


@pytest.mark.parametrize("estimator", ["auto", "cc"])
def test_a_budget_that_starts_serves_every_round(federate, estimator):
    """From 1 to 12 of 12 clients are drawn; beside nobody and all, cc takes 34 evaluations for eight, mc 11 for twelve."""
    settings = {**TWELVE, "num-server-rounds": 12, "shapleyfl.budget": 33, "evaluate-every": 12}
    run = federate(**settings, **{"shapleyfl.estimator": estimator})
    ran = {len(event["train"]): event["estimator"] for event in run.events}
    assert len(run.events) == 12 and all(event["evaluations"] <= 35 for event in run.events)
    assert {ran[number] for number in ran if 5 < number < 8} == {"cc"} and {ran[n] for n in ran if n > 7} == {"mc"}


def test_a_budget_too_small_for_all_does_not_start(federate):
    with pytest.raises(RunFailed, match="a round with 12 clients takes mc at least 11"):
        federate(**TWELVE, **{"shapleyfl.budget": 10})


@pytest.mark.parametrize("strategy", ["afedsv", "afedsv-plus"])
def test_the_step_does_not_shrink_when_clients_leave(federate, monkeypatch, strategy):
    """20, 10 and 5 of 20 are there, then all again: shares sum to 1, and those who were away have what they had."""
    present = {1: 20, 2: 10, 3: 5, 4: 20}

    class Leaving(federate.__globals__["TamperedGrid"]):
        def get_node_ids(self):
            rounds = [int(message.metadata.group_id) for _, message in self.sent]
            return list(super().get_node_ids())[: present[min(max(rounds, default=0) + 1, 4)]]

    monkeypatch.setitem(federate.__globals__, "TamperedGrid", Leaving)
    settings = {"model": "linear", "num-clients": 20, "num-server-rounds": 4, "shapleyfl.clip": 0.0}
    run = federate(**{**GAME, **settings, "strategy": strategy, "shapleyfl.budget": 200})
    for number, event in enumerate(run.events, start=1):
        there = [str(i) for i in range(present[number])]
        contribution = event["contribution"]
        total = sum(contribution[name] for name in there)
        assert event["weights"] == pytest.approx({name: contribution[name] / total for name in there})
        assert sum(event["weights"].values()) == pytest.approx(1) and len(contribution) == 20
        for away in set(contribution) - set(there):
            assert contribution[away] == run.events[number - 2]["contribution"][away]


@pytest.mark.parametrize("strategy", ["afedsv", "afedsv-plus"])
@pytest.mark.parametrize(("fraction", "silent"), [(1.0, 10), (0.5, 5)])
def test_nor_when_clients_do_not_answer(federate, strategy, fraction, silent):
    """Everybody sends the same, so all SSV are equal; of those asked some fail: the others move the model for them."""
    lost: list[str] = []

    def tamper(asked: Message, answered: Message, client: str) -> Message:
        if asked.metadata.message_type == "train":
            answered.content[MODEL] = asked.content.array_records[MODEL]
            if len(lost) < silent:
                lost.append(client)
                return Message(Error(code=5, reason="gone"), reply_to=asked)
        return answered

    settings = {"model": "linear", "num-clients": 20, "num-server-rounds": 1, "fraction-train": fraction}
    run = federate(tamper=tamper, **{**GAME, **settings, "strategy": strategy, "quorum": 0.1})
    event = run.events[0]
    asked, good = len(event["train"]) + len(lost), len(event["train"])
    assert len(lost) == silent and (strategy == "afedsv-plus" or asked == 20 * fraction)
    among = good if strategy == "afedsv" else fraction * (20 - silent)  # drawn one by one, p stays what it was
    assert sum(event["weights"].values()) == pytest.approx(good / among, rel=1e-3)
