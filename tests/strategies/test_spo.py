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
from coterie.wire.messages import METRICS, MODEL, ORDER, OTHERS

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
    "spo.fine-tune-epochs": 0,
}


def is_search(message: Message) -> bool:
    return (
        message.metadata.message_type == "train.rays"
        and RaysOrder.from_record(message.content.config_records[ORDER]).steps == 0
    )


def judged(run) -> list[tuple[str, Message, Message]]:
    """Who was asked to judge models as it would use them, in order; the questions, and the answers."""
    pairs = zip(run.grid.sent, run.grid.answered, strict=True)
    return [(n, m, a) for (n, m), (_, a) in pairs if m.metadata.message_type == "train.judge"]


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


def test_front_preferences_collaborators_and_models(data_of, federate):
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
    links = data_of(run.path / "report.html")["runs"][0]["links"]
    assert {(helped, helper) for helped, helper in links} == {
        (int(name), int(other)) for name, others in GROUPS.items() for other in others if other != name
    }
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
        assert unpack(message.content.array_records[OTHERS])["classifier"].shape == (1, 6)  # what all train together
    answers = [a for (_, m), (_, a) in zip(run.grid.sent, run.grid.answered, strict=True) if is_search(m)]
    assert answers
    for answer in answers:
        assert unpack(answer.content.array_records[MODEL])["classifier"].shape == (1, 6)
    assert all("hypernetwork" not in m.content.array_records for _, m in run.grid.sent)  # it stays where it is


def theta_of(run, client) -> np.ndarray:
    model = run.personal(client)
    return np.append(model["classifier.weight"].ravel(), model["classifier.bias"]).astype(float)


def test_models_are_personal_within_a_coalition(data_of, federate):
    """A member's model is that of the hypernetwork for its own preferences among the members."""
    run = federate(strategy="ce", **{**LINEAR, "num-server-rounds": 30, "spo.explore": 0.84, "evaluate-every": 30})
    formed, last = run.events[24], run.events[-1]
    assert (
        [set(members) for members in formed["coalitions"]]
        == [{"0", "2"}, {"1", "3"}]
        == [set(members) for members in last["coalitions"]]
    )
    assert last["violations"] == [] and last["axioms-checked-up-to"] == 4
    assert [event["phase"] for event in run.events] == ["hypernetwork"] * 25 + ["coalitions"] * 5
    for client, group in GROUPS.items():
        weights = last["preferences"][client]
        assert set(weights) <= group
        point = np.array([weights.get(name, 0.0) for name in GROUPS])
        np.testing.assert_allclose(theta_of(run, client), made(run).made_for(point)["classifier"], atol=2e-3)
    assert np.abs(theta_of(run, "0") - theta_of(run, "2")).max() > 1e-3  # not one for both
    told = data_of(run.path / "report.html")["runs"][0]
    assert told["groups"] and told["axioms"] == {"rows": [], "up-to": 4}


def test_rays_of_a_formed_coalition_have_weight_for_its_members_only():
    config, settings = parse_config({**default_config(), "strategy": "ce", "spo.rays": 12})
    method = CE(config, settings["spo"], initial_layout(config))
    method.roster = list("abcdefg")
    before = method.draw(3, method.roster)
    method.coalitions = [["b", "e", "g"], ["a", "c"], ["d"], ["f"]]
    rays = method.draw(3, ["a", "b", "c", "e", "f"])  # two are not there; one is alone and needs no front
    np.testing.assert_allclose(rays.sum(axis=1), 1)
    supports = [{method.roster[i] for i in np.flatnonzero(ray)} for ray in rays]
    assert all(any(support <= set(members) for members in method.coalitions) for support in supports)
    assert set().union(*supports) == {"a", "b", "c", "e"}
    method.coalitions = [method.roster]
    np.testing.assert_array_equal(method.draw(3, method.roster), before)  # one coalition of all is SPO


def wished(groups):
    def equilibrium(wish, n):
        """Everybody is asked, and these are the coalitions."""
        for i in range(n):
            wish(i, frozenset(range(n)))
        return [frozenset(members) for members in groups]

    return equilibrium


