"""pFedSim against its formula, worked out here from the messages alone."""

import json

import numpy as np
import pytest
from flwr.app import Message

from coterie.server.findings import found
from coterie.wire.arrays import pack, unpack
from coterie.wire.messages import METRICS, MODEL

PERSONAL = {"strategy": "pfedsim", "partition": "pathological", "num-server-rounds": 4, "pfedsim.warmup": 0.5}


def similarity_by_hand(one: np.ndarray, other: np.ndarray, classes: int) -> float:
    """Equation 3 of the paper, a class at a time."""
    total = 0.0
    for a, b in zip(one.reshape(classes, -1).astype(float), other.reshape(classes, -1).astype(float), strict=True):
        cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        total -= np.log(1 - min(max(cosine, 0.0), 1 - 1e-4))
    return total / classes


def test_every_client_gets_the_mean_of_all_extractors_by_similarity(federate):
    run = federate(**PERSONAL)
    uploaded = run.uploaded(3)  # the first personal round; all four clients take part
    classes, features = 10, 84
    names = sorted(uploaded)
    weights = {n: uploaded[n]["classifier"][: classes * features] for n in names}
    for kind in ("train", "evaluate"):
        received = run.sent(4, kind) if kind == "train" else run.sent(3, kind)
        for i in names:
            row = np.array([9.21 if i == j else similarity_by_hand(weights[i], weights[j], classes) for j in names])
            row /= row.sum()
            for part in ("extractor", "norm", "buffers"):
                mean = sum(w * uploaded[j][part].astype(float) for w, j in zip(row, names, strict=True))
                np.testing.assert_allclose(received[i][part], mean, rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(received[i]["classifier"], uploaded[i]["classifier"])  # never mixed


def test_as_in_the_paper_everybody_leaves_the_warm_up_with_the_global_model(federate):
    given = {**PERSONAL, "fraction-train": 0.5, "pfedsim.hand-over": "global"}
    run, fedavg = federate(**given), federate(**{**given, "strategy": "fedavg", "num-server-rounds": 2})
    for sent in run.sent(3).values():  # the first personal round
        for part, value in fedavg.model.items():
            np.testing.assert_array_equal(sent[part], value)
    trained, later = set(run.uploaded(3)), run.sent(4)
    for client, sent in later.items():
        own = np.array_equal(sent["classifier"], fedavg.model["classifier"])
        assert own is (client not in trained)
    ours = federate(**{**given, "pfedsim.hand-over": "last-trained"}).sent(3)
    assert any(not np.array_equal(sent["classifier"], fedavg.model["classifier"]) for sent in ours.values())


def test_warmup_of_all_rounds_is_fedavg_to_the_bit(federate):
    settings = {"num-server-rounds": 3, "fraction-train": 0.5}
    fedavg = federate(strategy="fedavg", **settings)
    pfedsim = federate(strategy="pfedsim", **settings, **{"pfedsim.warmup": 1.0})
    for part, value in fedavg.model.items():
        np.testing.assert_array_equal(pfedsim.model[part], value)
    one, other = ({**json.loads((run.path / "result.json").read_text()), "strategy": ""} for run in (fedavg, pfedsim))
    assert one == other


def test_warmup_rounds_are_fedavg_and_then_only_personal_models_are_tested(federate):
    run = federate(**PERSONAL)
    assert [event["phase"] for event in run.events] == ["warm-up", "warm-up", "personal", "personal"]
    assert "global.accuracy" in run.events[1]["mean"] and "global.accuracy" not in run.events[2]["mean"]
    assert set(run.result["models"]) == {"personal"}
    fedavg = federate(**{**PERSONAL, "strategy": "fedavg"})
    assert run.events[1]["evaluate"] == fedavg.events[1]["evaluate"]


def test_a_client_that_never_trained_has_a_personal_model(federate):
    run = federate(**{**PERSONAL, "num-clients": 10, "fraction-train": 0.1, "num-server-rounds": 3})
    trained = {name for event in run.events for name in event["train"]}
    tested = run.result["models"]["personal"]["clients"]
    assert len(trained) < 10 and set(tested) == {str(i) for i in range(10)}
    assert all("accuracy" in metrics for metrics in tested.values())
    for name in set(tested) - trained:  # the last global model, for which nobody's classifier was mixed
        received = run.sent(3, "evaluate")[name]
        np.testing.assert_array_equal(received["classifier"], run.sent(1, "evaluate")[name]["classifier"])


def test_a_single_client_in_a_round(federate):
    run = federate(**{**PERSONAL, "num-clients": 2, "fraction-train": 0.5})
    assert [len(event["train"]) for event in run.events] == [1, 1, 1, 1]


def test_a_nan_client_harms_nobody(federate):
    def poison(asked: Message, answered: Message, client: str) -> Message:
        if client == "2" and asked.metadata.message_type == "train" and asked.metadata.group_id in ("2", "3"):
            parts = unpack(answered.content.array_records[MODEL])
            answered.content[MODEL] = pack(parts | {"classifier": np.full_like(parts["classifier"], np.nan)})
        return answered

    run = federate(tamper=poison, **PERSONAL)
    assert "not finite" in run.events[2]["left-out"]["2"] and run.events[3]["left-out"] == {}
    assert set(run.events[3]["train"]) == {"0", "1", "2", "3"}
    assert all(np.isfinite(value).all() for value in run.model.values())


def test_identical_classifiers_and_clients_without_a_step(federate):
    """All clients send the very model they got: similarities are as large as they can be, and still numbers."""

    def lazy(asked: Message, answered: Message, client: str) -> Message:
        if asked.metadata.message_type == "train":
            answered.content[MODEL] = asked.content.array_records[MODEL]
            answered.content.metric_records[METRICS]["steps"] = 0
        return answered

    run = federate(tamper=lazy, **PERSONAL)
    matrix = np.array(list(run.events[-1]["similarity"].values()))
    np.testing.assert_allclose(matrix, 9.21, atol=0.001)
    models = run.sent(4, "evaluate")
    for received in models.values():
        for part, value in received.items():
            np.testing.assert_allclose(value, models["0"][part], rtol=1e-5)


def test_models_in_memory_and_on_disk_give_the_same_result(federate):
    one = federate(**PERSONAL, **{"pfedsim.store": "memory"})
    other = federate(**PERSONAL, **{"pfedsim.store": "disk"})
    assert (one.path / "result.json").read_bytes() == (other.path / "result.json").read_bytes()
    assert (other.path / "pool" / "extractor.rows").stat().st_size > 0 and not (one.path / "pool").exists()


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_state_can_be_loaded_again(federate, store, tmp_path):
    from coterie.server.app import initial_layout
    from coterie.strategies.registry import method_of, parse_config

    run = federate(**PERSONAL, **{"pfedsim.store": store})
    saved = json.loads((run.path / "checkpoint" / "state.json").read_text())
    config, settings = parse_config(json.loads((run.path / "config.json").read_text()))
    config = config.model_copy(update={"run_dir": str(run.path)})
    method = method_of("pfedsim")(config, settings["pfedsim"], initial_layout(config))
    method.load_state_dict({**saved, "arrays": run.model})
    last = run.uploaded(4)
    for client, parts in last.items():
        for part, value in parts.items():
            np.testing.assert_array_equal(method.pool.get(client, part), value)
    assert method.last_round == 4 and method.similarity.shape == (4, 4)
    fedavg = method_of("fedavg")(config, settings["fedavg"], initial_layout(config))
    with pytest.raises(ValueError, match="pfedsim"):
        fedavg.load_state_dict({**saved, "arrays": run.model})


def test_the_matrix_is_written_beside_the_truth(federate, tmp_path):
    """As `coterie run` does it: the matrix, its picture, and the correlation with the label overlap."""
    from coterie.cli.main import main

    with pytest.raises(SystemExit) as end:
        main(
            [
                *("run", "--strategy", "pfedsim", "--num-server-rounds", "4", "--num-clients", "6", "--workers", "0"),
                *("--run-dir", str(tmp_path / "run")),
            ]
        )
    assert end.value.code == 0
    similarity = found(tmp_path / "run")["similarity"]
    assert similarity.clients == [str(i) for i in range(6)] and similarity.values.shape == (6, 6)
    np.testing.assert_allclose(similarity.values, similarity.values.T, rtol=1e-5)
    assert '"name":"similarity"' in (tmp_path / "run" / "report.html").read_text()
    assert -1 <= similarity.facts["correlation-with-label-overlap"] <= 1


def test_statistics_that_stay_with_clients_are_not_in_the_pool(federate):
    settings = {**PERSONAL, "model": "cnn-bn", "buffers": "local", "pfedsim.store": "disk"}
    run = federate(**settings)
    assert [event["phase"] for event in run.events] == ["warm-up", "warm-up", "personal", "personal"]
    assert all(event["left-out"] == {} and event["not-tested"] == {} for event in run.events)
    weights = {"extractor", "norm", "classifier"}
    for number in range(1, 5):
        told = [*run.sent(number).values(), *run.uploaded(number).values(), *run.sent(number, "evaluate").values()]
        assert len(told) == 12 and all(set(parts) == weights for parts in told)
    assert {path.stem for path in (run.path / "pool").iterdir()} == weights
    assert not np.array_equal(run.state("0")["buffers"], run.state("1")["buffers"])
    uploaded = run.uploaded(3)
    row = np.array([similarity_by_hand(*(uploaded[n]["classifier"][:-10] for n in "0" + j), 10) for j in "0123"])
    row[0] = 9.21
    mean = sum(w * uploaded[j]["extractor"].astype(float) for w, j in zip(row / row.sum(), "0123", strict=True))
    np.testing.assert_allclose(run.sent(4)["0"]["extractor"], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("warmup", "rounds", "expected"), [(0.29, 100, 29), (0.5, 5, 2), (0.57, 100, 57), (1, 7, 7)])
def test_the_share_of_rounds_is_that_of_the_number_typed(warmup, rounds, expected):
    from coterie.server.app import initial_layout
    from coterie.strategies.registry import method_of, parse_config

    values = {"model": "mlp", "num-server-rounds": rounds, "pfedsim.warmup": warmup, "spo.explore": warmup}
    config, settings = parse_config(values)
    layout = initial_layout(config)
    assert method_of("pfedsim")(config, settings["pfedsim"], layout).warmup_rounds == expected
    assert method_of("ce")(config, settings["spo"], layout).exploring == expected
