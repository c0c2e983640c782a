"""A user's own modules are the user's: files beside a script that are called as Coterie's folders do not disturb it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.wire.fingerprint import PACKAGES

SMALL = ("--model", "linear", "--num-server-rounds", "1")
LIBRARY = (
    "import coterie; coterie.run(strategy='fedavg', task='digits', model='linear', num_server_rounds=1, num_clients=2, "
    "run_dir='run')"
)


@pytest.fixture
def crowded(sandbox: Any) -> Any:
    """Commands run in a folder with files of these names, and each of them says so when it is imported."""
    for name in PACKAGES:
        (sandbox.path / f"{name}.py").write_text(f"raise RuntimeError('the {name}.py of the user was imported')\n")
    return sandbox


def check(box: Any, command: list[str]) -> None:
    done = box.run(command)
    assert done.returncode == 0, done.stderr
    assert "of the user was imported" not in done.stdout + done.stderr
    assert json.loads((box.path / "run" / "result.json").read_text())["rounds"] == 1


def test_the_user_really_has_them(crowded: Any) -> None:
    assert {"client", "server", "tasks", "games", "cli", "wire", "strategies", "runtime"} == set(PACKAGES)
    for name in PACKAGES:
        assert f"the {name}.py of the user was imported" in crowded.run([sys.executable, "-c", f"import {name}"]).stderr


@pytest.mark.parametrize(
    "program",
    [[str(Path(sys.executable).parent / "coterie")], [sys.executable, "-m", "coterie"]],
    ids=["coterie", "python -m coterie"],
)
def test_the_command(crowded: Any, program: list[str]) -> None:
    check(crowded, [*program, "run", *SMALL, "--num-clients", "2", "--run-dir", "run"])


def test_the_library(crowded: Any) -> None:
    check(crowded, [sys.executable, "-c", LIBRARY])


@pytest.mark.slow
def test_real_processes(crowded: Any) -> None:
    check(crowded, [sys.executable, "-m", "coterie", "up", *SMALL, "--clients", "2", "--run-dir", "run"])
    assert crowded.left() == []