@pytest.mark.parametrize(("strategy", "same_as"), [("ce", "local"), ("spo", "fedavg")])
def test_alone_is_trained_alone_and_all_alike_is_fedavg(strategy, same_as, federate, monkeypatch):
    """What clients choose among, beside models of the hypernetwork: who is alone has the model of the strategy `local`, to the
    bit; the model for all alike is that of `fedavg`, here where all have as many samples."""
    monkeypatch.setattr("coterie.strategies.spo.ce.collaboration_equilibrium", wished([[i] for i in range(4)]))
    settings = {**LINEAR, "num-server-rounds": 3, "evaluate-every": 3, "spo.search-steps": 1}
    run, other = (federate(strategy=name, **settings) for name in (strategy, same_as))
    for client in GROUPS:
        if same_as == "local":
            np.testing.assert_array_equal(theta_of(run, client), theta_of(other, client))
        else:
            together = made(run).together["0"]["classifier"]
            np.testing.assert_allclose(together, other.model["classifier"], rtol=1e-4, atol=1e-5)


def test_the_benefit_graph_shows_what_others_are_worth_to_one_who_trains_alone(federate):
    """Digits dealt to three alike: 30 samples to learn from are worth far less than 90, so all see a benefit."""
    settings = {"task": "digits", "partition": "iid", "num-clients": 3, "model": "mlp", "test-fraction": 0.85}
    settings |= {"validation-fraction": 0.66, "num-server-rounds": 6, "evaluate-every": 6, "local-epochs": 5}
    settings |= {"spo.rays": 4, "spo.search-steps": 3, "batch-size": 10, "spo.fine-tune-epochs": 10}
    run = federate(strategy="ce", **settings)
    assert run.events[-1]["coalitions"] == [["0", "1", "2"]]


def all_together(wish, n):
    for i in range(n):
        wish(i, frozenset(range(n)))
    return [frozenset(range(n))]


@pytest.mark.parametrize("explore", [0.5, 1.0])
def test_in_a_complete_graph_ce_is_spo(explore, federate, monkeypatch):
    """Section 5.2 of the paper: "the accuracy model of each client in CE equals to the accuracy achieved by SPO"."""
    monkeypatch.setattr("coterie.strategies.spo.ce.collaboration_equilibrium", all_together)
    settings = {**LINEAR, "num-server-rounds": 6, "evaluate-every": 6, "spo.fine-tune-epochs": 2}
    spo, ce = (federate(strategy=name, **settings, **{"spo.explore": explore}) for name in ("spo", "ce"))
    assert ce.events[-1]["coalitions"] == [sorted(GROUPS)]
    for client in GROUPS:
        np.testing.assert_array_equal(theta_of(ce, client), theta_of(spo, client))
    assert ce.result["models"] == spo.result["models"]


def test_axioms_are_checked_with_the_models_that_clients_get(federate):
    """The utilities behind the verdict: the validation loss of the own model, and of those for every set."""
    run = federate(strategy="ce", **{**LINEAR, "num-server-rounds": 4, "spo.explore": 1.0, "evaluate-every": 4})
    measured = {n: (m, a) for n, m, a in judged(run)}  # the last question to each client
    hyper = made(run).hyper()
    losses: dict[int, dict[frozenset[int], float]] = {}
    own: dict[int, float] = {}
    homes = {int(i): frozenset(map(int, members)) for members in run.events[-1]["coalitions"] for i in members}
    support = {int(i): frozenset(map(int, d)) for i, d in run.events[-1]["preferences"].items()}
    for client, (message, answer) in measured.items():
        i, weights = int(client), set(run.events[-1]["preferences"][client].values())
        rows = unpack(message.content.array_records[MODEL])["classifier"].astype(float)
        x, y = samples_of(run, client, "validation")
        told = answer.content.metric_records[METRICS]["losses"]  # of the model trained alone, then of those sent
        exact = ((y - rows @ x.T) ** 2).mean(axis=1)
        np.testing.assert_allclose(told[1:], exact, rtol=1e-4)
        own[i] = ((y - theta_of(run, client) @ x.T) ** 2).mean()  # of the personal model, the first that is judged
        assert own[i] == pytest.approx(told[0] if support[i] == {i} else exact[0], rel=1e-4)
        rest = rows if support[i] == {i} else rows[1:]
        sets = [frozenset(s) for s in subsets(i) if len(s) > 1 and not (s == support[i] and len(weights) == 1)]
        for row, members in zip(rest, sets, strict=True):
            if members != homes[i]:  # for which the hypernetwork is not needed
                expected = hyper.models(even(members, 4)[None])["classifier"][0]
                np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)
        losses[i] = {frozenset([i]): told[0], **dict(zip(sets, exact[-len(sets) :], strict=True))}

    def gains(i, part, strictly):  # what the paper's axioms say, without the product's code
        best = min(loss for s, loss in [*losses[i].items(), (support[i] | {i}, own[i])] if s <= part)
        return best < own[i] * (1 - 1e-6) if strictly else best <= own[i] * (1 + 1e-6)

    broken = {
        part
        for size in range(1, 5)
        for part in map(frozenset, itertools.combinations(range(4), size))
        if part not in homes.values() and all(gains(i, part, strictly=not part < homes[min(part)]) for i in part)
    }
    assert {frozenset(map(int, v["clients"])) for v in run.events[-1]["violations"]} == broken


