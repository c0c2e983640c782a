"""`flwr run .` in Flower's simulation: our code and no other, all clients from the first round, mistakes in one line.

The daemon here is the one that `flwr run` starts by itself, but on a free port: the usual port may be in use.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from coterie.runtime.processes import free_ports
from coterie.wire.fingerprint import DOOR, PACKAGES

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def start_daemon(sandbox: Any, directory: Path) -> None:
    port = free_ports(1)[0]
    command = [
        "flower-superlink",
        "--insecure",
        "--simulation",
        "--isolation",
        "subprocess",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    daemon = sandbox.start(command, "daemon.log", directory)
    sandbox.wait_for("Uvicorn running", "daemon.log", daemon)
    config = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (sandbox.flower_home / "config.toml").write_text(config)


def flwr_run(sandbox: Any, run_config: str, clients: int = 10) -> str:
    federation = f"num-supernodes={clients} client-resources-num-cpus=1"
    command = [
        "flwr",
        "run",
        str(ROOT),
        "here",
        "--stream",
        "--federation-config",
        federation,
        "--run-config",
        run_config,
    ]
    done = sandbox.run(command)
    return str(done.stdout + done.stderr)


def status(sandbox: Any) -> str:
    listed = sandbox.run(["flwr", "list", "here", "--format", "json"]).stdout
    return str(json.loads(listed[listed.index("{") :])["runs"][0]["status"])


def app_with_the_same_names(directory: Path) -> None:
    for package in PACKAGES:
        (directory / package).mkdir(parents=True)
        (directory / package / "__init__.py").write_text("raise RuntimeError('code of another app')\n")


def other_copy_of_coterie(directory: Path) -> None:
    directory.mkdir(parents=True)
    for package in (DOOR, *PACKAGES):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", directory)
    changed = directory / "client" / "app.py"
    changed.write_text(changed.read_text() + "\nraise RuntimeError('code of another copy')\n")


@pytest.mark.parametrize("other", [app_with_the_same_names, other_copy_of_coterie])
@pytest.mark.parametrize("place", ["other", "apps/other"])
def test_a_daemon_started_elsewhere_runs_our_code_with_all_clients(sandbox: Any, other: Any, place: str) -> None:
    other(sandbox.path / place)
    start_daemon(sandbox, sandbox.path / place)
    run_dir = sandbox.path / "run"
    output = flwr_run(sandbox, f"model='linear' num-server-rounds=2 run-dir='{run_dir}'")
    assert "code of another" not in output, output
    assert (run_dir / "result.json").exists(), output
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert [len(event["train"]) for event in events] == [10, 10]  # Flower starts runs before all clients are there
    assert status(sandbox) == "finished:completed"


@pytest.mark.parametrize(
    ("run_config", "message"),
    [
        ("strategy='fedavgg'", "strategy = 'fedavgg': unknown, did you mean 'fedavg'?"),
        ("dirichlet-alpha=0.0", "dirichlet-alpha = 0.0: must be greater than 0"),
    ],
)
def test_a_wrong_value_ends_the_run_with_one_line(sandbox: Any, run_config: str, message: str) -> None:
    start_daemon(sandbox, sandbox.path)
    output = flwr_run(sandbox, run_config, clients=2)
    assert message in output
    assert "Traceback" not in output
    assert status(sandbox) == "finished:failed"
    assert not (sandbox.path / "runs").exists()


def test_an_unknown_key_is_refused(sandbox: Any) -> None:
    start_daemon(sandbox, sandbox.path)
    assert "Invalid run configuration" in flwr_run(
        sandbox, "no-such-key=1", clients=2
    )  # by Flower, which does not name it
