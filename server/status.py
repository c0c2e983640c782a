"""`status.json` of a run directory: how far the run is, since when, and whom it waits for; and how it is asked to stop.

It is written anew as the run goes, whole or not at all. What it says of a run that goes on counts only while a process holds
the directory (server/living.py). `stop`, an empty file, asks the run to end: it looks for it whenever it waits.
"""

import contextlib
import dataclasses
import json
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pydantic import TypeAdapter

from coterie.server.living import is_held
from coterie.strategies.observer import Observer, Seconds, Waiting
from coterie.wire.config import Value
from coterie.wire.errors import RunStopped
from coterie.wire.messages import Hello

FILE, STOP = "status.json", "stop"
WRITE_SECONDS = 0.5  # between two versions of it
ROUNDS_TIMED = 5  # the last ones, for the time of the next
BY_COMMAND, BY_SERVER = "by `coterie stop`", "by its server"
STOPPED_BY = {RunStopped: BY_COMMAND, KeyboardInterrupt: "by a signal", SystemExit: BY_SERVER}  # Flower exits so
State = Literal["pending", "running", "finished", "failed", "stopped", "died", "unfinished"]


@dataclass
class Status:
    """How far a run is.

    `pending`: a server has it and did not begin; `died`: it was running, and its process is there no more; `unfinished`:
    nobody knows why it ended.
    """

    state: State = "unfinished"
    round: int = 0  # that goes on; 0 before all clients are there
    rounds: int = 0
    clients: int = 0
    phase: str = ""
    answered: int = 0  # clients, in this phase
    asked: int = 0
    waiting: Waiting | None = None
    seconds_per_round: Seconds | None = None
    round_began: Seconds = 0.0  # since 1970, like all times here
    began: Seconds = 0.0
    updated: Seconds = 0.0
    why: str = ""  # it failed or stopped
    pid: int = 0
    host: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # of what the run is made with

    @property
    def seconds_left(self) -> float | None:
        """By the last rounds; None before the first has ended."""
        if self.state != "running" or self.seconds_per_round is None:
            return None
        whole = self.seconds_per_round * (self.rounds - self.round + 1)
        return max(0.0, whole - (time.time() - self.round_began))


class StatusFile(Observer):
    """Keeps `status.json` up to date, and ends the run when it is asked to."""

    def __init__(self, run_dir: Path, config: Mapping[str, Value]) -> None:
        self.path = run_dir
        self.written = 0.0  # when
        self.seconds: list[float] = []
        now = time.time()
        self.status = Status(
            *("running", 0, int(config["num-server-rounds"])),
            began=now,
            pid=os.getpid(),
            host=socket.gethostname(),
            versions=versions(),
        )
        (run_dir / STOP).unlink(missing_ok=True)  # for the run that was here before
        self._write(force=True)

    def started(self, clients: Mapping[str, Hello]) -> None:
        self._next(1, clients=len(clients))

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        if server_round != self.status.round:  # one that was resumed
            self._next(server_round)
        self._tell(phase=phase, answered=done, asked=total, waiting=None)

    def waiting(self, waiting: Waiting) -> None:
        self._tell(waiting=waiting)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        seconds = event["seconds"] + event.get("evaluate-seconds", 0.0)
        self.seconds = [*self.seconds, seconds][-ROUNDS_TIMED:]
        self._next(event["round"] + 1, seconds_per_round=round(sum(self.seconds) / len(self.seconds), 3))

    def ended(self, result: Mapping[str, Any]) -> None:
        self._end("finished")

    def failed(self, error: BaseException) -> None:
        for kind, by in STOPPED_BY.items():
            if isinstance(error, kind):
                return self._end("stopped", by)
        self._end("failed", str(error) or type(error).__name__)

    def _next(self, number: int, **facts: Any) -> None:
        self.written = 0.0  # a new round is always told
        self._tell(round=number, round_began=time.time(), phase="", answered=0, asked=0, waiting=None, **facts)

    def _tell(self, **facts: Any) -> None:
        self.status = dataclasses.replace(self.status, **facts)
        self._write()
        if (self.path / STOP).exists():
            raise RunStopped(f"stopped {BY_COMMAND}; finished rounds are in the run directory")

    def _end(self, state: State, why: str = "") -> None:
        number = min(self.status.round, self.status.rounds)
        self.status = dataclasses.replace(self.status, state=state, why=why, round=number, waiting=None, phase="")
        self._write(force=True)
        (self.path / STOP).unlink(missing_ok=True)

    def _write(self, force: bool = False) -> None:
        if not force and time.monotonic() - self.written < WRITE_SECONDS:
            return
        self.written = time.monotonic()
        _write(self.path, self.status)


@contextlib.contextmanager
def told_first(run_dir: Path) -> Iterator[None]:
    """Within, a signal that ends this process is in the status before Flower acts on it.

    Flower uploads the log before it raises SystemExit here, and on a busy machine it ends the process before it comes to that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def tell(number: int, frame: FrameType | None) -> None:
        status = _read(run_dir)
        if status.state == "running":
            _write(run_dir, dataclasses.replace(status, state="stopped", why=BY_SERVER, waiting=None, phase=""))
        signal.signal(number, before[number])
        signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in ("coterie", "flwr", "torch", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def read_status(run_dir: Path) -> Status:
    """How far the run in this directory is."""
    status = _read(run_dir)
    if status.state == "running" and not is_held(run_dir):
        status = _read(run_dir)  # it may have ended between the two
        if status.state == "running":
            why = "its process was killed, or its machine went down"
            status = dataclasses.replace(status, state="died", why=why, waiting=None)
    if status.state in ("unfinished", "died") and (run_dir / "result.json").exists():
        status = dataclasses.replace(status, state="finished", why="")
    return status


def _read(run_dir: Path) -> Status:
    try:
        return TypeAdapter(Status).validate_json((run_dir / FILE).read_bytes())
    except (OSError, ValueError):  # an old run, or made by something else
        return Status()


def _write(run_dir: Path, status: Status) -> None:
    """A status that cannot be written harms nothing: a full disk is told by the files that matter."""
    status.updated = time.time()
    new = run_dir / f".{FILE}"
    try:
        new.write_text(json.dumps(dataclasses.asdict(status), indent=2) + "\n")
        new.replace(run_dir / FILE)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def ask_to_stop(run_dir: Path) -> None:
    (run_dir / STOP).touch()