def test_the_model_that_a_client_gets_is_the_one_it_judged_best(federate):
    """Fine-tuned where that lowers its validation loss; the standard errors are those of paired differences."""
    settings = {**LINEAR, "num-server-rounds": 3, "evaluate-every": 3, "spo.fine-tune-epochs": 2}
    run = federate(strategy="spo", **settings)
    asked = judged(run)
    assert sorted(n for n, _, _ in asked) == sorted(GROUPS)
    for client, message, answer in asked:
        rows = unpack(message.content.array_records[MODEL])["classifier"].astype(float)
        metrics = answer.content.metric_records[METRICS]
        x, y = samples_of(run, client, "validation")
        each = (y - rows @ x.T) ** 2
        sent = slice(1, 1 + len(rows))  # after the model trained alone
        np.testing.assert_allclose(metrics["losses"][sent], each.mean(axis=1), rtol=1e-4)
        mine = (y - theta_of(run, client) @ x.T) ** 2
        assert mine.mean() == pytest.approx(min(metrics["losses"]), rel=1e-4)
        difference = each - mine
        errors = difference.std(axis=1, ddof=1) / np.sqrt(len(y))
        np.testing.assert_allclose(metrics["errors"][sent], errors, rtol=1e-3)
    assert run.events[-1]["fine-tuned"]


@pytest.mark.parametrize(("samples", "warned"), [("100", True), ("600", False)])
def test_few_validation_samples_are_told_once(samples, warned, federate, caplog):
    settings = {**LINEAR, "num-server-rounds": 2, "evaluate-every": 2, "linear-samples": samples}
    federate(strategy="spo", **{**settings, "validation-fraction": 0.4, "spo.search-steps": 1})
    told = [r.getMessage() for r in caplog.records if "by chance" in r.getMessage()]
    assert len(told) == warned
    if warned:
        assert "fewer than 30" in told[0] and "validation-fraction = 0.4: 0, 1, 2, 3" in told[0]


def test_broken_axioms_are_named(federate, monkeypatch):
    """Everybody is put into one coalition, which is none that they want."""
    monkeypatch.setattr("coterie.strategies.spo.ce.collaboration_equilibrium", all_together)
    run = federate(strategy="ce", **{**LINEAR, "num-server-rounds": 25, "spo.explore": 1.0})
    broken = run.events[-1]["violations"]
    assert {"axiom": "inner agreement", "clients": ["0", "2"]} in broken
    assert {"axiom": "inner agreement", "clients": ["1", "3"]} in broken
    assert "inner agreement" in (run.path / "report.html").read_text()


def test_the_largest_coalitions_that_are_asked_about():
    assert [largest_part(n, 64) for n in (2, 4, 8, 9, 10, 20, 30, 100, 1000)] == [2, 4, 4, 3, 3, 2, 2, 1, 1]
    assert [largest_part(n, 16) for n in (5, 6, 16, 17)] == [5, 3, 2, 1]


# --- bad input -------------------------------------------------------------------------------------------------------

SHORT = {**LINEAR, "num-server-rounds": 2, "evaluate-every": 2, "spo.search-steps": 3, "round-timeout": 30.0}


def spoil(kind):
    def tamper(asked: Message, answer: Message, name: str) -> Message | None:
        if name == "1" and kind == "errors" and asked.metadata.message_type == "train.judge":
            metrics = answer.content.metric_records[METRICS]
            metrics["errors"] = [-1.0] * len(metrics["errors"])
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
        ("ce", "errors", "errors: must not be negative"),
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


@pytest.mark.parametrize("rows", [16, 18])
def test_gradients_of_the_wrong_number_of_models_are_refused(rows, federate):
    def tamper(asked, answer, name):
        if name == "2" and asked.metadata.message_type == "train.rays" and not is_search(asked):
            answer.content[MODEL] = pack({"classifier": np.zeros((rows, 6), np.float32)})
        return answer

    run = federate(tamper=tamper, strategy="spo", **SHORT)
    for event in run.events:
        assert f"expected float32 (17, 6), got float32 ({rows}, 6)" in event["left-out"]["2"]
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
            answer.content[MODEL] = pack({"classifier": np.full((17, 6), np.nan, np.float32)})
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
