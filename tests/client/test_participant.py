"""One client: its name, its data, its device, and what it answers."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from safetensors import safe_open
from sklearn.datasets import load_digits

from coterie.client.app import app
from coterie.client.data import load_client_data, partitioned
from coterie.client.participant import Participant, client_name, pick_device, received_parts
from coterie.strategies.registry import default_config
from coterie.tasks.models import build_network
from coterie.tasks.samples import DataError
from coterie.tasks.training import evaluate
from coterie.wire.arrays import pack, unpack
from coterie.wire.checks import check_hello, check_update
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError, Refused
from coterie.wire.fingerprint import fingerprint
from coterie.wire.messages import METRICS, MODEL, EvaluateOrder, Sent, TrainOrder


def context(node=None, **config) -> Context:
    node = {"partition-id": 1, "num-partitions": 4} if node is None else node
    values = {**default_config(), "model": "linear", **{key.replace("_", "-"): value for key, value in config.items()}}
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=values)


def ask(kind: str, content_: RecordDict, where: Context) -> Message:
    message = Message(content_, dst_node_id=1, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    return app(message, where)


def test_a_configuration_is_read_once_and_never_taken_for_an_equal_one_of_other_types(monkeypatch):
    read: list[object] = []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda value, *args, **more: read.append(value) or dumps(value, *args, **more))
    here = context(seed=5)
    for _ in range(3):
        assert Participant.of(here).config.seed == 5
        assert Participant.of(here).attack() is None
    assert read == [here.run_config]
    other = context(seed=5)
    other.run_config["seed"] = 6
    assert Participant.of(other).config.seed == 6 and Participant.of(here).config.seed == 5
    one, true = context(evaluate_every=1), context(evaluate_every=True)
    assert one.run_config == true.run_config
    assert Participant.of(one).config.evaluate_every == 1
    with pytest.raises(ConfigError, match="evaluate-every"):
        Participant.of(true)


def test_names():
    assert client_name(context({"client-name": "ward-7", "partition-id": 3}), RunConfig()) == "ward-7"
    assert client_name(context({"partition-id": 3}), RunConfig()) == "3"
    heart = RunConfig(task="heart", num_clients=4)
    assert client_name(context({"partition-id": 2}), heart) == "switzerland"
    assert client_name(context({"partition-id": 2, "num-partitions": 5}), heart) == "2"  # not its natural clients
    with pytest.raises(ConfigError, match="node configuration: give this client a name"):
        client_name(context({}), RunConfig())


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == "cpu" and pick_device("cpu") == "cpu"
    for device in ("cuda", "cuda:1", "mps"):
        with pytest.raises(ConfigError, match=f"device = '{device}': this machine has no .*; use 'cpu' or 'auto'"):
            pick_device(device)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto") == pick_device("mps") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == "cuda" and pick_device("cuda:1") == "cuda:1"


def test_hello():
    answer = check_hello(ask("query.hello", RecordDict(), context(partition="iid")))
    assert (answer.name, answer.num_partitions, answer.code) == ("1", 4, fingerprint())
    assert answer.num_train + answer.num_validation + answer.num_test in (449, 450)


def test_the_split_is_drawn_once():
    """The same in every round, disjoint, all of the client's samples, and nobody else's."""
    config = RunConfig(partition="iid")
    node = {"partition-id": 1, "num-partitions": 4}
    one, two = load_client_data(node, config, "1"), load_client_data(node, config, "1")
    sets = [one.split.train, one.split.validation, one.split.test]
    for a, b in zip(sets, [two.split.train, two.split.validation, two.split.test], strict=True):
        assert np.array_equal(a, b)
    everything = np.concatenate(sets)
    assert len(set(everything.tolist())) == len(everything)
    assert sorted(everything.tolist()) == sorted(partitioned(config, 4)[1][1].tolist())
    assert len(one.split.test) == round(len(everything) * 0.2)
    others = [load_client_data({**node, "partition-id": i}, config, str(i)).split for i in (0, 2, 3)]
    for other in others:
        assert not set(everything.tolist()) & {*other.train.tolist(), *other.validation.tolist(), *other.test.tolist()}
    moved = load_client_data(node, RunConfig(partition="iid", seed=2), "1")
    assert not np.array_equal(moved.split.train, one.split.train)


def test_the_name_does_not_change_the_data():
    """A client of a partition has the same samples whatever it is called, so processes and simulation agree."""
    node = {"partition-id": 1, "num-partitions": 4}
    one, two = (load_client_data(node, RunConfig(), name) for name in ("1", "ward-7"))
    assert np.array_equal(one.split.train, two.split.train) and np.array_equal(one.split.test, two.split.test)


def test_the_number_of_shares_is_that_of_the_runs_clients_unless_the_node_says_otherwise():
    said, run = (
        load_client_data(node, RunConfig(num_clients=number), "1")
        for node, number in (({"partition-id": 1, "num-partitions": 4}, 0), ({"partition-id": 1}, 4))
    )
    assert said.num_partitions == run.num_partitions == 4
    assert np.array_equal(said.split.train, run.split.train)


def test_a_device_may_have_its_data_sets_elsewhere(tmp_path):
    node = {"partition-id": 0, "num-partitions": 2, "data-root": str(tmp_path)}
    assert Participant.of(context(node)).config.data_root == str(tmp_path)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"partition-id": 1}, "the run has num-clients = 0"),
        ({"num-partitions": 4}, "give data='...', or partition-id"),
        ({"partition-id": 4, "num-partitions": 4}, "partition-id = 4: must be from 0 to 3"),
        ({"partition-id": -1, "num-partitions": 4}, "partition-id = -1: must be from 0 to 3"),
    ],
)
def test_wrong_node_configurations(node, reason):
    with pytest.raises(ConfigError, match=f"node configuration: .*{reason}"):
        load_client_data(node, RunConfig(), "x")


def test_samples_are_normalised():
    data = load_client_data({"partition-id": 0, "num-partitions": 1}, RunConfig(partition="iid"), "0")
    from sklearn.datasets import load_digits

    samples = data.samples(data.split.train, "cpu")
    raw = load_digits().images[data.split.train]
    expected = (raw - data.dataset.mean[0]) / data.dataset.std[0]
    np.testing.assert_allclose(samples.x[:, 0].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert samples.x.dtype == torch.float32 and samples.y.dtype == torch.int64
    assert abs(float(samples.x.mean())) < 0.5 and 0.3 < float(samples.x.std()) < 3
    assert data.dataset.x.dtype == np.uint8 or data.dataset.x.max() == 16  # the stored samples stay as they are


# --- data of its own -------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(60, 5)), y=rng.integers(0, 3, 60))
    return {"client-name": "ward-7", "data": str(tmp_path / "mine.npz")}


def test_own_data_by_node_configuration(own):
    where = context(own, task="own", classes="3", input_shape="5")
    answer = check_hello(ask("query.hello", RecordDict(), where))
    assert (answer.name, answer.num_partitions) == ("ward-7", 0)
    assert answer.num_train + answer.num_validation + answer.num_test == 60 and answer.num_test == 12
    order = TrainOrder(1, ("classifier",), phase_parts=("classifier",), phase_epochs=(2,))
    model = build_network("linear", (5,), 3, seed=0).dump()
    reply = ask("train", Sent(order, pack(model)).content(), where)
    assert reply.content.metric_records[METRICS]["num-samples"] == answer.num_train
    assert reply.content.array_records[MODEL]["classifier"].shape == (18,)


@pytest.mark.parametrize(
    ("task", "classes", "shape"), [("own", "3", "7"), ("own", "2", "5"), ("digits", "", ""), ("heart", "", "")]
)
def test_own_data_that_do_not_fit_the_task(task, classes, shape, own):
    with pytest.raises((DataError, ConfigError), match=r"mine\.npz"):
        Participant.of(context(own, task=task, classes=classes, input_shape=shape, model="linear")).data()


# --- answers ---------------------------------------------------------------------------------------------------------


def train_order(server_round: int, **more) -> TrainOrder:
    return TrainOrder(server_round, phase_parts=("extractor+norm+classifier",), phase_epochs=(1,), **more)


@pytest.mark.parametrize("where", ["files", "context"])
def test_own_parts_are_overwritten_by_those_sent(where, tmp_path):
    node = {"partition-id": 1, "num-partitions": 4} | ({"state-dir": str(tmp_path)} if where == "files" else {})
    client = context(node, model="mlp")
    start = build_network("mlp", (1, 8, 8), 10, seed=5).dump()
    order = train_order(1, upload=("extractor",), keep=("classifier",))
    first = ask("train", Sent(order, pack(start)).content(), client)
    assert set(first.content.array_records[MODEL]) == {"extractor"}
    own = Participant.of(client).store.own_parts(2)
    assert set(own) == {"classifier"} and not np.array_equal(own["classifier"], start["classifier"])
    # Tested with the own classifier and the extractor that was sent.
    answer = ask(
        "evaluate", Sent(EvaluateOrder(1, ("personal",)), pack({"extractor": start["extractor"]})).content(), client
    )
    network = build_network("mlp", (1, 8, 8), 10, seed=0)
    network.load({"extractor": start["extractor"], "classifier": own["classifier"]})
    expected = evaluate(network, Participant.of(client).test_samples())
    got = dict(answer.content.metric_records[METRICS])
    assert {key: got[f"personal.{key}"] for key in expected} == pytest.approx(expected)
    if where == "files":
        with safe_open(tmp_path / "models" / "1.safetensors", framework="numpy") as file:
            assert np.array_equal(file.get_tensor("classifier.bias"), own["classifier"][-10:])
            facts = file.metadata()
        digits = load_digits()
        assert json.loads(facts.pop("mean")) == pytest.approx([digits.data.mean()], abs=1e-3)
        assert json.loads(facts.pop("std")) == pytest.approx([digits.data.std()], abs=1e-3)
        assert json.loads(facts.pop("labels")) == list("0123456789")
        assert facts == {
            "client": "1",
            "task": "digits",
            "kind": "classification",
            "model": "mlp",
            "input-shape": "1x8x8",
            "outputs": "10",
            "buffers": "average",
            "group-norm": "false",
        }


def test_the_same_order_twice_gives_the_same_answer(tmp_path):
    client = context({"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path)}, model="lenet5")
    start = build_network("lenet5", (1, 8, 8), 10, seed=5).dump()
    message = Sent(train_order(1, upload=tuple(start), keep=("classifier",)), pack(start)).content()
    one, two = (unpack(ask("train", message, client).content.array_records[MODEL]) for _ in range(2))
    assert all(np.array_equal(one[part], two[part]) for part in start)
    later = ask("train", Sent(train_order(2, upload=tuple(start), keep=("classifier",)), pack(start)).content(), client)
    assert not np.array_equal(unpack(later.content.array_records[MODEL])["extractor"], one["extractor"])


def test_a_test_does_not_change_what_is_kept(tmp_path):
    client = context({"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path)})
    start = build_network("linear", (1, 8, 8), 10, seed=5).dump()
    ask("train", Sent(train_order(1, upload=(), keep=("classifier",)), pack(start)).content(), client)
    before = (tmp_path / "state" / "1.safetensors").read_bytes()
    ask("evaluate", Sent(EvaluateOrder(1, ("global", "personal"), fine_tune_epochs=2), pack(start)).content(), client)
    assert (tmp_path / "state" / "1.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"head": np.zeros(3, np.float32)}, r"unknown parts \['head'\]"),
        ({"classifier": np.zeros(3, np.float32)}, r"classifier: expected float32 \(650,\), got float32 \(3,\)"),
        ({"classifier": np.full(650, np.nan, np.float32)}, "650 of 650 numbers are not finite"),
    ],
)
def test_what_the_server_sends_is_checked(parts, reason):
    network = build_network("linear", (1, 8, 8), 10, seed=0)
    with pytest.raises(Refused, match=reason):
        received_parts(RecordDict({MODEL: pack(parts)}), network)


def test_an_answer_passes_the_checks_of_the_server():
    client = context()
    start = build_network("linear", (1, 8, 8), 10, seed=5).dump()
    answer = ask("train", Sent(train_order(1, upload=("classifier",)), pack(start)).content(), client)
    from coterie.wire.checks import Layout

    checked = check_update(answer, Layout(start, np.empty(0, int), classifier_shape=(10, 64)), ("classifier",))
    assert json.dumps(checked.metrics) and checked.num_samples > 0
