"""The ServerApp as Flower calls it."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
from flwr.app import Context, RecordDict

import coterie
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import app, checked_config, one_line_errors
from coterie.strategies.registry import default_config
from coterie.tasks.models import ModelError
from coterie.tasks.samples import DataError
from coterie.wire.errors import ConfigError, RunFailed


def call(tmp_path, **values) -> None:
    config = {
        **default_config(),
        "model": "linear",
        "num-server-rounds": 1,
        "run-dir": str(tmp_path / "run"),
        "num-clients": 3,
        **values,
    }
    grid = SimulationGrid(Workers(0), 3, config, str(tmp_path / "clients"))
    app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))


def test_a_run(tmp_path):
    call(tmp_path)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["clients"] == ["0", "1", "2"] and result["not-tested"] == {}
    assert len(list((tmp_path / "clients" / "models").iterdir())) == 3


MISTAKES = [
    ({"strategy": "fedavgg"}, ConfigError, "did you mean 'fedavg'"),
    ({"task": "zzz"}, DataError, "task = 'zzz': unknown"),
    ({"model": "zzz"}, ModelError, "model = 'zzz': unknown"),
    ({"num-server-rounds": 0}, ConfigError, "num-server-rounds = 0"),
    ({"no-such-key": 0}, ConfigError, "no-such-key: there is no such key"),
    ({"task": "own", "input-shape": "13"}, DataError, "task = 'own'"),
]


@pytest.mark.parametrize(("values", "error", "message"), MISTAKES)
def test_mistakes_leave_nothing(values, error, message, tmp_path):
    with pytest.raises(error, match=message):
        call(tmp_path, **values)
    assert list(tmp_path.iterdir()) == []


def test_clients_that_do_not_come(tmp_path):
    with pytest.raises(RunFailed, match=r"num-clients = 5: but the clients hold partitions of \[3\]"):
        call(tmp_path, **{"num-clients": 5, "join-timeout": 0.2})
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (ConfigError("seed = -1: no"), True),
        (RunFailed("round 1: no"), True),
        (OSError(28, "No space left"), True),
        (KeyError("bug"), False),
    ],
)
def test_mistakes_are_logged_without_their_stack(error, short):
    raised = (type(error), error, None)
    record = logging.LogRecord("flwr", logging.ERROR, "x.py", 1, "ServerApp raised %s", ("an exception",), raised)
    assert one_line_errors(record)
    assert (record.getMessage() == str(error)) == short and (record.exc_info is None) == short


def test_an_existing_run_directory(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        call(tmp_path)
    assert list((tmp_path / "run").iterdir()) == []


def test_every_key_is_filled_in():
    assert checked_config({}) == default_config() | {"strategy": "coterie", "model": "lenet5"}
    assert checked_config({"fedprox.mu": 0.5})["fedprox.mu"] == 0.5


def test_what_flower_loads():
    import coterie.client.app as client_module
    import coterie.serving as server_module

    assert coterie.server_app is server_module.app and coterie.client_app is client_module.app
    with pytest.raises(AttributeError, match="no attribute 'other_app'"):
        coterie.other_app  # noqa: B018


def test_another_copy_of_coterie_does_not_answer_for_this_one(tmp_path):
    """As in Ray's actors: another copy comes first on the path and is imported already, then our ClientApp arrives."""
    other = tmp_path / "coterie"
    other.mkdir()
    (other / "__init__.py").write_text("stranger = True")
    arrives = cloudpickle.dumps(coterie._client_app_loader())
    script = (
        "import sys, pickle\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import coterie\nassert coterie.stranger\n"
        f"app = pickle.loads(bytes.fromhex({arrives.hex()!r}))()\n"
        "import coterie, coterie.client.app\n"
        "assert coterie.client.app.app is app and not hasattr(coterie, 'stranger')\n"
        "print(coterie.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == Path(coterie.__file__).resolve()
