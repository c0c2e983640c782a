"""Flower's own programs: where they are, what they find in their environment, how they are told things."""

import os
import shutil
import sys
from pathlib import Path

from strategies.federation import RunFailed
from wire.config import ConfigError

POLL_OF_EXECUTORS = "0.1"  # seconds; Flower's default is 1


def environment(home: Path) -> dict[str, str]:
    programs = os.path.dirname(sys.executable)  # Flower starts its other programs by their names
    ours = {
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_OF_EXECUTORS,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **ours}


def program(name: str) -> str:
    """A command of the environment that runs this one, else of the path."""
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if found is None:
        raise RunFailed(f"{name}: not found; install Flower beside Coterie (pip install 'flwr>=1.39,<1.40')")
    return found


def quoted(text: str) -> str:
    """As Flower reads strings in --node-config: one kind of quotation mark around, none of it within."""
    for mark in "'\"":
        if mark not in text and (mark == "'" or "\\" not in text):
            return f"{mark}{text}{mark}"
    raise ConfigError(f"run-dir = {text!r}: has both kinds of quotation marks; choose another")
