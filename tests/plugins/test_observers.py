"""Observers by name: TensorBoard and MLflow with the real libraries, entry points, and what becomes of bad ones."""

import builtins
import struct

import pytest

import coterie
from coterie.server import observers
from coterie.server.observers import OURS, makers, observers_of
from coterie.strategies.observer import Observer
from coterie.wire.errors import ConfigError, RunFailed

FEW = {"num_clients": 3, "num_server_rounds": 2, "model": "linear", "local_epochs": 1, "workers": 0, "progress": False}
TOLD: list[tuple] = []


class Listener(Observer):
    def __init__(self, run_dir, config):
        TOLD.append(("made", run_dir, config["task"]))

    def started(self, clients):
        TOLD.append(("started", list(clients)))

    def round_ended(self, event, state):
        TOLD.append(("round", event["round"]))

    def ended(self, result):
        TOLD.append(("ended", result["rounds"]))

    def failed(self, error):
        TOLD.append(("failed", str(error)))


class Broken(Listener):
    def round_ended(self, event, state):
        super().round_ended(event, state)
        raise OSError("the tracker is away")


@pytest.fixture
def entry_points(install):
    TOLD.clear()
    return lambda **makers: install("coterie.observers", **makers)


def test_an_installed_observer_is_told_everything(entry_points, tmp_path):
    entry_points(listener=Listener)
    run = coterie.run("fedavg", run_dir=tmp_path / "run", observers="listener", **FEW)
    expected = [("made", run.path, "digits"), ("started", ["0", "1", "2"]), ("round", 1), ("round", 2), ("ended", 2)]
    assert expected == TOLD and run.config["observers"] == "listener"


def test_it_is_told_of_failures(entry_points, tmp_path):
    entry_points(listener=Listener)
    with pytest.raises(RunFailed) as caught:
        coterie.run("fedavg", run_dir=tmp_path / "run", observers="listener", learning_rate=3e38, **FEW)
    assert TOLD[-1] == ("failed", str(caught.value)) and ("ended", 2) not in TOLD


def test_an_observer_that_fails_harms_nobody(entry_points, tmp_path, caplog):
    entry_points(broken=Broken, listener=Listener)
    run = coterie.run("fedavg", run_dir=tmp_path / "run", observers="broken,listener", **FEW)
    assert run.result["rounds"] == 2 and TOLD.count(("round", 1)) == 2 and TOLD.count(("round", 2)) == 1
    assert TOLD.count(("ended", 2)) == 1


def test_an_observer_that_cannot_be_made_harms_nobody(entry_points, tmp_path):
    def refuse(run_dir, config):
        raise OSError("no server")

    entry_points(refuse=refuse)
    (observer,) = observers_of("refuse", tmp_path, {})
    observer.started({})


def test_unknown_and_missing_ones_are_refused_before_anything_starts(entry_points, tmp_path, monkeypatch):
    entry_points(listener=Listener, bad=ZeroDivisionError("no"))
    with pytest.raises(ConfigError, match="observers = 'tensorbord': unknown, did you mean 'tensorboard'"):
        coterie.run("fedavg", run_dir=tmp_path / "run", observers="tensorbord", **FEW)
    with pytest.raises(ConfigError, match=r"'bad': the entry point .* cannot be loaded"):
        coterie.run("fedavg", run_dir=tmp_path / "run", observers="listener, bad", **FEW)
    monkeypatch.setattr(observers, "import_module", missing)
    with pytest.raises(ConfigError, match=r"mlflow needs nowhere, which is not here; pip install 'coterie\[mlflow\]'"):
        coterie.run("fedavg", run_dir=tmp_path / "run", observers="mlflow", **FEW)
    assert not (tmp_path / "run").exists() and makers("") == {}


def missing(name):
    return builtins.__import__("nowhere")


# --- ours, with the real libraries -----------------------------------------------------------------------------------


def scalars(path):
    """The scalars in a file of TensorBoard: records of (length, checksum, event, checksum)."""
    from tensorboardX.proto.event_pb2 import Event

    data, start, found = path.read_bytes(), 0, {}
    while start < len(data):
        (length,) = struct.unpack("<Q", data[start : start + 8])
        event = Event.FromString(data[start + 12 : start + 12 + length])
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found[value.tag, event.step] = value.simple_value
        start += 12 + length + 4
    return found


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    run = coterie.run("fedavg", run_dir=tmp_path / "run", observers="tensorboard", **FEW)
    (file,) = (run.path / "tensorboard").iterdir()
    told = scalars(file)
    for event in run.events:
        assert told["global.accuracy", event["round"]] == pytest.approx(event["mean"]["global.accuracy"])
        assert told["bytes-up", event["round"]] == sum(event["bytes-up"].values())
        assert told["left-out", event["round"]] == 0 and ("train.loss", event["round"]) in told


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # so that what the observer sets is gone afterwards
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    run = coterie.run("fedavg", run_dir=tmp_path / "run", observers="mlflow", **FEW)
    client = mlflow.MlflowClient(tracking_uri=(run.path / "mlflow").as_uri())
    (told,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert told.info.status == "FINISHED" and told.info.run_name == "run" and told.data.params["strategy"] == "fedavg"
    history = client.get_metric_history(told.info.run_id, "global.loss")
    assert {one.step: one.value for one in history} == {e["round"]: e["mean"]["global.loss"] for e in run.events}
    assert {file.path for file in client.list_artifacts(told.info.run_id)} == {
        "config.json",
        "result.json",
        "report.html",
    }


def test_mlflow_is_told_of_failures(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    with pytest.raises(RunFailed):
        coterie.run("fedavg", run_dir=tmp_path / "run", observers="mlflow", learning_rate=3e38, **FEW)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    (told,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert told.info.status == "FAILED" and told.data.tags["error"].startswith("NoQuorum: round 1")


def test_ours_are_short():
    from pathlib import Path

    folder = Path(observers.__file__).parent
    assert all(len((folder / f"{name}.py").read_text().splitlines()) < 60 for name in OURS)
