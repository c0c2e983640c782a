"""SPO and CE in whole federations on a linear task, where the best models are known."""

import itertools
import json

import numpy as np
import pytest
from flwr.app import Error, Message

from coterie.client.data import load_client_data
from coterie.games.equilibrium import linear_pareto_front
from coterie.games.preferences import even
from coterie.server.app import initial_layout
from coterie.server.findings import found
from coterie.strategies.registry import default_config, method_of, parse_config
from coterie.strategies.spo.ce import CE, largest_part
from coterie.strategies.spo.client import RaysOrder
from coterie.wire.arrays import pack, unpack
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import METRICS, MODEL, ORDER

GROUPS = {"0": {"0", "2"}, "1": {"1", "3"}, "2": {"0", "2"}, "3": {"1", "3"}}
LINEAR = {  # two groups of clients with the same coefficients and 30 training samples each
    "task": "linear",
    "partition": "natural",
    "linear-groups": 2,
    "linear-deviation": 0.0,
    "linear-samples": "600",
    "input-shape": "5",
    "test-fraction": 0.5,
    "validation-fraction": 0.9,
    "num-server-rounds": 25,
    "seed": 3,
    "evaluate-every": 25,
    "spo.local-steps": 1,
    "spo.step": 0.25,
    "spo.rays": 16,
    "spo.hidden": 30,
    "spo.server-steps": 15,
    "spo.search-steps": 12,
}


def is_search(message: Message) -> bool:
    return (
        message.metadata.message_type == "train.rays"
        and RaysOrder.from_record(message.content.config_records[ORDER]).steps == 0
    )


def made(run):
    """The method as a restarted server has it."""
    config, settings = parse_config(json.loads((run.path / "config.json").read_text()))
    method = method_of(config.strategy)(config, settings["spo"], initial_layout(config))
    state = json.loads((run.path / "checkpoint" / "state.json").read_text())
    method.load_state_dict({**state, "arrays": run.model})
    return method


def samples_of(run, client, which):
    config, _ = parse_config(json.loads((run.path / "config.json").read_text()))
    data = load_client_data({"partition-id": int(client), "num-partitions": 4}, config, client)
    own = data.samples(getattr(data.split, which), "cpu")
    x = np.concatenate([own.x.numpy(), np.ones((len(own), 1))], axis=1).astype(float)
    return x, own.y.numpy().astype(float)


def test_front_preferences_collaborators_and_models(federate):
    """All that a run comes to, against exact regression on the clients' own samples."""
    run = federate(strategy="spo", **LINEAR)
    hyper = made(run).hyper()
    sets = [samples_of(run, client, "train") for client in GROUPS]
    grams = np.array([x.T @ x / len(x) for x, _ in sets])
    moments = np.array([x.T @ y / len(x) for x, y in sets])

    def weighted(theta, d):
        own = np.stack([((y - theta @ x.T) ** 2).mean(axis=1) for x, y in sets], axis=1)
        return (d * own).sum(axis=1)

    d = np.random.default_rng(0).dirichlet(np.ones(4), 300)
    exact = weighted(linear_pareto_front(grams, moments, d), d)
    assert (weighted(hyper.models(d)["classifier"].astype(float), d) / exact - 1).mean() < 0.05

    last = run.events[-1]
    assert last["phase"] == "hypernetwork" and run.events[0]["ray-loss"] > 1.5 * last["ray-loss"]
    assert last["not-searched"] == {} and set(last["preferences"]) == set(GROUPS)
    assert {name: set(others) for name, others in last["collaborators"].items()} == GROUPS
    for client, weights in last["preferences"].items():
        assert sum(weights.values()) == pytest.approx(1, abs=1e-3)
        x, y = samples_of(run, client, "validation")
        grid = linear_pareto_front(grams, moments, np.array([even(s, 4) for s in subsets(int(client))]))
        best = ((y - grid @ x.T) ** 2).mean(axis=1).min()
        model = run.personal(client)
        theta = np.append(model["classifier.weight"].ravel(), model["classifier.bias"])
        assert ((y - theta @ x.T) ** 2).mean() < 1.1 * best  # nearly as good as the exact model of the best of all sets
        np.testing.assert_allclose(theta, made(run).made_for(made(run).preference(client))["classifier"], rtol=1e-5)
    told = found(run.path)
    assert {name: set(others) for name, others in told["collaborators"].values.items()} == GROUPS
    assert "data:image/svg+xml;base64" in (run.path / "report.html").read_text()
    assert told["preferences"].clients == ["0", "1", "2", "3"]
    np.testing.assert_allclose(told["preferences"].values.sum(axis=1), 1)


