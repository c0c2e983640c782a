"""What a client keeps between messages: its own model parts, what it remembers of others, and its personal model.

With `state-dir` in the node configuration these are files that survive a restart:

    <state-dir>/state/<name>.safetensors          own parts after the last training
    <state-dir>/state/<topic>/<name>.safetensors  what a method remembers, or the privacy accountant
    <state-dir>/models/<name>.safetensors         the personal model, with torch's names for its tensors

What belongs to a round belongs to its run: another run with the same directory does not see it. It is kept twice, the latest and,
in a directory `previous` beside it, that of the round before: a repeated round starts where it started first. Without
`state-dir`, as in `flwr run`'s simulation, all but the personal model lives in Flower's context for the length of the run.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tasks.files import write_atomically
from tasks.models import Network
from wire.arrays import Parts, pack, unpack

OWN = "own"  # the topic of the client's own model parts


@dataclass(frozen=True)
class Note:
    """Arrays and short texts, written down in a round."""

    round: int
    arrays: Parts
    facts: dict[str, str] = field(default_factory=dict)
    run: str = ""  # set by the store


class Store(ABC):
    def own_parts(self, before_round: int) -> Parts:
        """The parts kept in the latest round before `before_round`: a repeated round starts where it started first."""
        note = self.recall(OWN, before_round)
        return note.arrays if note else {}

    def keep(self, server_round: int, parts: Parts) -> None:
        self.remember(OWN, Note(server_round, parts))

    @abstractmethod
    def recall(self, topic: str, before_round: int) -> Note | None:
        """The latest note on this topic from a round before `before_round`; only the last two rounds are there."""

    @abstractmethod
    def remember(self, topic: str, note: Note) -> None: ...

    @abstractmethod
    def save_model(self, network: Network, facts: Mapping[str, str]) -> None: ...


class FileStore(Store):
    def __init__(self, directory: Path, name: str, run: str = "") -> None:
        if not name or name.startswith(".") or "/" in name:
            raise ValueError(f"client-name = {name!r}: must not be empty, start with '.' or contain '/'")
        self.run = run
        self.state = directory / "state"
        self.file = f"{name}.safetensors"
        self.current, self.previous = self._paths(OWN)
        self.model = directory / "models" / self.file

    def recall(self, topic: str, before_round: int) -> Note | None:
        for path in self._paths(topic):
            if path.exists():
                note = _read(path)
                if note.round < before_round and self._is_mine(note):
                    return note
        return None

    def remember(self, topic: str, note: Note) -> None:
        current, previous = self._paths(topic)
        if current.exists() and (before := _read(current)).round < note.round and self._is_mine(before):
            write_atomically(previous, current.read_bytes())
        facts = {**note.facts, "round": str(note.round), "run": self.run}
        write_atomically(current, save(note.arrays, metadata=facts))

    def _is_mine(self, note: Note) -> bool:
        """Written in this run, or in no round at all: then it is for all runs."""
        return note.round == 0 or note.run == self.run

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None:
        tensors = {name: value.cpu().numpy() for name, value in network.state_dict().items()}
        write_atomically(self.model, save(tensors, metadata=dict(facts)))

    def _paths(self, topic: str) -> tuple[Path, Path]:
        directory = self.state if topic == OWN else self.state / topic
        return directory / self.file, directory / "previous" / self.file


def _read(path: Path) -> Note:
    with _opened(path) as file:
        facts = dict(file.metadata())
        arrays = {name: file.get_tensor(name) for name in file.keys()}
        return Note(int(facts.pop("round")), arrays, run=facts.pop("run", ""), facts=facts)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a client state of Coterie ({error}); move it away to start afresh") from None


class ContextStore(Store):
    """Keeps notes in Flower's context; personal models are not written anywhere."""

    def __init__(self, context: Context) -> None:
        self.state = context.state

    def recall(self, topic: str, before_round: int) -> Note | None:
        for slot in (f"{topic}-current", f"{topic}-previous"):
            if slot in self.state.array_records and self._round(slot) < before_round:
                arrays = {name: np.array(value) for name, value in unpack(self.state.array_records[slot]).items()}
                facts = {key: str(value) for key, value in self.state.config_records[f"{slot}-facts"].items()}
                return Note(int(facts.pop("round")), arrays, facts)
        return None

    def remember(self, topic: str, note: Note) -> None:
        current, previous = f"{topic}-current", f"{topic}-previous"
        if current in self.state.array_records and self._round(current) < note.round:
            self.state[previous] = self.state.array_records[current]
            self.state[f"{previous}-facts"] = self.state.config_records[f"{current}-facts"]
        self.state[current] = pack(note.arrays)
        self.state[f"{current}-facts"] = ConfigRecord({**note.facts, "round": str(note.round)})

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None:
        """Nowhere to save it."""

    def _round(self, slot: str) -> int:
        return int(str(self.state.config_records[f"{slot}-facts"]["round"]))
