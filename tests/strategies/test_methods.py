"""What each method shares, keeps and trains; one round of each against the same round written by hand."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from coterie.client.data import load_client_data
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.tasks.models import PARTS, STATISTICS, WEIGHTS, Network, build_network
from coterie.tasks.training import Samples, Sgd, evaluate, train
from coterie.wire.arrays import unpack
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.messages import MODEL, ORDER, TrainOrder
from coterie.wire.randomness import derive_seed, generator

CLIENTS = ["0", "1", "2", "3"]
SHOWN = ("fedavg", "pfedsv", "pfedsim", "pfedocf", "afedsv", "ce")  # the others take their turn with the slow tests
EACH = [name if name in SHOWN else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


def config_of(run) -> RunConfig:
    return RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])


def initial(run) -> Network:
    config = config_of(run)
    return build_network(config.model, (1, 8, 8), 10, seed=derive_seed(config.seed, "model"), buffers=config.buffers)


def samples_of(run, client: str, which: str = "train") -> Samples:
    """The client's digits, from scikit-learn itself; 0..16 to mean 0 is what a network sees."""
    data = load_client_data({"partition-id": int(client), "num-partitions": 4}, config_of(run), client)
    indices = getattr(data.split, which)
    digits = load_digits()
    x = (digits.images[indices, None] - data.dataset.mean[0]) / data.dataset.std[0]
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(digits.target[indices].astype(np.int64)))


