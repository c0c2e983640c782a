"""What a client keeps between messages: its own model parts, what it remembers of others, and its personal model.

With `state-dir` in the node configuration these are files that survive a restart:

    <state-dir>/state/<name>.safetensors          own parts after the last training
    <state-dir>/state/<topic>/<name>.safetensors  what a method remembers, or the privacy accountant
    <state-dir>/state/others/<name>/              models of others, a file for each, by pseudonym and version
    <state-dir>/models/<name>.safetensors         the personal model, with torch's names for its tensors

What belongs to a round belongs to its run: another run with the same directory does not see it. It is kept twice, the latest and,
in a directory `previous` beside it, that of the round before: a repeated round starts where it started first. What is asked for
and was kept once, but is no longer, is refused: nobody starts afresh in the middle of a run. Without
`state-dir`, as in `flwr run`'s simulation, all of it lives in Flower's context for the length of the run.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Context

from coterie.tasks.models import Network
from coterie.tasks.tensors import Vector, stored_arrays, write_arrays
from coterie.wire.arrays import Parts, pack, unpack
from coterie.wire.errors import Refused
from coterie.wire.files import keep_as, sync

OWN = "own"  # the topic of the client's own model parts
OTHERS = "others"
PRIVACY = "privacy"  # the accountant's topic: for all runs, so it is never lost in silence
PERSONAL = "personal-model"
Vectors = Mapping[str, Vector]


@dataclass(frozen=True)
class Note:
    """Arrays and short texts, written down in a round."""

    round: int
    arrays: Parts
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A note whose arrays may still be in a file: they are read when they are sliced, so do that before the next is written."""

    round: int
    arrays: Vectors
    facts: dict[str, str]
    run: str = ""
    before: int = 0  # the round of the note before it; 0: it is the first


class Store(ABC):
    run = ""

    def __init__(self) -> None:
        self.written: set[str] = set()  # topics, since this store was opened

    def own_parts(self, before_round: int) -> Parts:
        """The parts kept in the latest round before `before_round`: a repeated round starts where it started first."""
        note = self.recall(OWN, before_round)
        return note.arrays if note else {}

    def keep(self, server_round: int, parts: Parts) -> None:
        self.remember(OWN, Note(server_round, parts))

    def recall(self, topic: str, before_round: int) -> Note | None:
        """The latest note on this topic from a round before `before_round`; only the last two rounds are there."""
        found = self.find(topic, before_round)
        if found is None:
            return None
        return Note(found.round, {name: array[...] for name, array in found.arrays.items()}, found.facts)

    def find(self, topic: str, before_round: int) -> Found | None:
        """The same, not read yet."""
        first = 0
        for found in self._kept(topic):
            if found.round < before_round:
                return found
            first = found.before
        if first and before_round > 1:
            raise Refused(
                f"what this client kept before round {before_round} is no longer here, only what it kept later: "
                "the run cannot go on from so far back; begin a new one"
            )
        return None

    def remember(self, topic: str, note: Note) -> None:
        before = self.find(topic, note.round)
        self._write_down(topic, note, before.round if before else 0)
        self.written.add(topic)

    @abstractmethod
    def _kept(self, topic: str) -> Iterator[Found]:
        """The notes of this run on the topic, the latest first."""

    @abstractmethod
    def _write_down(self, topic: str, note: Note, before: int) -> None:
        """In place of the latest, which is kept as the one before if it is of an earlier round."""

    @abstractmethod
    def keep_other(self, key: str, parts: Parts) -> None:
        """Keep a model of another client under `key`, letters, digits and hyphens."""

    @abstractmethod
    def other(self, key: str) -> Vectors | None: ...

    @abstractmethod
    def forget_others(self, but: Collection[str]) -> None:
        """Keep no models of others but these."""

    @abstractmethod
    def save_model(self, network: Network, facts: Mapping[str, str]) -> None: ...

    @abstractmethod
    def load_model(self, network: Network) -> bool:
        """Make the network the personal model that was saved last; whether there is one."""


