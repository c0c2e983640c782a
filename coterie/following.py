"""Runs that are there, and runs that are going on: list them, follow one, end one. Here by their directories, elsewhere by
the number that a server gave them."""

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.progress import RunProgress, Shown, progress_of
from coterie.rows import Table
from coterie.runs import Run
from coterie.server.status import Status, ask_to_stop, read_status
from coterie.wire.errors import ConfigError, RunFailed

PLACES = ("runs", "server/runs")
DEEPEST = 3  # directories below a place: those of a comparison, of a study of comparisons
LOOK_SECONDS = 0.5
STOP_SECONDS = 60.0  # a run looks whether it should stop whenever it waits for clients


def list_runs(*places: str | Path) -> list[Run]:
    """The runs in these directories and below, the newest first; without any, those in runs/ and server/runs/ here."""
    for place in places:
        if not Path(place).expanduser().is_dir():
            raise ConfigError(f"{place}: there is no such directory; give one that has run directories in it")
    found = [run for place in places or PLACES for run in _below(Path(place).expanduser(), DEEPEST)]
    return sorted(found, key=lambda run: (run.path / "config.json").stat().st_mtime, reverse=True)


def _below(path: Path, depth: int) -> Iterator[Run]:
    if _is_run(path):
        yield Run(path)
    elif depth and path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                yield from _below(entry, depth - 1)


def _is_run(path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"strategy", "task", "num-server-rounds"} <= config.keys()


def the_running(place: str | Path = "") -> Run:
    """The run that is going on here, if it is the only one."""
    running = [run for run in list_runs(*([place] if place else [])) if run.status.state == "running"]
    if len(running) != 1:
        names = ", ".join(str(run.path) for run in running[:3])
        said = f"{len(running)} runs are going on here ({names})" if running else "no run is going on here"
        raise ConfigError(f"RUN: {said}; name its directory, `coterie runs` lists them")
    return running[0]


def watch_run(run: Run, progress: Shown = True) -> Run:
    """Show how a run goes until it ends; raises `RunFailed` if that is not its end. The run does not notice."""
    status, events = run.status, _Events(run.path)
    with progress_of(progress, run.title, run.config) as shown:
        shown.say(f"{run.title}: {in_words(status)}")
        for event in events.new():
            shown.round_told(event)
        while status.state == "running":
            time.sleep(LOOK_SECONDS)
            before, status = status, run.status
            if _agrees(status) and not _agrees(before):
                shown.say(f"{run.title}: {in_words(status)}")
            for event in events.new():
                shown.round_ended(event, {})
            _show(status, shown)
    if status.state != "finished":
        raise RunFailed(f"{run.path}: {in_words(status)}")
    return run


@contextmanager
def shown_by(shown: RunProgress, run_dir: Path) -> Iterator[None]:
    """Within, what the run in this directory does is shown, from now on; its log is shown elsewhere."""
    events, over = _Events(run_dir), threading.Event()
    events.new()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            _show(read_status(run_dir), shown)
            for event in events.new():
                shown.round_told(event)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for event in events.new():
            shown.round_told(event)


def _agrees(status: Status) -> bool:
    """Before the first round: the clients tell what their tables are like."""
    return status.state == "running" and not status.round and bool(status.phase)


def _show(status: Status, shown: RunProgress) -> None:
    if status.state == "running" and status.asked:
        shown.progress(status.round, status.phase, status.answered, status.asked)
    if status.waiting:
        shown.waiting(status.waiting)


class _Events:
    """The lines of events.jsonl as they come, whole ones only."""

    def __init__(self, run_dir: Path) -> None:
        self.path, self.read, self.last = run_dir / "events.jsonl", 0, 0

    def new(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self.read)
            text = file.read()
            is_shorter = file.seek(0, os.SEEK_END) < self.read
        whole = text[: text.rfind(b"\n") + 1]
        try:
            found = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            is_shorter = True
        if is_shorter:  # it was cut, because the run went on: all of it is read again
            self.read = 0
            return []
        self.read += len(whole)
        new = [event for event in found if event["round"] > self.last]
        self.last = new[-1]["round"] if new else self.last
        return new


def stop_run(run: Run, timeout: float = STOP_SECONDS) -> Status:
    """Ask a run to end, and wait until it has: how it ended."""
    status = run.status
    if status.state != "running":
        raise ConfigError(f"{run.path}: is not running ({in_words(status)}); there is nothing to stop")
    ask_to_stop(run.path)
    deadline = time.monotonic() + timeout
    while (status := run.status).state == "running":
        if time.monotonic() > deadline:
            raise RunFailed(
                f"{run.path}: was asked to stop, and goes on after {timeout:g} seconds; it stops when it next waits for "
                f"clients. To end it at once, kill process {status.pid} on {status.host}"
            )
        time.sleep(LOOK_SECONDS / 5)
    return status


@dataclass(frozen=True)
class Listed:
    """A run in a list."""

    name: str
    title: str
    status: Status


def listed(runs: Iterable[Run]) -> list[Listed]:
    here = Path.cwd()
    return [
        Listed(str(run.path.relative_to(here) if run.path.is_relative_to(here) else run.path), run.title, run.status)
        for run in runs
    ]


def runs_table(runs: Sequence[Listed]) -> Table:
    rows = []
    for run in runs:
        status = run.status
        note = printable(str(status.waiting) if status.waiting else status.why)
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.began)) if status.began else ""
        how_far = f"{status.round} of {status.rounds}" if status.rounds else ""
        left = "" if status.seconds_left is None else duration(status.seconds_left)
        rows.append([run.name, run.title, status.state, how_far, left, str(status.clients or ""), began, note])
    return Table("", ["run", "what", "state", "round", "left", "clients", "began", ""], rows)


def in_words(status: Status) -> str:
    how_far = f"round {status.round} of {status.rounds}" if status.round else "waits for its clients"
    if _agrees(status):
        how_far = f"its clients agree on columns, {status.answered} of {status.asked} told theirs"
    said = {
        "running": f"running, {how_far}, {status.clients} clients" if status.round else f"running, {how_far}",
        "died": f"died in {how_far}",
        "failed": f"failed in {how_far}",
        "stopped": f"stopped in {how_far}",
    }.get(status.state, status.state)
    left = "" if status.seconds_left is None else f", about {duration(status.seconds_left)} left"
    return f"{said}{left}" + (f": {printable(status.why)}" if status.why else "")


def printable(text: str) -> str:
    """Reasons and names come from strangers: what would move a terminal's cursor is left out."""
    return "".join(character if character.isprintable() else " " for character in text)


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
