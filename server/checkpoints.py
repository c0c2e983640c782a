"""What a run needs to go on: the method's state after a round, and the event lines up to it.

    checkpoint/            state.safetensors, and state.json with a digest of it
    .checkpoint.new/       the next one, until it is moved there
    checkpoint.previous/   the one before

Killed at any moment there is a whole one among them, if there ever was; the newest whose event lines are there counts.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load

from coterie.tasks.tensors import encoded, write_arrays
from coterie.wire.files import Piece, move, write_atomically

log = logging.getLogger(__name__)

NEW, CURRENT, PREVIOUS = ".checkpoint.new", "checkpoint", "checkpoint.previous"
ARRAYS, REST, DIGEST = "state.safetensors", "state.json", "digest"
EVENTS = "events.jsonl"
State = dict[str, Any]


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def save_checkpoint(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write beside, then move: one whole checkpoint is always there, and the one before stays."""
    new = run_dir / NEW
    shutil.rmtree(new, ignore_errors=True)
    try:
        write_arrays(new / ARRAYS, state["arrays"], {})
        rest = {key: value for key, value in state.items() if key != "arrays"}
        write_json(new / REST, rest | {DIGEST: _digest(encoded(state["arrays"], {}))})
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    _put_in_place(run_dir)


def _put_in_place(run_dir: Path) -> None:
    """The new checkpoint is whole: from now on it counts."""
    new, current, previous = (run_dir / name for name in (NEW, CURRENT, PREVIOUS))
    if current.exists():
        shutil.rmtree(previous, ignore_errors=True)
        move(current, previous)
    move(new, current)


def newest_checkpoint(run_dir: Path) -> State | None:
    """The state to go on from, which is `checkpoint` from now on; None: there is none, begin at the beginning."""
    there = [name for name in (NEW, CURRENT, PREVIOUS) if (run_dir / name).exists()]
    rounds = {name: _round_of(run_dir / name) for name in there}
    ended = len(read_events(run_dir))
    for name in sorted(there, key=lambda name: -rounds[name]):
        if 0 < rounds[name] <= ended and (state := load_checkpoint(run_dir / name)):
            _go_back_to(run_dir, name)
            return state
        log.warning("%s: is not whole, or its event lines are not there; going on without it", run_dir / name)
    for name in there:
        shutil.rmtree(run_dir / name)
    return None


def _go_back_to(run_dir: Path, name: str) -> None:
    """Make this checkpoint `checkpoint`; what is newer is not whole."""
    if name == NEW:
        return _put_in_place(run_dir)
    shutil.rmtree(run_dir / NEW, ignore_errors=True)
    if name == PREVIOUS:
        shutil.rmtree(run_dir / CURRENT, ignore_errors=True)
        move(run_dir / PREVIOUS, run_dir / CURRENT)


def _round_of(path: Path) -> int:
    try:
        return int(json.loads((path / REST).read_bytes())["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def load_checkpoint(path: Path) -> State | None:
    """A state with its arrays; None if it is not there as a whole."""
    try:
        state: State = json.loads((path / REST).read_bytes())
        data = (path / ARRAYS).read_bytes()
        return state | {"arrays": load(data)} if state.pop(DIGEST) == _digest([data]) else None
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def _digest(data: Iterable[Piece]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for piece in data:
        found.update(piece)
    return found.hexdigest()


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """A dict for each round that ended: whole lines only, in the order of the rounds, none missing."""
    path = run_dir / EVENTS
    events: list[dict[str, Any]] = []
    for line in (path.read_bytes() if path.exists() else b"").split(b"\n")[:-1]:
        try:
            event = json.loads(line)
        except ValueError:
            break
        if event.get("round") != len(events) + 1:
            break
        events.append(event)
    return events


def cut_events(run_dir: Path, rounds: int) -> list[dict[str, Any]]:
    """The events up to this round, and nothing else in their file."""
    events, path = read_events(run_dir)[:rounds], run_dir / EVENTS
    data = path.read_bytes() if path.exists() else b""
    lines = b"".join(data.splitlines(keepends=True)[: len(events)])
    if lines != data:
        write_atomically(path, lines)
    return events