def subsets(client, number=4):
    others = [i for i in range(number) if i != client]
    return [{client, *rest} for size in range(number) for rest in itertools.combinations(others, size)]


def test_what_travels(federate):
    run = federate(strategy="spo", **{**LINEAR, "num-server-rounds": 2, "evaluate-every": 2, "local-epochs": 1})
    rounds = [(n, m) for n, m in run.grid.sent if m.metadata.message_type == "train.rays" and not is_search(m)]
    assert len(rounds) == 8  # one message per client and round, all rays in it
    for _, message in rounds:
        assert {k: v.shape for k, v in unpack(message.content.array_records[MODEL]).items()} == {"classifier": (16, 6)}
    answers = [a for (_, m), (_, a) in zip(run.grid.sent, run.grid.answered, strict=True) if is_search(m)]
    assert answers
    for answer in answers:
        assert unpack(answer.content.array_records[MODEL])["classifier"].shape == (1, 6)
    assert all("hypernetwork" not in m.content.array_records for _, m in run.grid.sent)  # it stays where it is


def test_equilibrium_and_one_training_per_coalition(federate):
    run = federate(strategy="ce", **{**LINEAR, "num-server-rounds": 30, "spo.explore": 0.84, "evaluate-every": 30})
    formed = run.events[24]
    assert [set(members) for members in formed["coalitions"]] == [{"0", "2"}, {"1", "3"}]
    assert formed["violations"] == [] and formed["axioms-checked-up-to"] == 4
    assert [event["phase"] for event in run.events] == ["hypernetwork"] * 25 + ["coalitions"] * 5
    for group in ("02", "13"):
        uploaded, sent = run.uploaded(29), run.sent(30)
        mean = np.mean([uploaded[client]["classifier"].astype(float) for client in group], axis=0)
        for client in group:  # FedAvg among these two: 30 samples each
            np.testing.assert_allclose(sent[client]["classifier"], mean, rtol=1e-5, atol=1e-7)
            assert run.events[29]["weights"][client] == pytest.approx(0.5)
    first = run.sent(26)
    theta = made(run).made_for(even({0, 2}, 4))["classifier"]
    np.testing.assert_allclose(first["0"]["classifier"], theta, rtol=1e-6)
    np.testing.assert_array_equal(first["0"]["classifier"], first["2"]["classifier"])
    assert np.abs(first["0"]["classifier"] - first["1"]["classifier"]).max() > 0.1
    text = (run.path / "report.html").read_text()
    assert "Coalitions" in text and "up to 4: 0 violations" in text


