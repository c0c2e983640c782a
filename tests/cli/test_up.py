"""`coterie up`: real processes, from the first to the last."""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.main import main
from coterie.runtime.keys import make_keys
from coterie.runtime.processes import free_ports
from coterie.server.rundir import begun_run_dir, new_run_dir
from coterie.wire.errors import ConfigError

SMALL = ("--clients", "2", "--num-server-rounds", "2", "--model", "mlp", "--strategy", "fedper")


@pytest.fixture(scope="module")
def finished(make_sandbox: Callable[[], Any]) -> tuple[Any, subprocess.CompletedProcess[str]]:
    """One federation of two clients, run to its end, at a path that needs quotation marks."""
    box = make_sandbox()
    return box, box.coterie("up", *SMALL, "--run-dir", "run of two")


def test_a_run_ends_well_and_leaves_no_process(finished: tuple[Any, subprocess.CompletedProcess[str]]) -> None:
    box, done = finished
    assert done.returncode == 0, done.stderr
    assert box.left() == []
    assert "fedper on digits, 2 rounds, seed 1" in done.stdout
    assert "round 1/2:" in done.stderr and "round 2/2:" in done.stderr
    assert f"run directory: {box.path / 'run of two'}" in done.stderr


def test_all_of_the_run_is_in_its_directory(finished: tuple[Any, subprocess.CompletedProcess[str]]) -> None:
    run_dir = finished[0].path / "run of two"
    assert {path.name for path in run_dir.iterdir()} == {
        "checkpoint",
        "checkpoint.previous",
        "clients",
        "config.json",
        "events.jsonl",
        "keys",
        "logs",
        "report.html",
        "result.json",
        "status.json",
    }
    assert sorted(path.name for path in (run_dir / "logs").iterdir()) == [
        "client-0.log",
        "client-1.log",
        "executor.log",
        "serverapp.log",
        "superlink.log",
    ]
    assert "round 2/2:" in (run_dir / "logs" / "serverapp.log").read_text()
    for i in ("0", "1"):
        assert (run_dir / "clients" / i / "models" / f"{i}.safetensors").exists()
    for name in ("keys", "logs", "clients", "clients/0"):
        assert stat.S_IMODE((run_dir / name).stat().st_mode) == 0o700


def test_tls_and_client_keys_were_used(finished: tuple[Any, subprocess.CompletedProcess[str]]) -> None:
    log = (finished[0].path / "run of two" / "logs" / "superlink.log").read_text()
    assert "https://127.0.0.1" in log
    assert "SuperNode authentication is disabled" not in log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_same_seed_same_result_simulated_and_as_processes(
    finished: tuple[Any, subprocess.CompletedProcess[str]], workers: str
) -> None:
    box, _ = finished
    done = box.coterie(
        "run", *("--num-clients" if a == "--clients" else a for a in SMALL), "--workers", workers, "--run-dir", workers
    )
    assert done.returncode == 0, done.stderr
    assert (box.path / workers / "result.json").read_bytes() == (box.path / "run of two" / "result.json").read_bytes()


def test_ctrl_c_ends_all(sandbox: Any) -> None:
    up = sandbox.start_coterie(
        "up", "--clients", "2", "--model", "linear", "--num-server-rounds", "50", "--run-dir", "run"
    )
    sandbox.wait_for("2 clients, ", "coterie.log", up)
    assert len(sandbox.left()) >= 8  # this command, the SuperLink, the executor, the ServerApp, two clients of two
    up.send_signal(signal.SIGINT)
    assert up.wait(timeout=30) == 130
    assert sandbox.left() == []
    last = sandbox.read("coterie.log").splitlines()[-1]
    path = sandbox.path / "run"
    assert last == f"error: stopped by SIGINT; finished rounds and logs are in {path}; `coterie resume {path}` goes on"
    assert "Traceback" not in sandbox.read("coterie.log")


