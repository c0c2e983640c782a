"""`import coterie`: run, compare, open_run, and the objects they return."""

import html
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.progress import RunProgress
from coterie.strategies.findings import Finding, as_json
from coterie.wire.fingerprint import source_files

SMALL = {"num_server_rounds": 2, "num_clients": 3, "local_epochs": 1, "model": "mlp", "workers": 0}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> coterie.Run:
    path = tmp_path_factory.mktemp("library") / "run"
    return coterie.run("fedper", run_dir=path, seed=2, progress=False, **SMALL)


# --- a run -----------------------------------------------------------------------------------------------------------


def test_what_is_in_a_run(done):
    assert done.finished and done.config["seed"] == 2 and done.config["strategy"] == "fedper"
    assert done.result == json.loads((done.path / "result.json").read_text())
    assert [event["round"] for event in done.events] == [1, 2] and done.seconds > 0
    assert done.findings == {} and done.report() == done.path / "report.html"
    accuracy = done.result["mean-test-accuracy"]["personal"]
    for told in (f"accuracy {accuracy:.4f}", "fedper on digits", "2 of 2 rounds", str(done.path)):
        assert told in repr(done)


def test_clients(done):
    assert done.clients.column("client") == ["0", "1", "2"]
    models = done.result["models"]["personal"]["clients"]
    for row in done.clients:
        sent = [event["bytes-up"][row["client"]] for event in done.events]
        assert row["bytes-up"] == sum(sent) > 0 and row["bytes-down"] > 0 and row["rounds-trained"] == 2
        assert row["personal.accuracy"] == models[row["client"]]["accuracy"]
        assert row["train-samples"] > row["test-samples"] > 0
    table = done.clients.to_pandas()
    assert list(table["client"]) == ["0", "1", "2"] and list(table.columns) == list(done.clients[0])
    assert table["personal.accuracy"].mean() == pytest.approx(done.result["mean-test-accuracy"]["personal"])


def test_a_personal_model_says_what_it_said_in_the_run(done):
    from coterie.client.data import load_client_data
    from coterie.strategies.registry import parse_config

    data = load_client_data({"partition-id": 1, "num-partitions": 3}, parse_config(done.config)[0], "1")
    found = done.model(1).predict(data.dataset.x[data.split.test])
    assert found.shape == (len(data.split.test), 10) and np.allclose(found.sum(axis=1), 1, atol=1e-5)
    right = found.argmax(axis=1) == data.dataset.y[data.split.test]
    assert right.mean() == pytest.approx(done.clients[1]["personal.accuracy"])
    with pytest.raises(
        coterie.ConfigError, match=r"client = '7': has no personal model in .*; there are those of 0, 1, 2"
    ):
        done.model("7")


