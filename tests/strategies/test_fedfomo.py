"""FedFomo: the formula by hand, who is sent to whom, and that nobody learns names."""

import numpy as np
import pytest
import torch

from coterie.server.app import initial_layout
from coterie.strategies.fedfomo import FedFomo, move
from coterie.tasks.models import build_network
from coterie.tasks.training import Samples
from coterie.wire.arrays import pack, unpack
from coterie.wire.checks import Update
from coterie.wire.config import RunConfig
from coterie.wire.errors import Refused
from coterie.wire.messages import METRICS, OTHERS


def linear(weights) -> dict[str, np.ndarray]:
    """A network with one input and one output: slope and offset."""
    return {"classifier": np.array(weights, dtype=np.float32)}


def mixed(own, others, x, y):
    network = build_network("linear", (1,), 1, seed=0)
    network.load(linear(own))
    samples = Samples(torch.tensor(x, dtype=torch.float32).view(-1, 1), torch.tensor(y, dtype=torch.float32))
    rows = pack({"classifier": np.array(others, dtype=np.float32).reshape(len(others), 2)})
    weights = move(network, rows, samples)
    return weights, network.dump()["classifier"]


def test_the_formula_by_hand():
    """Validation data y = x at x = 1, 2; a model (a, b) has the loss mean (a x + b - x)^2.

    own (0, 0): (1 + 4) / 2 = 2.5.   (1, 0): loss 0, distance 1 -> 2.5.   (0, 1): (0 + 1) / 2 = 0.5, distance 1 -> 2.
    (-1, 0): loss 10, worse -> 0.     (2, 0): loss 2.5, no gain -> 0.      (3, 4): (36 + 64) / 2 = 50 -> 0.
    """
    others = [(1, 0), (0, 1), (-1, 0), (2, 0), (3, 4)]
    weights, model = mixed((0, 0), others, [1, 2], [1, 2])
    assert weights == pytest.approx([2.5 / 4.5, 2 / 4.5, 0, 0, 0])
    assert model == pytest.approx([2.5 / 4.5, 2 / 4.5], rel=1e-6)


def test_distance_counts():
    """own (0, 0), data y = x at x = 1: (0.5, 0) has gain .75 at distance .5; (1, 0) gain 1 at distance 1."""
    weights, model = mixed((0, 0), [(0.5, 0), (1, 0)], [1], [1])
    assert weights == pytest.approx([1.5 / 2.5, 1 / 2.5])
    assert model == pytest.approx([0.6 * 0.5 + 0.4 * 1, 0])


@pytest.mark.parametrize("others", [[(2, 3)], [(2, 3), (2, 3)], [(9, 9), (8, 8)]])
def test_equal_or_worse_models_move_nothing(others):
    weights, model = mixed((2, 3), others, [1, 2], [5, 7])  # the own model is perfect
    assert not weights.any() and model.tolist() == [2, 3]


def test_an_identical_model_among_better_ones():
    weights, model = mixed((0, 0), [(0, 0), (1, 0)], [1], [1])
    assert weights.tolist() == [0, 1] and model.tolist() == [1, 0]


def test_without_validation_data_nothing_moves():
    weights, model = mixed((0, 0), [(1, 0)], [], [])
    assert weights.tolist() == [0] and model.tolist() == [0, 0]


def test_what_the_server_sends_is_checked():
    with pytest.raises(Refused, match="not finite"):
        mixed((0, 0), [(np.nan, 0)], [1], [1])


def test_statistics_are_mixed_and_stay_statistics():
    network = build_network("lenet5", (1, 8, 8), 2, seed=0)
    own = network.dump()
    rng = np.random.default_rng(0)
    samples = Samples(
        torch.from_numpy(rng.normal(size=(20, 1, 8, 8)).astype(np.float32)), torch.zeros(20, dtype=torch.int64)
    )
    better = {part: value.copy() for part, value in own.items()}
    better["classifier"][-2:] = [9, -9]  # always says 0
    better["buffers"] = own["buffers"] + 1
    better["counters"] = own["counters"] + 3
    rows = pack({part: np.stack([value, value]) for part, value in better.items()})
    weights = move(network, rows, samples)
    assert weights.tolist() == [0.5, 0.5]
    after = network.dump()
    assert all(after[part].dtype == own[part].dtype for part in own)
    assert after["counters"].tolist() == [3, 3] and after["buffers"] == pytest.approx(own["buffers"] + 1)
    assert (after["buffers"][network.variances()] > 0).all()


# --- the server's side -----------------------------------------------------------------------------------------------


def fomo(models: int = 2, epsilon: float = 0.0, seed: int = 1) -> FedFomo:
    config = RunConfig(model="linear", seed=seed)
    return FedFomo(config, FedFomo.Settings(models=models, epsilon=epsilon), initial_layout(config))


