"""The ServerApp as Flower calls it."""

import json
import logging

import pytest
from flwr.app import Context, RecordDict

import coterie
from cli.simulation import SimulationGrid, Workers
from server.app import app, checked_config
from strategies.registry import default_config


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategy": "fedavgg"}, "did you mean 'fedavg'"),
        ({"task": "zzz"}, "task = 'zzz': unknown"),
        ({"model": "zzz"}, "model = 'zzz': unknown"),
        ({"num-server-rounds": 0}, "num-server-rounds = 0"),
        ({"no-such-key": 0}, "no-such-key: there is no such key"),
        ({"task": "own"}, "task = 'own'"),
        ({"num-clients": 5, "join-timeout": 0.2}, "3 of 5 clients joined"),
    ],
)
def test_mistakes_end_in_one_line_of_the_log(values, message, tmp_path, caplog):
    logging.getLogger("flwr").propagate = True
    with caplog.at_level("ERROR", logger="flwr"), pytest.raises(SystemExit) as caught:
        call(tmp_path, **values)
    assert caught.value.code == 1
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and message in errors[0] and "\n" not in errors[0]
    assert not (tmp_path / "run" / "result.json").exists()


def test_an_existing_run_directory(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit):
        call(tmp_path)
    assert list((tmp_path / "run").iterdir()) == []


def test_every_key_is_filled_in():
    assert checked_config({}) == default_config() | {"model": "lenet5"}
    assert checked_config({"fedprox.mu": 0.5})["fedprox.mu"] == 0.5


def test_what_flower_loads():
    import client.app as client_module
    import server.app as server_module

    assert coterie.server_app is server_module.app and coterie.client_app is client_module.app
    with pytest.raises(AttributeError, match="no attribute 'other_app'"):
        coterie.other_app  # noqa: B018


def test_modules_of_the_same_name_from_elsewhere_are_thrown_out(tmp_path, monkeypatch):
    """The code of the app that Flower unpacked comes first, whatever was imported before."""
    import sys

    for name in ("client", "cli"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "__init__.py").write_text("stranger = True")
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in coterie.PACKAGES}
    path = list(sys.path)
    try:
        for name in kept:
            del sys.modules[name]
        sys.path.insert(0, str(tmp_path / "elsewhere"))
        import client as stranger

        assert stranger.stranger
        coterie.use_own_code()
        import client as ours

        assert not hasattr(ours, "stranger") and sys.path[0] == str(coterie.app_directory())
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in coterie.PACKAGES]:
            del sys.modules[name]
        sys.modules.update(kept)
        sys.path[:] = path
