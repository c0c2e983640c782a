"""Flower's own programs: where they are, what they find in their environment, how they are told things."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from coterie.runtime.keys import SECRET
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.fingerprint import source_files

POLL_OF_EXECUTORS = "0.1"  # seconds; Flower's default is 1


def environment(home: Path) -> dict[str, str]:
    programs = os.path.dirname(sys.executable)  # Flower starts its other programs by their names
    # Our own must be this very code, wherever else one is. If it is installed, it is found, after Python's own modules.
    code = str(source_files()["coterie/__init__.py"].parent.parent)
    first = "" if code == os.path.realpath(sysconfig.get_path("purelib")) else code
    ours = {
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_OF_EXECUTORS,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [first, os.environ.get("PYTHONPATH", "")])),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **ours}


def superlink_command(keys: Path, control_host: str, control_port: int, fleet: str, database: Path | None) -> list[str]:
    """The server that clients connect to, without the methods that run on it."""
    return [
        *(sys.executable, "-P", "-m", "coterie.runtime.superlink"),
        "--host",
        control_host,
        "--port",
        str(control_port),
        "--fleet-api-address",
        fleet,
        *(("--database", str(database)) if database else ()),
        "--isolation",
        "process",
        "--ssl-ca-certfile",
        str(keys / "ca.crt"),
        "--ssl-certfile",
        str(keys / "server.crt"),
        "--ssl-keyfile",
        str(keys / "server.key"),
        "--enable-supernode-auth",
        "--superexec-auth-secret-file",
        str(keys / SECRET),
        "--disable-runtime-dependency-installation",
    ]


def executor_command(keys: Path, control: str) -> list[str]:
    """What runs the methods. -P: what lies in its working directory must not be imported by accident."""
    where = ["--runtime-api-address", control, "--root-certificates", str(keys / "ca.crt")]
    secret = ["--superexec-auth-secret-file", str(keys / SECRET)]
    return [sys.executable, "-P", "-m", "coterie.runtime.executor", *where, *secret]


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
    raise ConfigError(f"{text!r}: has both kinds of quotation marks; choose another path or name")
