"""Coterie's own method: what it comes to at its ends, who gets which model, and what a client makes of it."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Message
from opacus.accountants import RDPAccountant
from safetensors.numpy import load_file
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from coterie.client.app import app
from coterie.client.data import load_client_data
from coterie.strategies.registry import parse_config
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.errors import ConfigError
from coterie.wire.messages import METRICS

PLAIN = {"coterie.mean": "mean", "coterie.prior": False, "coterie.tune-epochs": 0}
KINDS = {
    "strategy": "coterie",
    "task": "own",
    "num-clients": 4,
    "model": "mlp",
    "test-fraction": 0.5,
    "partition": "auto",
}


def same_models(one, other, clients=range(4)) -> bool:
    return all(
        np.array_equal(one.personal(str(i))[name], value)
        for i in clients
        for name, value in other.personal(str(i)).items()
    )


@pytest.fixture
def kinds(tmp_path):
    """Four clients with 100 digits each; those of 1 and 3 stand on their heads."""
    x, y = load_digits(return_X_y=True)
    x = x[:400].reshape(-1, 1, 8, 8).astype(np.float32)
    owner = np.arange(400) % 4
    x[owner % 2 == 1] = np.rot90(x[owner % 2 == 1], 2, axes=(2, 3))
    path = tmp_path / "kinds.npz"
    np.savez(path, x=x, y=y[:400], owner=owner, mean=x.mean(), std=x.std())
    return {**KINDS, "data": str(path)}


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_one_group_is_fedavg_and_singletons_are_local(federate, model):
    values = {"model": model, "fraction-train": 0.75, "partition": "pathological"}
    together = federate(strategy="coterie", **values, **PLAIN, **{"coterie.threshold": 1e9})
    fedavg = federate(strategy="fedavg", **values)
    assert same_models(together, fedavg)
    assert together.result["mean-test-accuracy"] == fedavg.result["mean-test-accuracy"]
    for name, value in fedavg.model.items():
        np.testing.assert_array_equal(together.model[name], value)
    alone = federate(strategy="coterie", **values, **PLAIN, **{"coterie.threshold": 0})
    local = federate(strategy="local", **values)
    assert same_models(alone, local)
    assert alone.result["mean-test-accuracy"]["personal"] == local.result["mean-test-accuracy"]["personal"]


def test_one_group_with_the_geometric_median_is_rfa(federate):
    values = {"model": "mlp", "partition": "iid"}
    plain = PLAIN | {"coterie.mean": "geometric-median", "coterie.threshold": 1e9}
    assert same_models(federate(strategy="coterie", **values, **plain), federate(strategy="rfa", **values))


def test_who_goes_far_from_the_others_hardly_counts(federate):
    """An update fifty times as long is some thirty times 1.3 usual distances away: less than 30^-4 is left of its weight."""
    near = {"coterie.mean": "near-median", "num-clients": 5, "num-server-rounds": 1}
    far = {"attack.kind": "huge", "attack.strength": 5e-5, "attack.clients": "1"}
    run = federate(strategy="coterie", model="mlp", partition="iid", **far, **near)
    weights = run.events[0]["weights"]
    honest = [weights[client] for client in "0234"]
    assert 0 < weights["1"] < 1e-6
    assert min(honest) > 0.1
    assert sum(weights.values()) == pytest.approx(1)


def test_kinds_train_apart_and_a_group_without_participants_keeps_its_model(federate, kinds):
    run = federate(**kinds, **{"fraction-train": 0.25, "num-server-rounds": 3})
    findings = json.loads((run.path / "findings.json").read_text())
    assert findings["groups"]["values"] == [["0", "2"], ["1", "3"]]
    assert findings["groups"]["facts"]["in-words"].startswith("0 trains with 2; 1 trains with 3; T is")
    assert "0 trains with 2; 1 trains with 3" in (run.path / "report.html").read_text()
    for event in run.events:  # one client trains in a round: the model of the other kind stays as it was
        (trained,) = event["train"]
        other = {"0": "1", "1": "0"}[str(int(trained) % 2)]
        before = run.sent(event["round"] - 1, "evaluate.head").get(other) or run.sent(1, "train").get(trained)
        after = run.sent(event["round"], "evaluate.head")[other]
        np.testing.assert_array_equal(after["classifier"], before["classifier"])
    facts = findings["groups"]["facts"]["clients"]
    assert all(facts[client]["own"] < 3 <= facts[client]["to-nearest"] for client in "0123")
    assert facts["0"]["nearest"] == ["1", "3"]


def test_event_report_and_words_tell_how_far_groups_are_apart(federate, kinds, data_of):
    run = federate(**kinds)
    first, second = run.events
    findings = json.loads((run.path / "findings.json").read_text())
    facts, words = (findings["groups"]["facts"][name] for name in ("clients", "in-words"))
    assert first["distances"] == facts and "distances" not in second  # told when groups change
    table = np.array(first["kinds"]["values"])
    assert first["kinds"]["clients"] == list("0123")
    assert table[[0, 1], [2, 3]].max() < 1.5 < 2.5 < table[[0, 0, 1, 2], [1, 3, 2, 3]].min()
    np.testing.assert_allclose(table, findings["kinds"]["values"], atol=6e-4)
    furthest, nearest = max(one["own"] for one in facts.values()), min(one["to-nearest"] for one in facts.values())
    assert f"T is at most {furthest:.1f} within groups" in words and f"T is at least {nearest:.1f} to other" in words
    apart = data_of(run.path / "report.html")["runs"][0]["apart"]
    assert apart == [[c, facts[c]["own"], facts[c]["to-nearest"], facts[c]["nearest"][0]] for c in "0123"]
    assert [row[3] for row in apart] == ["1", "0", "1", "0"]


def test_the_personal_head_is_half_way_between_the_shifted_and_the_tuned_one(federate, kinds):
    """One epoch with all samples in one batch: a single step of gradient descent, written down by hand."""
    settings = {"batch-size": 1000, "momentum": 0.0, "coterie.tune-epochs": 1, "learning-rate": 0.1}
    run = federate(**kinds, **settings, **{"num-server-rounds": 1})
    sent, personal = run.sent(1, "evaluate.head")["0"], run.personal("0")
    data = np.load(kinds["data"])
    config = RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])
    split = load_client_data({"partition-id": 0, "num-partitions": 4}, config, "0").split
    assert (data["owner"][split.train] == 0).all()
    x = torch.from_numpy((data["x"][split.train] - data["mean"]) / data["std"]).float().flatten(1)
    y = torch.from_numpy(data["y"][split.train].astype(np.int64))
    body = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    nn.utils.vector_to_parameters(torch.from_numpy(sent["extractor"].copy()), body.parameters())
    weight = torch.from_numpy(sent["classifier"][:2000].reshape(10, 200).copy())
    bias = torch.from_numpy(sent["classifier"][2000:].copy())
    asked = run.exchanges(1, "query.prototypes")
    counts = sum(np.array(answer.content.metric_records[METRICS]["counts"]) for _, answer in (asked["0"], asked["2"]))
    mine = np.bincount(y.numpy(), minlength=10)
    bias += torch.from_numpy(
        np.log((mine + 0.5) / (mine.sum() + 5)) - np.log((counts + 0.5) / (counts.sum() + 5))
    ).float()
    weight.requires_grad_()
    bias.requires_grad_()
    functional.cross_entropy(body(x).detach() @ weight.T + bias, y).backward()
    head = torch.cat([(weight - 0.05 * weight.grad).flatten(), bias - 0.05 * bias.grad]).detach().numpy()
    np.testing.assert_allclose(personal["classifier.weight"].ravel(), head[:2000], atol=2e-6)
    np.testing.assert_allclose(personal["classifier.bias"], head[2000:], atol=2e-6)


def test_tuning_touches_neither_extractor_nor_statistics(federate):
    run = federate(strategy="coterie", model="lenet5", **{"num-server-rounds": 1})
    sent, personal = run.sent(1, "evaluate.head")["0"], run.personal("0")
    extractor = [value.ravel() for name, value in personal.items() if name.startswith("extractor")]
    numbers = np.concatenate([sent[part] for part in ("extractor", "norm", "buffers")])
    assert np.isin(np.concatenate(extractor).astype(np.float64), np.append(numbers, sent["counters"])).all()


@pytest.mark.parametrize("harm", ["counts", "negative", "short", "silent"])
def test_a_client_with_forged_prototypes_harms_nobody(federate, kinds, harm):
    def forge(asked: Message, answer: Message, name: str) -> Message | None:
        if name == "1" and asked.metadata.message_type == "query.prototypes":
            if harm == "silent":
                return None
            told = answer.content.metric_records[METRICS]
            if harm == "counts":
                told["counts"] = [1e6] * 10
            elif harm == "negative":
                told["squares"] = [-1.0] * 16
            else:
                told["means"] = told["means"][:-1]
        return answer

    run = federate(forge, **kinds, **{"round-timeout": 2.0})
    groups = json.loads((run.path / "findings.json").read_text())["groups"]["values"]
    assert groups == [["0", "2"], ["3"]]
    assert set(run.events[-1]["evaluate"]) == set("0123")  # it gets the largest group's model


def test_with_noise_the_release_is_counted(federate):
    settings = {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 2.0, "num-server-rounds": 1, "model": "mlp"}
    run, plain = (federate(strategy=name, **settings) for name in ("coterie", "fedavg"))

    def epsilon(of):
        return {name: told["epsilon"] for name, told in of.events[-1]["train"].items()}

    for client, spent in epsilon(run).items():
        accountant = RDPAccountant()
        samples = run.events[-1]["train"][client]["num-samples"]
        rate = min(1.0, 32 / samples)
        accountant.history = [(2.0, 1.0, 1), (2.0, rate, max(1, round(1 / rate)))]
        assert spent == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
        assert spent > epsilon(plain)[client]
    told = run.exchanges(1, "query.prototypes")["0"][1].content.metric_records[METRICS]
    assert told["noise"] == [pytest.approx(12.0)]  # 3 sigma^2


def test_regression_is_refused_by_name(federate):
    with pytest.raises(ConfigError, match=r"strategy = 'coterie'.*'linear' has none"):
        federate(strategy="coterie", task="linear", model="linear", partition="auto")


def test_with_noise_the_same_is_told_again_and_counted_once(federate, tmp_path):
    """A server that was killed in the first round asks again: same answer, same epsilon."""
    settings = {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 2.0, "num-server-rounds": 1, "model": "mlp"}
    run = federate(strategy="coterie", **settings)
    asked, answered = run.exchanges(1, "query.prototypes")["0"]
    before = load_file(run.path / "state" / "privacy" / "0.safetensors")["history"]
    again = app(asked, run.grid.contexts[asked.metadata.dst_node_id])
    assert again.content.metric_records[METRICS] == answered.content.metric_records[METRICS]
    np.testing.assert_array_equal(load_file(run.path / "state" / "privacy" / "0.safetensors")["history"], before)


def test_who_hides_wrong_labels_tells_of_the_right_ones(federate, kinds):
    bad = {"attack.clients": "1", "num-server-rounds": 1}
    plain, hidden, open_ = (
        federate(**kinds, **values)
        for values in (
            {"num-server-rounds": 1},
            {**bad, "attack.kind": "disguise"},
            {**bad, "attack.kind": "closed-set"},
        )
    )
    told = [run.exchanges(1, "query.prototypes")["1"][1].content.metric_records[METRICS] for run in (plain, hidden)]
    assert told[0] == told[1]
    for one, other in ((plain, hidden), (hidden, open_)):
        same = np.array_equal(one.uploaded(1)["1"]["classifier"], other.uploaded(1)["1"]["classifier"])
        assert same == (one is hidden)


def test_without_a_strategy_labels_decide(federate):
    for task, model, name in (("digits", "mlp", "coterie"), ("linear", "linear", "fedavg")):
        assert parse_config({"task": task, "model": model})[0].strategy == name
    run = federate(strategy="auto", model="mlp", **{"num-server-rounds": 1})
    assert json.loads((run.path / "config.json").read_text())["strategy"] == "coterie"