def test_axioms_are_checked_with_what_clients_measure(federate):
    """The utilities behind the verdict are the validation losses of the models for every set."""
    run = federate(strategy="ce", **{**LINEAR, "num-server-rounds": 4, "spo.explore": 1.0, "evaluate-every": 4})
    asked = [(n, m, a) for (n, m), (_, a) in zip(run.grid.sent, run.grid.answered, strict=True) if is_search(m)]
    measured = {n: (m, a) for n, m, a in asked}  # the last question to each client
    hyper = made(run).hyper()
    for client, (message, answer) in measured.items():
        rows = unpack(message.content.array_records[MODEL])["classifier"]
        expected = hyper.models(np.array([even(s, 4) for s in subsets(int(client))]))["classifier"]
        np.testing.assert_allclose(rows[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        x, y = samples_of(run, client, "validation")
        losses = answer.content.metric_records[METRICS]["losses"]
        np.testing.assert_allclose(losses, ((y - rows.astype(float) @ x.T) ** 2).mean(axis=1), rtol=1e-4)


def test_broken_axioms_are_named(federate, monkeypatch):
    """Everybody is put into one coalition, which is none that they want."""
    monkeypatch.setattr("coterie.strategies.spo.ce.collaboration_equilibrium", lambda wish, n: [_asked(wish, n)])

    def _asked(wish, n):
        for i in range(n):
            wish(i, frozenset(range(n)))
        return frozenset(range(n))

    run = federate(strategy="ce", **{**LINEAR, "num-server-rounds": 25, "spo.explore": 1.0})
    broken = run.events[-1]["violations"]
    assert {"axiom": "inner agreement", "clients": ["0", "2"]} in broken
    assert {"axiom": "inner agreement", "clients": ["1", "3"]} in broken
    assert "inner agreement" in (run.path / "report.html").read_text()


def test_the_largest_coalitions_that_are_asked_about():
    assert [largest_part(n) for n in (2, 4, 8, 9, 10, 20, 30, 100, 1000)] == [2, 4, 4, 3, 3, 2, 2, 1, 1]


# --- bad input -------------------------------------------------------------------------------------------------------

SHORT = {**LINEAR, "num-server-rounds": 2, "evaluate-every": 2, "spo.search-steps": 3, "round-timeout": 30.0}


def spoil(kind):
    def tamper(asked: Message, answer: Message, name: str) -> Message | None:
        if name != "1" or not is_search(asked):
            return answer
        if kind == "error":
            return Message(Error(code=2, reason="RuntimeError: out of luck"), reply_to=asked)
        if kind == "shape":
            answer.content[MODEL] = pack({"classifier": np.zeros((2, 6), np.float32)})
        if kind == "losses":
            answer.content.metric_records[METRICS]["losses"] = [1.0]
        if kind == "nan":
            answer.content[MODEL] = pack({"classifier": np.full((1, 6), np.nan, np.float32)})
        return answer

    return tamper


@pytest.mark.parametrize(
    ("strategy", "kind", "reason"),
    [
        ("ce", "error", "out of luck"),
        ("spo", "shape", "expected float32 (1, 6), got float32 (2, 6)"),
        ("spo", "losses", "numbers, got 1"),
        ("ce", "nan", "6 of 6 numbers are not finite"),
    ],
)
def test_a_client_that_fails_in_the_search_is_named_and_stays_alone(strategy, kind, reason, federate):
    run = federate(tamper=spoil(kind), strategy=strategy, **{**SHORT, "spo.explore": 1.0})
    last = run.events[-1]
    assert list(last["not-searched"]) == ["1"] and reason in last["not-searched"]["1"]
    assert set(last["preferences"]) == {"0", "2", "3"}
    told = found(run.path)
    assert told["collaborators"].values["1"] == ["1"] and set(run.result["models"]["personal"]["clients"]) == set(
        GROUPS
    )
    if strategy == "ce":
        assert sorted(itertools.chain(*told["coalitions"].values)) == sorted(GROUPS)


@pytest.mark.parametrize("rows", [15, 17])
def test_gradients_of_the_wrong_number_of_models_are_refused(rows, federate):
    def tamper(asked, answer, name):
        if name == "2" and asked.metadata.message_type == "train.rays" and not is_search(asked):
            answer.content[MODEL] = pack({"classifier": np.zeros((rows, 6), np.float32)})
        return answer

    run = federate(tamper=tamper, strategy="spo", **SHORT)
    for event in run.events:
        assert f"expected float32 (16, 6), got float32 ({rows}, 6)" in event["left-out"]["2"]
        assert set(event["train"]) == {"0", "1", "3"}


def test_a_client_that_leaves_during_the_run(federate):
    """It answers no more from round 3 on, in the search neither; the others go on."""

    def tamper(asked, answer, name):
        gone = name == "3" and int(asked.metadata.group_id) >= 3
        return Message(Error(code=5, reason="Node Unavailable"), reply_to=asked) if gone else answer

    run = federate(tamper=tamper, strategy="ce", **{**LINEAR, "num-server-rounds": 20, "evaluate-every": 20})
    assert "3" in run.events[1]["train"] and all("3" in event["left-out"] for event in run.events[2:])
    formed = run.events[9]
    assert "Node Unavailable" in formed["not-searched"]["3"] and ["3"] in formed["coalitions"]
    assert list(run.result["not-tested"]) == ["3"]
    assert all(np.isfinite(value).all() for value in run.model.values())


def test_divergence_ends_the_run_and_keeps_the_last_good_state(federate, tmp_path):
    with pytest.raises(RunFailed) as caught:
        federate(strategy="spo", **{**LINEAR, "spo.step": 1e30, "spo.rate": 1e6, "round-retries": 0})
    text = str(caught.value)
    assert "the hypernetwork diverged" in text and "spo.step" in text and "spo.rate = 1e+06" in text
    assert not (tmp_path / "run-1" / "result.json").exists()


def test_clients_that_all_see_infinite_losses_are_not_blamed(federate):
    def tamper(asked, answer, name):
        if asked.metadata.message_type == "train.rays" and asked.metadata.group_id == "2":
            answer.content[MODEL] = pack({"classifier": np.full((16, 6), np.nan, np.float32)})
        return answer

    with pytest.raises(RunFailed, match=r"round 2: 0 of 4 clients answered well.*Perhaps the hypernetwork diverged"):
        federate(tamper=tamper, strategy="spo", **{**SHORT, "round-retries": 0})


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1])
def test_a_threshold_outside_its_range_is_refused(value):
    with pytest.raises(ConfigError, match=r"spo\.threshold = "):
        parse_config({**default_config(), "spo.threshold": value})