def state_as_parts(network: Network, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    network.load({part: arrays[part] for part in network.parts if part in arrays})
    return {name: value.clone() for name, value in network.state_dict().items()}


def orders(run) -> list[tuple[str, TrainOrder, dict[str, np.ndarray]]]:
    """Everything that clients were told to train, with the parts that came along."""
    found = []
    for client, message in run.grid.sent:
        if message.metadata.message_type.startswith("train"):
            parts = unpack(message.content.array_records[MODEL]) if MODEL in message.content.array_records else {}
            found.append((client, TrainOrder.from_record(message.content.config_records[ORDER]), parts))
    return found


def uploads(run) -> list[tuple[str, dict[str, np.ndarray]]]:
    kinds = [message.metadata.message_type for _, message in run.grid.sent]
    answers = [answer for kind, answer in zip(kinds, run.grid.answered, strict=True) if kind.startswith("train")]
    return [(client, unpack(answer.content.array_records[MODEL])) for client, answer in answers]


def test_one_round_of_fedavg_by_hand(federate):
    run = federate(
        strategy="fedavg", num_server_rounds=1, local_epochs=2, batch_size=50, learning_rate=0.1, momentum=0.5
    )
    states, counts = [], []
    for client in CLIENTS:
        samples, network, rng = samples_of(run, client), initial(run), generator(1, "train", 1, client)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
        network.train()
        for _ in range(2):
            for chosen in torch.from_numpy(rng.permutation(len(samples))).split(50):
                optimizer.zero_grad()
                functional.cross_entropy(network(samples.x[chosen]), samples.y[chosen]).backward()
                optimizer.step()
        states.append(network.state_dict())
        counts.append(len(samples))
    assert all(count % 50 > 1 for count in counts)
    got = state_as_parts(initial(run), run.model)
    for name, value in got.items():
        expected = sum(n / sum(counts) * state[name].double() for n, state in zip(counts, states, strict=True))
        if value.dtype == torch.int64:
            assert value == round(float(expected))
        else:
            torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(got["classifier.weight"], initial(run).state_dict()["classifier.weight"])
    # Tested with the averaged model, on all test samples.
    network = initial(run)
    network.load(run.model)
    for client in CLIENTS:
        test = samples_of(run, client, "test")
        with torch.no_grad():
            hits = (network.eval()(test.x).argmax(1) == test.y).double().mean()
        assert run.result["models"]["global"]["clients"][client]["accuracy"] == pytest.approx(float(hits))


@pytest.mark.parametrize(
    ("strategy", "shared"),
    [
        ("fedavg", PARTS),
        ("fedprox", PARTS),
        ("fedavg-ft", PARTS),
        ("fedper", ("extractor", "norm", "buffers", "counters")),
        ("fedrep", ("extractor", "norm", "buffers", "counters")),
        ("fedbn", ("extractor", "classifier")),
        ("lg-fedavg", ("classifier",)),
        ("local", ()),
    ],
)
def test_what_is_shared_and_what_stays(strategy, shared, federate):
    run = federate(strategy=strategy)
    start = initial(run).dump()
    stays = set(PARTS) - set(shared)
    for _, order, parts in orders(run):
        assert set(parts) == set(order.upload) == set(shared) and set(order.keep) == stays
    for _, parts in uploads(run):
        assert set(parts) == set(shared)
    for part in PARTS:
        changed = not np.array_equal(run.model[part], start[part])
        assert changed == (part in shared), part
    if stays:
        kept = [run.state(client) for client in CLIENTS]
        assert all(set(parts) == stays for parts in kept)
        part = sorted(stays)[0]
        assert not np.array_equal(kept[0][part], kept[1][part])
    last = dict(uploads(run)[-4:])
    counts = [run.events[-1]["train"][client]["num-samples"] for client in CLIENTS]
    for part in shared:
        expected = sum(
            n / sum(counts) * last[client][part].astype(np.float64) for client, n in zip(CLIENTS, counts, strict=True)
        )
        np.testing.assert_allclose(run.model[part], expected, rtol=1e-5, atol=0.5 if part == "counters" else 1e-6)


@pytest.mark.parametrize("strategy", ["fedper", "fedrep", "fedbn", "lg-fedavg", "local"])
def test_the_personal_model_is_the_shared_parts_and_the_own_ones(strategy, federate):
    run = federate(strategy=strategy)
    assert set(run.result["models"]) == {"personal"}
    for client in CLIENTS:
        network = initial(run)
        network.load(run.model)
        network.load(run.state(client))
        for name, value in network.state_dict().items():
            assert np.array_equal(run.personal(client)[name], value.numpy()), name
        expected = evaluate(network, samples_of(run, client, "test"))
        assert run.result["models"]["personal"]["clients"][client] == pytest.approx(expected)


def test_fedprox_without_pull_is_fedavg_bit_for_bit(federate):
    one = federate(strategy="fedavg")
    two = federate(strategy="fedprox", **{"fedprox.mu": 0.0})
    pulled = federate(strategy="fedprox", **{"fedprox.mu": 10.0})
    assert {**one.result, "strategy": ""} == {**two.result, "strategy": ""}
    assert all(np.array_equal(one.model[part], two.model[part]) for part in PARTS)
    assert [order.proximal_mu for _, order, _ in orders(pulled)] == [10.0] * 8
    start = initial(one).dump()["extractor"]
    assert np.linalg.norm(pulled.model["extractor"] - start) < np.linalg.norm(one.model["extractor"] - start)


def test_local_sends_no_number_of_any_model(federate):
    run = federate(strategy="local")
    for event in run.events:
        assert set(event["bytes-up"].values()) == set(event["bytes-down"].values()) == {0}
    for (_, sent), (_, answered) in zip(run.grid.sent, run.grid.answered, strict=True):
        assert not [array for record in sent.content.array_records.values() for array in record.values()]
        assert not [array for record in answered.content.array_records.values() for array in record.values()]


def test_local_is_training_alone(federate):
    run = federate(strategy="local", num_server_rounds=3)
    samples, network = samples_of(run, "2"), initial(run)
    for server_round in (1, 2, 3):
        train(network, samples, Sgd(0.05, 32), epochs=1, rng=generator(1, "train", server_round, "2"))
    assert all(np.array_equal(value, run.state("2")[part]) for part, value in network.dump().items())


def test_fedrep_trains_the_classifier_first(federate):
    run = federate(strategy="fedrep", num_server_rounds=1, local_epochs=2, **{"fedrep.head-epochs": 3})
    for _, order, _ in orders(run):
        assert list(zip(order.phase_parts, order.phase_epochs, strict=True)) == [
            ("classifier", 3),
            ("extractor+norm", 2),
        ]
    network, samples, rng = initial(run), samples_of(run, "1"), generator(1, "train", 1, "1")
    train(network, samples, Sgd(0.05, 32), epochs=3, rng=rng, parts=["classifier"])
    train(network, samples, Sgd(0.05, 32), epochs=2, rng=rng, parts=["extractor", "norm"])
    assert np.array_equal(network.dump()["classifier"], run.state("1")["classifier"])
    assert np.array_equal(network.dump()["extractor"], dict(uploads(run))["1"]["extractor"])


def test_fine_tuning_starts_from_the_global_model_and_stays_with_the_client(federate):
    plain = federate(strategy="fedavg")
    run = federate(strategy="fedavg-ft", **{"fedavg-ft.epochs": 2})
    assert run.result["models"]["global"] == plain.result["models"]["global"]
    assert all(np.array_equal(run.model[part], plain.model[part]) for part in PARTS)
    network = initial(run)
    network.load(run.model)
    train(network, samples_of(run, "3"), Sgd(0.05, 32), epochs=2, rng=generator(1, "tune", 2, "3"))
    for name, value in network.state_dict().items():
        assert np.array_equal(run.personal("3")[name], value.numpy())
    expected = evaluate(network, samples_of(run, "3", "test"))
    assert run.result["models"]["personal"]["clients"]["3"] == pytest.approx(expected)
    assert run.result["models"]["personal"]["clients"]["3"] != run.result["models"]["global"]["clients"]["3"]


def test_buffers_local(federate):
    run = federate(strategy="fedavg", buffers="local")
    assert all(set(parts) == set(WEIGHTS) for _, parts in uploads(run))
    assert all(set(run.state(client)) == set(STATISTICS) for client in CLIENTS)
    assert not np.array_equal(run.state("0")["buffers"], run.state("1")["buffers"])
    assert run.state("0")["counters"].dtype == np.int64


def test_buffers_drop(federate):
    run = federate(strategy="fedavg", buffers="drop")
    assert set(run.model) == set(WEIGHTS) and "extractor.1.running_var" not in run.personal("0")


@pytest.mark.parametrize("strategy", EACH)
def test_learning(strategy, federate):
    """Every method learns, and a personal model of two labels is soon better than one of ten labels."""
    steps = {
        "spo.server-steps": 20,
        "spo.local-steps": 10,
        "pfedhn.server-steps": 20,
    }  # the other tests have fewer, to be quick
    run = federate(
        strategy=strategy,
        model="mlp",
        partition="pathological",
        num_server_rounds=4,
        local_epochs=3,
        learning_rate=0.1,
        **steps,
    )
    losses = [np.mean([client["loss"] for client in event["train"].values()]) for event in run.events]
    assert losses[-1] < losses[0]
    if "global" not in run.result["models"]:
        assert run.result["mean-test-accuracy"]["personal"] > 0.5


@pytest.mark.parametrize("strategy", [each for each in EACH if "coterie" not in (each, *getattr(each, "values", ()))])
def test_regression(strategy, federate):  # coterie needs labels, and says so: test_coterie.py
    run = federate(strategy=strategy, task="synthetic-linear", num_clients=6, partition="natural")
    assert set(run.result["models"]["personal"]["mean"]) == {"loss", "loss-weighted", "r2", "r2-weighted"}
    assert run.result["mean-test-accuracy"] == {}
