"""Processes that end with this one: each with a log of its own, all of them found and stopped at the end.

Flower's processes start others, some in sessions of their own. All inherit one environment variable with a value that
is only ours, and by it they are found.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.runtime.foreground import undisturbed
from coterie.runtime.forks import end_with_parent
from coterie.wire.errors import ConfigError, RunFailed

MARK = "COTERIE_UP"
GRACE_SECONDS = 3.0


class Processes:
    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.mark = uuid.uuid4().hex
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        """Start `command` in a session of its own: Ctrl-C in the terminal reaches this process alone."""
        with open(self.log_of(name), "ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, MARK: self.mark},
                cwd=directory,
                start_new_session=True,
                preexec_fn=functools.partial(
                    end_with_parent, signal.SIGKILL
                ),  # a SuperLink asked to end waits for others
            )

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.running.items()}

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def check(self) -> None:
        """All of them must be alive."""
        for name, process in self.running.items():
            code = process.poll()
            if code is not None:
                raise RunFailed(
                    f"{name} ended with code {code}: {last_words(self.log_of(name))}; its log is {self.log_of(name)}"
                )

    def stop(self) -> None:
        """Ask all to end, clients first; end those that do not. Returns when none is left."""
        for process in reversed(self.running.values()):
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and (
            any(p.poll() is None for p in self.running.values()) or marked(self.mark)
        ):
            time.sleep(0.05)
        for process in self.running.values():
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        while left := marked(self.mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            self.stop()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def marked(mark: str) -> list[int]:
    """Processes with this mark in their environment.

    Where there is no /proc none can be seen; Flower's processes then end because they watch their parents.
    """
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def free_ports(number: int) -> list[int]:
    """Ports of the loopback address that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def must_be_free(key: str, port: int, host: str = "127.0.0.1", deadline: float = 0.0) -> None:
    """gRPC would share a port with another server without a word. Until `deadline` one that is not free may become so."""
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that just ended do not count
            try:
                return s.bind((host, port))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"{key} = {port}: cannot be used ({error.strerror}); choose another, or leave it out"
                    ) from None
        time.sleep(0.2)


def last_words(log: Path) -> str:
    """Why a process of Flower ended, as far as its log tells."""
    try:
        return reason_in(log.read_text(errors="replace").splitlines())
    except OSError:
        return "its log cannot be read"


def reason_in(log: Iterable[str]) -> str:
    """What follows `Exit Code`, else the last line."""
    lines = [line.strip() for line in log if line.strip()]
    for i in reversed(range(len(lines))):
        if "Exit Code:" in lines[i]:
            return " ".join(lines[i + 1 : i + 3])
    return lines[-1] if lines else "it said nothing"
