"""The library where people call it: in a notebook, in threads, after a fork, in a spawned process, in a bare script."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import coterie

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"num_server_rounds": 2, "num_clients": 3, "local_epochs": 1, "model": "mlp"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("places") / "run"
    return result_of(coterie.run("fedper", run_dir=path, workers=0, progress=False, **KEYS).path)


def result_of(path: Path) -> bytes:
    return (path / "result.json").read_bytes()


def test_a_notebook(tmp_path, expected, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    sources = [
        f"import coterie\nrun = coterie.run('fedper', run_dir='a', workers=2, **{KEYS!r})",
        "run",
        "coterie.run(num_server_round=3)",
        "coterie.compare(['local', 'fedavg'], task='digits', num_server_rounds=1, model='linear', num_clients=3)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=300, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    ran, shown, mistaken, compared = (cell.outputs for cell in book.cells)
    (bar,) = ran  # changed in place, and nothing else was printed
    assert bar.output_type == "display_data" and '<progress value="2" max="2">' in bar.data["text/html"]
    assert "3 clients, " in bar.data["text/html"] and "personal.accuracy 0." in bar.data["text/html"]
    assert result_of(tmp_path / "a") == expected
    accuracy = coterie.open_run(tmp_path / "a").result["mean-test-accuracy"]["personal"]
    assert f"<td>{accuracy:.4f}</td>" in shown[0].data["text/html"] and f"{accuracy:.4f}" in shown[0].data["text/plain"]
    assert mistaken[0].output_type == "error" and mistaken[0].ename == "ConfigError"
    assert [output.output_type for output in compared] == ["display_data", "display_data", "execute_result"]
    assert "Test accuracy on digits" in compared[2].data["text/html"]


@pytest.mark.parametrize("workers", [0, 2])
def test_two_threads_at_once(tmp_path, expected, workers):
    def go(name: str) -> None:
        coterie.run("fedper", run_dir=tmp_path / name, workers=workers, progress=False, **KEYS)

    threads = [threading.Thread(target=go, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result_of(tmp_path / name) for name in ("a", "b")] == [expected] * 2


BARE = """
import multiprocessing, threading
import coterie, torch

def go(name, workers=None, observers=()):
    coterie.run("fedper", run_dir=name, workers=workers, progress=False, observers=observers, **KEYS)

def refused():
    try:
        go("never", 2)
    except coterie.ConfigError as error:
        assert "daemonic" in str(error)
        raise SystemExit(7)

torch.set_num_threads(2)
torch.rand(2000, 2000) @ torch.rand(2000, 2000)  # its threads are not there after a fork
go("plain", 2)
go("again", 0)
fork = multiprocessing.get_context("fork")
for arguments, daemon in ((("forked", 2), False), (("forked-alone", 0), False), (("daemon",), True)):
    child = fork.Process(target=go, args=arguments, daemon=daemon)
    child.start()
    child.join(60)
    assert child.exitcode == 0, arguments
child = fork.Process(target=refused, daemon=True)
child.start()
child.join()
assert child.exitcode == 7
begun, go_on = threading.Event(), threading.Event()

class Waiting(coterie.Observer):
    def round_ended(self, event, state):
        begun.set()
        go_on.wait()

thread = threading.Thread(target=go, args=("thread", 0, [Waiting()]))
thread.start()
begun.wait()
child = fork.Process(target=go, args=("forked-meanwhile", 2))  # while a thread of the parent is in a run
child.start()
child.join(60)
go_on.set()
thread.join()
assert child.exitcode == 0
"""
GUARDED = """
import multiprocessing
import coterie

def go(name, workers):
    coterie.run("fedper", run_dir=name, workers=workers, progress=False, **KEYS)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=go, args=("spawned", 2))
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize(
    ("script", "runs"),
    [
        (BARE, {"plain", "again", "forked", "forked-alone", "daemon", "thread", "forked-meanwhile"}),
        (GUARDED, {"spawned"}),
    ],
    ids=["no guard, forks", "spawn"],
)
def test_scripts(tmp_path, expected, script, runs):
    (tmp_path / "script.py").write_text(f"KEYS = {KEYS!r}\n{script}")
    for name in ("cli", "client", "games", "runtime", "server", "strategies", "tasks", "wire"):  # the user's own
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    with open(tmp_path / "log", "w") as log:  # no pipe: what hangs would hold it open
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            timeout=200,
        )
    assert done.returncode == 0, (tmp_path / "log").read_text()
    assert {path.name: result_of(path) for path in tmp_path.iterdir() if path.is_dir()} == dict.fromkeys(runs, expected)