def upload(method: FedFomo, weights=()) -> Update:
    return Update(
        {part: value.copy() for part, value in method.layout.parts.items()}, 5, {}, {"weights": np.array(weights)}, 0
    )


NAMES = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("models", [1, 3, 4, 9])
def test_never_the_own_model_never_one_twice_never_more_than_asked(models, epsilon):
    method = fomo(models, epsilon)
    method.learn({name: [] for name in NAMES}, {name: upload(method) for name in NAMES})
    for server_round in range(2, 12):
        for name in NAMES:
            chosen = method.choose(name, server_round)
            assert name not in chosen and len(chosen) == len(set(chosen)) == min(models, 4)


def test_preferred_models_first():
    method = fomo(models=2)
    method.learn({name: [] for name in NAMES}, {name: upload(method) for name in NAMES})
    method.learn({"a": ["b", "c"]}, {"a": upload(method, [0.25, 0.75])})
    method.learn({"a": ["d", "b"]}, {"a": upload(method, [0.0, 0.6])})
    assert method.preference["a"] == pytest.approx({"b": 0.85, "c": 0.75, "d": 0.0})
    assert all(method.choose("a", server_round) == ["b", "c"] for server_round in range(4, 9))


def test_exploring_reaches_everybody_and_fades():
    method = fomo(models=1, epsilon=1.0)
    method.learn({name: [] for name in NAMES}, {name: upload(method) for name in NAMES})
    method.preference["a"] = {"b": 5.0}
    assert {method.choose("a", server_round)[0] for server_round in range(2, 30)} == {"b", "c", "d", "e"}
    assert [method.choose("a", server_round) for server_round in range(400, 420)] == [["b"]] * 20


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.7], [-0.1, 0.5], [0.2, 0.2, 0.2]])
def test_weights_that_cannot_be_are_not_counted(weights):
    method = fomo()
    assert method.learn({"a": ["b", "c"]}, {"a": upload(method, weights)}) == {} and method.preference == {}
    assert "a" in method.models


def test_nobody_learns_the_name_of_another(federate):
    names = ["ward-seven", "clinic-nord", "practice-lee", "labo-quai"]
    run = federate(strategy="fedfomo", names=names, num_server_rounds=3, **{"fedfomo.models": 2})
    assert run.result["clients"] == sorted(names)
    with_others = 0
    for client, message in run.grid.sent:
        text = repr({name: dict(record) for name, record in message.content.config_records.items()})
        text += repr([list(record) for record in message.content.array_records.values()]) + repr(message.metadata)
        assert not [name for name in names if name != client and name in text]
        if OTHERS in message.content.array_records:
            rows = message.content.array_records[OTHERS]
            assert {array.shape[0] for array in rows.values()} == {2}
            with_others += 1
    assert with_others == 8  # not in the first round
    for client, answer in run.grid.answered:
        record = answer.content.metric_records.get(METRICS, {})
        assert not [name for name in names if name != client and name in repr(dict(record))]


def test_rows_are_the_last_models_of_others(federate):
    run = federate(strategy="fedfomo", num_server_rounds=3, **{"fedfomo.models": 2})
    latest: dict[str, np.ndarray] = {}
    waiting: dict[str, np.ndarray] = {}
    for (client, asked), (_, answer) in zip(run.grid.sent, run.grid.answered, strict=True):
        if asked.metadata.message_type == "evaluate":
            latest |= waiting
            waiting = {}
        if asked.metadata.message_type != "train.fomo":
            continue
        if OTHERS in asked.content.array_records:
            for row in unpack(asked.content.array_records[OTHERS])["extractor"]:
                owners = [name for name, value in latest.items() if np.array_equal(value, row)]
                assert owners and client not in owners
        waiting[client] = unpack(answer.content.array_records["model"])["extractor"]
    assert set(latest) == {"0", "1", "2", "3"}
    assert all(set(told) == set(run.grid.contexts and ["0", "1", "2", "3"]) for told in [run.events[-1]["weights"]])


def test_statistics_stay_with_clients_where_they_are_local(federate):
    run = federate(strategy="fedfomo", model="cnn-bn", buffers="local", num_server_rounds=3)
    assert any(weight > 0 for event in run.events for told in event["weights"].values() for weight in told.values())
    asked = [message for _, message in run.grid.sent if message.metadata.message_type == "train.fomo"]
    for message in asked:
        others = message.content.array_records.get("others")
        assert others is None or set(unpack(others)) == {"extractor", "norm", "classifier"}
    answered = [a for (_, m), (_, a) in zip(run.grid.sent, run.grid.answered, strict=True) if m in asked]
    assert all(set(unpack(a.content.array_records["model"])) == {"extractor", "norm", "classifier"} for a in answered)
    assert "buffers" in run.state("0") and not np.array_equal(run.state("0")["buffers"], run.state("1")["buffers"])