def test_one_client_alone_is_refused(federate):
    with pytest.raises(RunFailed, match="strategy = 'spo': needs two clients or more"):
        federate(strategy="spo", **{"num-clients": 1})


def test_without_validation_samples_there_is_nothing_to_search_by(federate):
    with pytest.raises(RunFailed, match=r"validation-fraction = 0: no client has a validation sample, and ce"):
        federate(strategy="ce", **{**LINEAR, "validation-fraction": 0.0})


@pytest.mark.parametrize("mode", ["dp-sgd", "weights"])
def test_there_is_no_private_form(mode, federate):
    with pytest.raises(ConfigError, match=f"privacy.mode = '{mode}': strategy 'spo' asks for gradients"):
        federate(strategy="spo", **{"privacy.mode": mode})


def test_rounds_of_ce():
    config, settings = parse_config({**default_config(), "strategy": "ce", "num-server-rounds": 1})
    assert CE(config, settings["spo"], initial_layout(config)).exploring == 1


@pytest.mark.parametrize("kind", ["sign-flip", "closed-set"])
def test_bad_clients_spoil_gradients(kind, federate):
    attack = {"attack.kind": kind, "attack.clients": "2"}
    settings = {**LINEAR, "num-server-rounds": 1, "evaluate-every": 1, "spo.search-steps": 1}
    honest, bad = federate(strategy="spo", **settings), federate(strategy="spo", **settings, **attack)
    one, two = (unpack(dict(reversed(_gradients(run)))["2"])["classifier"] for run in (honest, bad))
    if kind == "sign-flip":
        np.testing.assert_allclose(two, -one, rtol=1e-2, atol=1e-3)
    else:
        assert np.abs(one - two).max() > 0.01


def _gradients(run):
    pairs = zip(run.grid.sent, run.grid.answered, strict=True)
    return [
        (n, a.content.array_records[MODEL])
        for (n, m), (_, a) in pairs
        if m.metadata.message_type == "train.rays" and not is_search(m)
    ]