@pytest.mark.slow
def test_a_failed_run_is_reported_with_its_reason(sandbox: Any) -> None:
    done = sandbox.coterie("up", "--clients", "2", "--model", "linear", "--device", "cuda:99", "--run-dir", "run")
    assert done.returncode not in (0, 130)
    last = done.stderr.splitlines()[-1]
    assert (
        last.startswith("error: 0 of 2 clients joined")
        and "cuda:99" in last
        and str(sandbox.path / "run" / "logs") in last
    )
    assert "Traceback" not in done.stderr
    assert sandbox.left() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategy", "nope"), "strategy = 'nope': unknown"),
        (("--dirichlet-alpha", "0", "--partition", "dirichlet"), "dirichlet-alpha = 0.0"),
        (("--clients", "100000"), "100000"),
        (("--run-dir", "."), "run-dir = '.': exists already"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(SystemExit) as ended:
        main(["up", *arguments])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_strangers_are_refused_and_sigterm_ends_all(sandbox: Any) -> None:
    control_port, fleet_port = free_ports(2)
    ports = ("--control-port", str(control_port), "--fleet-port", str(fleet_port))
    up = sandbox.start_coterie(
        "up", "--clients", "2", "--model", "linear", "--num-server-rounds", "50", "--run-dir", "run", *ports
    )
    sandbox.wait_for("2 clients, ", "coterie.log", up)
    make_keys(sandbox.path / "strange", ["0"])
    ours = sandbox.path / "run" / "keys"
    tls = ("--root-certificates", str(ours / "ca.crt"))
    key = "--auth-supernode-private-key"
    strangers = {
        "plain text": ("Socket closed", "--insecure"),
        "no key": ("This key is not registered", *tls),
        "unregistered key": ("This key is not registered", *tls, key, str(sandbox.path / "strange" / "clients" / "0")),
        "key in use": ("Failed to activate SuperNode", *tls, key, str(ours / "clients" / "0")),
        "other authority": (
            "CERTIFICATE_VERIFY_FAILED",
            "--root-certificates",
            str(sandbox.path / "strange" / "ca.crt"),
        ),
    }
    for name, (reason, *options) in strangers.items():
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{fleet_port}", "--port", str(free_ports(1)[0])]
        stranger = sandbox.start([*command, "--max-retries", "1", *options], f"{name}.log")
        assert stranger.wait(timeout=60) != 0, name
        assert reason in sandbox.read(f"{name}.log") and "SuperNode ID" not in sandbox.read(f"{name}.log"), name
    assert up.poll() is None
    up.send_signal(signal.SIGTERM)
    assert up.wait(timeout=30) == 143
    deadline = time.monotonic() + 60
    while sandbox.left() and time.monotonic() < deadline:
        time.sleep(0.2)  # the strangers' executors look for their parents only now and then
    assert sandbox.left() == []
    events = sandbox.path / "run" / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    assert all(set(json.loads(line)["train"]) == {"0", "1"} for line in lines)


@pytest.mark.slow
def test_up_goes_on_by_itself_and_is_resumed(sandbox: Any) -> None:
    """First the method's process is killed, then the command, which takes all others with it."""
    options = ("--model", "linear", "--num-server-rounds", "6", "--strategy", "fedper", "--partition", "iid")
    run = sandbox.path / "run"
    alone = sandbox.coterie("run", "--num-clients", "2", *options, "--workers", "0", "--run-dir", "alone")
    up = sandbox.start_coterie("up", "--clients", "2", *options, "--run-dir", "run")
    sandbox.wait_for("round 1/6", "coterie.log", up)
    os.kill(sandbox.methods_process(), signal.SIGKILL)
    sandbox.wait_for("going on after round", "coterie.log", up)
    sandbox.wait_for("round 4/6", "coterie.log", up)
    up.kill()
    up.wait()
    for _ in range(300):
        if not sandbox.left():
            break
        time.sleep(0.1)
    assert sandbox.left() == []
    assert not (run / "result.json").exists()
    done = sandbox.coterie("resume", "run")
    assert done.returncode == alone.returncode == 0, done.stderr
    assert (run / "result.json").read_bytes() == (sandbox.path / "alone" / "result.json").read_bytes()
    assert [json.loads(line)["round"] for line in (run / "events.jsonl").read_text().splitlines()] == [1, 2, 3, 4, 5, 6]
    assert sandbox.left() == []


def test_the_server_goes_on_in_the_directory_of_its_own_run_and_in_no_other(tmp_path: Path) -> None:
    config = {"run-dir": str(tmp_path), "run-id": "a1", "strategy": "fedavg", "task": "digits"}
    assert begun_run_dir(config) is None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert begun_run_dir(config) == tmp_path
    assert begun_run_dir(config | {"run-id": "b2"}) is None and begun_run_dir(config | {"run-id": ""}) is None
    with pytest.raises(ConfigError, match="exists already"):
        new_run_dir(config)