def test_a_run_that_is_going_on(done, tmp_path):
    """Half a line of an event, and no result yet."""
    (tmp_path / "config.json").write_bytes((done.path / "config.json").read_bytes())
    running = coterie.open_run(tmp_path)
    assert running.events == [] and list(running.clients) == [] and "0 of 2 rounds" in repr(running)
    events = (done.path / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text(events[:-10])
    assert [event["round"] for event in running.events] == [1] and not running.finished
    assert running.clients.column("rounds-trained") == [1, 1, 1] and "fedper on digits" in running._repr_html_()
    with pytest.raises(coterie.CoterieError, match="has no result; 1 of 2 rounds"):
        _ = running.result


def test_findings(done, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    told = [
        Finding.pairs("relevance", ["a", "b"], np.array([[0.0, 0.5], [-1.0, 0.0]])),
        Finding("worth", "scores", {"a": 0.5}),
    ]
    (tmp_path / "findings.json").write_text(json.dumps(as_json(told)))
    found = coterie.open_run(tmp_path).findings
    assert list(found) == ["relevance", "worth"] and found["worth"].values == {"a": 0.5}
    assert found["relevance"].clients == ["a", "b"] and found["relevance"].values[0, 1] == 0.5


def test_html_is_escaped_and_has_all_figures(done, tmp_path):
    page = done._repr_html_()
    for figure in (done.result["mean-test-accuracy"]["personal"], *done.clients.column("personal.loss")):
        assert f"<td>{figure:.4f}</td>" in page
    for name in ("config.json", "result.json", "events.jsonl"):
        text = (done.path / name).read_text().replace('"0"', '"<b>x"')
        (tmp_path / name).write_text(text)
    strange = coterie.open_run(tmp_path)._repr_html_()
    assert html.escape("<b>x") in strange and "<b>x" not in strange


def test_pandas_is_not_needed_until_it_is(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(coterie.CoterieError, match="pip install pandas"):
        done.clients.to_pandas()


# --- arguments -------------------------------------------------------------------------------------------------------


def test_keys_and_settings(tmp_path):
    run = coterie.run(
        "fedprox",
        run_dir=tmp_path / "a",
        settings={"fedprox.mu": 0.25, "batch-size": 16},
        learning_rate=0.1,
        progress=False,
        **SMALL,
    )
    told = {key: run.config[key] for key in ("fedprox.mu", "learning-rate", "batch-size", "strategy", "num-clients")}
    assert told == {
        "fedprox.mu": 0.25,
        "learning-rate": 0.1,
        "batch-size": 16,
        "strategy": "fedprox",
        "num-clients": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_server_round": 3}, r"num_server_round: there is no such keyword, did you mean 'num_server_rounds'\?"),
        ({"worker": 3}, r"worker: there is no such keyword, did you mean 'workers'\?"),
        ({"zzz": 3}, "zzz: there is no such keyword; docs/reference/settings.md has all"),
        ({"strategy": "fedavgg"}, r"strategy = 'fedavgg': unknown, did you mean 'fedavg'\?"),
        ({"seed": "x"}, "seed = 'x': must be a valid integer"),
        ({"settings": {"fedprox.nu": 1}}, r"fedprox.nu: there is no such key, did you mean 'fedprox.mu'\?"),
        ({"workers": -1}, "workers = -1: must be 0 or more"),
        ({"data": Path("x.csv")}, "data = 'x.csv': is for your own data"),
        ({"task": "own", "data": "nowhere.csv"}, "nowhere.csv: there is no such file"),
        ({"model": "nowhere.py"}, "model = 'nowhere.py'"),
        ({"device": "cuda"}, "device = 'cuda'"),
    ],
)
def test_mistakes(arguments, expected, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(coterie.CoterieError, match=expected):
        coterie.run(**arguments)
    assert list(tmp_path.iterdir()) == [] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"seed": 3}, "seed: there is no such keyword, did you mean 'seeds'"),
        ({"strategies": []}, r"strategies = \[\]: give a list of at least one"),
        ({"strategies": "fedavg"}, "strategies = 'fedavg': give a list"),
        ({"strategies": ["fedavgg"]}, "strategies = 'fedavgg': unknown, did you mean 'fedavg'"),
        ({"seeds": [-1]}, "seed = -1"),
        ({"quick": True}, "is for presets"),
    ],
)
def test_mistakes_in_a_comparison(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(coterie.ConfigError, match=expected):
        coterie.compare(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails(tmp_path):
    useless = {"attack.kind": "nan", "attack.fraction": 1.0}
    with pytest.raises(coterie.RunFailed, match="quorum"):
        coterie.run(run_dir=tmp_path / "a", settings=useless, progress=False, **SMALL)
    assert not coterie.open_run(tmp_path / "a").finished


def test_places(tmp_path):
    with pytest.raises(coterie.ConfigError, match=r"no config\.json"):
        coterie.open_run(tmp_path)
    with pytest.raises(coterie.ConfigError, match="exists already"):
        coterie.run(run_dir=tmp_path, **SMALL)
    with pytest.raises(OSError, match="proc"):
        coterie.run(run_dir="/proc/coterie/a", **SMALL)


# --- a comparison ----------------------------------------------------------------------------------------------------


def test_compare(tmp_path, capfd):

    compared = coterie.compare(["local", "fedavg"], [1, 2], run_dir=tmp_path / "c", progress=False, **SMALL)
    assert capfd.readouterr() == ("", "")
    assert compared.path == tmp_path / "c" and compared.report.is_file()
    assert compared.rows == json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    assert [run.path.name for run in compared.runs] == ["local-seed1", "local-seed2", "fedavg-seed1", "fedavg-seed2"]
    table = compared.to_pandas().set_index("strategy")
    values = [run.result["mean-test-accuracy"]["personal"] for run in compared.runs[2:]]
    assert table.loc["fedavg", "personal.accuracy"] == pytest.approx(np.mean(values))
    assert table.loc["fedavg", "personal.accuracy-std"] == pytest.approx(np.std(values, ddof=1))
    assert f"{100 * np.mean(values):.2f} ± " in compared._repr_html_()


def test_a_failed_method_is_told_of_in_its_row(tmp_path):
    useless = {"attack.kind": "nan", "attack.fraction": 1.0}
    compared = coterie.compare(["fedavg", "local"], run_dir=tmp_path / "c", settings=useless, progress=False, **SMALL)
    broken, whole = compared.rows
    assert "quorum" in broken["failed"]["1"] and "failed" not in whole and len(compared.runs) == 1
    assert "1 of 1 failed" in compared._repr_html_()


def test_a_preset(tmp_path):
    compared = coterie.compare(
        ["local"], preset="spo-synthetic", quick=True, run_dir=tmp_path / "c", progress=False, **SMALL
    )
    assert compared.rows.column("cell") == ["few-samples", "many-samples"] and len(compared.tables) == 2
    assert compared.runs[0].config["evaluate-every"] == 30 and compared.runs[0].config["num-clients"] == 3


# --- manners ---------------------------------------------------------------------------------------------------------


class Noted(coterie.Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, clients) -> None:
        self.heard.append(f"{len(clients)} clients")

    def round_ended(self, event, state) -> None:
        self.heard.append(f"round {event['round']}")


def test_observers_and_a_line_per_round(tmp_path, capfd):
    noted = Noted()
    coterie.run(run_dir=tmp_path / "a", observers=[noted], **SMALL)
    assert noted.heard == ["3 clients", "round 1", "round 2"]
    out, err = capfd.readouterr()
    assert out == "" and re.findall(r"^coterie on digits: (3 clients|round \d/2)", err, re.M) == [
        "3 clients",
        "round 1/2",
        "round 2/2",
    ]


def test_a_bar_in_a_terminal(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    coterie.run(run_dir=tmp_path / "a", **SMALL)
    err = capfd.readouterr().err
    assert "2/2" in re.sub(r"\x1b\[[^m]*m", "", err) and "done" in err and "round 1/2 " not in err


def test_a_bar_is_not_drawn_for_every_client_of_thousands(monkeypatch):
    clock = 100.0
    monkeypatch.setattr("coterie.progress.time.monotonic", lambda: clock)

    class Counted(RunProgress):
        drawn: list[float] = []  # noqa: RUF012

        def show(self, completed: float, doing: str) -> None:
            self.drawn.append(completed)

    progress = Counted("a", 2)
    for done in range(1000):
        clock += 0.001
        progress.progress(1, "train", done + 1, 1000)
    progress.finished(1)
    assert 9 <= len(progress.drawn) <= 12 and progress.drawn[-1] == 1 and sorted(progress.drawn) == progress.drawn


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_the_process_is_as_it_was(tmp_path, workers, fails, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    def state():
        loggers = [logging.getLogger(name) for name in ("", "flwr", "coterie")]
        return [(list(logger.handlers), logger.level, logger.filters[:], logger.disabled) for logger in loggers]

    old, environment = state(), dict(os.environ)
    try:
        settings = {"attack.kind": "nan", "attack.fraction": 1.0} if fails else {}
        try:
            coterie.run(run_dir=tmp_path / "a", settings=settings, progress=False, **{**SMALL, "workers": workers})
        except coterie.RunFailed:
            assert fails
        assert state() == old and dict(os.environ) == environment
        assert torch.get_num_threads() == 2 and torch.equal(torch.rand(3), expected)
    finally:
        torch.set_num_threads(before)


def test_importing_is_cheap_names_are_there_and_no_command_is_loaded():
    code = (
        "import sys, coterie\n"
        "heavy = {'torch', 'flwr', 'numpy', 'rich', 'coterie.simulate'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert set(coterie.__all__) <= set(dir(coterie))\n"
        "import coterie.comparison, coterie.deploy, coterie.runs, coterie.simulate\n"  # must not hide the functions
        "assert callable(coterie.run) and callable(coterie.compare) and callable(coterie.open_run)\n"
        "assert all(hasattr(coterie, name) for name in coterie.__all__)\n"
        "commands = [name for name in sys.modules if (name + '.').startswith('coterie.cli.')]\n"
        "assert not commands, commands\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_no_command_is_needed():
    files = {**source_files(), **{f"benchmarks/{path.name}": path for path in (ROOT / "benchmarks").glob("*.py")}}
    command = re.compile(r"^\s*(from|import) coterie(\.| import )cli\b", re.M)
    users = {name for name, path in files.items() if command.search(path.read_text())}
    assert {name for name in users if name.split("/")[0] != "cli"} == {"coterie/__main__.py"}
