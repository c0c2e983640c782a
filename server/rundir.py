"""The directory of a run.

    config.json      every setting of the run
    events.jsonl     one line per round: metrics, weights, bytes, seconds, who was left out and why
    checkpoint/      the method's state after the last round; `checkpoint.previous/` the one before
    result.json      what the run came to
    models/          in a simulation: every client's personal model
    keys/ logs/ clients/   as real processes (coterie/deploy.py): certificates, logs, what each client keeps

Files appear whole or not at all; a line that does not fit on the disk is taken back.
"""

import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from coterie.server.results import privacy_of, result_of
from coterie.strategies.federation import name_order
from coterie.strategies.observer import Observer
from coterie.wire.config import Value
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.files import write_atomically
from coterie.wire.messages import Hello

PREPARED = ("clients", "keys", "logs")  # what `coterie up` makes in a new run directory before the server starts


def new_run_dir(config: Mapping[str, Value], *, prepared: bool = False) -> Path:
    """Make the directory that `run-dir` names, or one under runs/; an existing one is never touched.

    `prepared`: unless it holds nothing but what `coterie up` makes for the server that it starts.
    """
    name = str(config["run-dir"])
    stem = name or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{config['strategy']}-{config['task']}"
    path = Path(stem).absolute()
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            if prepared and path.is_dir() and sorted(entry.name for entry in path.iterdir()) == sorted(PREPARED):
                break
            if name or not path.is_dir():
                raise ConfigError(
                    f"run-dir = {name or str(path)!r}: exists already; choose another, nothing was changed"
                ) from None
            path = Path(f"{stem}-{number}").absolute()  # another run began in the same second
        except NotADirectoryError:
            raise ConfigError(
                f"run-dir = {name or str(path)!r}: a part of this path is a file; choose another"
            ) from None
    return path


class RunDirectory(Observer):
    def __init__(self, path: Path, config: Mapping[str, Value]) -> None:
        self.path = path
        self.config = {**config, "run-dir": str(config["run-dir"])}
        self.clients: list[str] = []
        self.last_evaluation: Mapping[str, Any] | None = None
        self.epsilon: dict[str, float] = {}  # of every client that trained with privacy
        write_json(path / "config.json", self.config)

    def started(self, clients: Mapping[str, Hello]) -> None:
        self.clients = list(clients)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        append_line(self.path / "events.jsonl", json.dumps(event))
        save_checkpoint(self.path, state)
        self.epsilon |= {name: told["epsilon"] for name, told in event.get("train", {}).items() if "epsilon" in told}
        if "evaluate" in event:
            self.last_evaluation = event

    def finish(self) -> dict[str, Any]:
        assert self.last_evaluation is not None  # the last round is always evaluated
        result = result_of(self.config, sorted(self.clients, key=name_order), self.last_evaluation)
        if not result["models"]:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(result["not-tested"].items())[:3])
            raise RunFailed(f"round {result['rounds']}: no client could be tested. {reasons}")
        if self.config.get("privacy.mode", "off") != "off":
            result["privacy"] = privacy_of(self.config, self.epsilon)
        write_json(self.path / "result.json", result)
        return result


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Append a whole line; if the disk is full, take back what was written of it."""
    with open(path, "ab", buffering=0) as file:
        before = file.tell()
        try:
            data = (line + "\n").encode()
            if file.write(data) != len(data):
                raise OSError(28, "No space left on device", str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def save_checkpoint(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write beside, then move: `checkpoint` is always whole, and the one before stays as `checkpoint.previous`."""
    new, current, previous = (run_dir / name for name in (".checkpoint.new", "checkpoint", "checkpoint.previous"))
    shutil.rmtree(new, ignore_errors=True)
    try:
        arrays = {name: np.ascontiguousarray(value) for name, value in state["arrays"].items()}
        write_atomically(new / "state.safetensors", save(arrays))
        write_json(new / "state.json", {key: value for key, value in state.items() if key != "arrays"})
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if current.exists():
        shutil.rmtree(previous, ignore_errors=True)
        current.rename(previous)
    new.rename(current)