class FileStore(Store):
    def __init__(self, directory: Path, name: str, run: str = "", *, durable: bool = True) -> None:
        """`durable=False`: files may be lost in a power cut, until somebody flushes the directory. What is damaged then is
        not there; what was flushed is."""
        super().__init__()
        self.durable = durable
        if not name or name.startswith(".") or "/" in name:
            raise ValueError(f"client-name = {name!r}: must not be empty, start with '.' or contain '/'")
        self.run = run
        self.state = directory / "state"
        self.file = f"{name}.safetensors"
        self.current, self.previous = self._paths(OWN)
        self.others = self.state / OTHERS / name
        self.model = directory / "models" / self.file

    def _kept(self, topic: str) -> Iterator[Found]:
        for path in self._paths(topic):
            if (found := self._read(path, topic)) and self._is_mine(found):
                yield found

    def _read(self, path: Path, topic: str) -> Found | None:
        try:
            return _found(path) if path.exists() else None
        except ValueError:
            if self.durable or topic == PRIVACY:
                raise
            return None

    def _write_down(self, topic: str, note: Note, before: int) -> None:
        current, previous = self._paths(topic)
        if (last := self._read(current, topic)) and last.round < note.round and self._is_mine(last):
            keep_as(current, previous)
            if self.durable:
                sync(previous.parent)
        self._write(current, note, before, durable=self.durable or topic == PRIVACY)

    def _write(self, path: Path, note: Note, before: int = 0, *, durable: bool) -> None:
        told = {"round": str(note.round), "run": self.run, "before": str(before)}
        write_arrays(path, note.arrays, {**note.facts, **told}, durable=durable)

    def _is_mine(self, found: Found) -> bool:
        """Written in this run, or in no round at all: then it is for all runs."""
        return found.round == 0 or found.run == self.run

    def keep_other(self, key: str, parts: Parts) -> None:
        self._write(self.others / f"{key}.safetensors", Note(1, parts), durable=self.durable)

    def other(self, key: str) -> Vectors | None:
        found = self._read(self.others / f"{key}.safetensors", OTHERS)
        return found.arrays if found and self._is_mine(found) else None

    def forget_others(self, but: Collection[str]) -> None:
        for path in self.others.glob("*.safetensors"):
            if path.stem not in but:
                path.unlink()

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None:
        arrays = {name: value.cpu().numpy() for name, value in network.state_dict().items()}
        write_arrays(self.model, arrays, facts, durable=self.durable)

    def load_model(self, network: Network) -> bool:
        if not self.model.exists():
            return False
        arrays, _ = stored_arrays(self.model)
        network.load_state_dict({name: torch.from_numpy(np.array(array[...])) for name, array in arrays.items()})
        return True

    def _paths(self, topic: str) -> tuple[Path, Path]:
        directory = self.state if topic == OWN else self.state / topic
        return directory / self.file, directory / "previous" / self.file


def _found(path: Path) -> Found:
    try:
        arrays, facts = stored_arrays(path)
        number, before = int(facts.pop("round")), int(facts.pop("before", "0"))
        return Found(number, arrays, run=facts.pop("run", ""), facts=facts, before=before)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: not a client state of Coterie ({error}); move it away to start afresh") from None


class ContextStore(Store):
    """Keeps notes and the personal model in Flower's context; nothing is written anywhere."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.state = context.state

    def _kept(self, topic: str) -> Iterator[Found]:
        for slot in (f"{topic}-current", f"{topic}-previous"):
            if slot in self.state.array_records:
                arrays = {name: np.array(value) for name, value in unpack(self.state.array_records[slot]).items()}
                facts = {key: str(value) for key, value in self.state.config_records[f"{slot}-facts"].items()}
                yield Found(int(facts.pop("round")), arrays, before=int(facts.pop("before")), facts=facts)

    def _write_down(self, topic: str, note: Note, before: int) -> None:
        current, previous = f"{topic}-current", f"{topic}-previous"
        if current in self.state.array_records and self._round(current) < note.round:
            self.state[previous] = self.state.array_records[current]
            self.state[f"{previous}-facts"] = self.state.config_records[f"{current}-facts"]
        self.state[current] = pack(note.arrays)
        self.state[f"{current}-facts"] = ConfigRecord({**note.facts, "round": str(note.round), "before": str(before)})

    def keep_other(self, key: str, parts: Parts) -> None:
        self.state[f"{OTHERS}-{key}"] = pack(parts)

    def other(self, key: str) -> Vectors | None:
        record = self.state.array_records.get(f"{OTHERS}-{key}")
        return None if record is None else unpack(record)

    def forget_others(self, but: Collection[str]) -> None:
        for slot in list(self.state.array_records):
            if slot.startswith(f"{OTHERS}-") and slot.removeprefix(f"{OTHERS}-") not in but:
                del self.state[slot]

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None:
        self.state[PERSONAL] = pack(network.dump())

    def load_model(self, network: Network) -> bool:
        if PERSONAL in self.state.array_records:
            network.load(unpack(self.state.array_records[PERSONAL]))
        return PERSONAL in self.state.array_records

    def _round(self, slot: str) -> int:
        return int(str(self.state.config_records[f"{slot}-facts"]["round"]))
