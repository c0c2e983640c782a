"""Runs that were begun here and did not come to their end: what an executor needs to go on with them.

    <directory>/<digest of the run's id>/run.json   Flower's number of the run, its settings, how far it was
    <directory>/<digest of the run's id>/code/      the code that was submitted

The ServerApp writes it when it begins and removes it when it ends, whether well or with an error: only a process that was killed
leaves it behind.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.wire.config import Value
from coterie.wire.files import write_atomically
from coterie.wire.fingerprint import source_files

log = logging.getLogger(__name__)

PLACE = "COTERIE_UNFINISHED"  # names the directory, in the environment of runs that an executor looks after
NOTE, CODE = "run.json", "code"


@dataclass(frozen=True)
class Unfinished:
    run: int  # Flower's number
    config: dict[str, Any]  # with the run's directory and id
    rounds: int  # that had ended when it began
    fruitless: int  # how often it was begun since the last round ended
    process: int  # 0: it has not begun yet

    def write(self, place: Path) -> None:
        write_atomically(place / NOTE, json.dumps(asdict(self)).encode())


def read(place: Path) -> Unfinished | None:
    try:
        return Unfinished(**json.loads((place / NOTE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def code_in(place: Path) -> dict[str, Path]:
    """The files that were submitted, by their paths in a checkout."""
    root = place / CODE
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}


@contextlib.contextmanager
def noted(run: int, config: Mapping[str, Value], rounds: int) -> Iterator[None]:
    """Within, this run is unfinished."""
    directory = os.environ.get(PLACE)
    if not directory:
        yield
        return
    place = Path(directory) / hashlib.sha256(str(config["run-id"]).encode()).hexdigest()[:16]
    try:
        before = read(place)
        fruitless = before.fruitless + 1 if before and before.rounds == rounds else 0
        for name, path in source_files().items():
            write_atomically(place / CODE / name, path.read_bytes())
        Unfinished(run, dict(config), rounds, fruitless, os.getpid()).write(place)
    except OSError as error:
        log.warning("if this run is killed, nobody goes on with it by itself: %s", error)
    try:
        yield
    except Exception:
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place, ignore_errors=True)
