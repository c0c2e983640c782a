"""The last model of every client, on the server: one row per client in one matrix per part.

In memory, or, where that would take too much, in files that are read a few rows at a time, so that memory does not grow with the
number of clients. In a file a row gets a new place when it changes; places that the last two saved states speak of are left as
they are, so that a run can go on from either.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.tasks.parts import as_dtype
from coterie.wire.arrays import Parts
from coterie.wire.files import make_directory, sync, with_room, write_all

MEMORY_LIMIT = 2 * 2**30  # bytes in memory before rows go to files
BLOCK_BYTES = 64 * 2**20  # read from files at a time


class ModelPool:
    def __init__(self, layout: Parts, directory: Path, store: Literal["auto", "memory", "disk"] = "auto") -> None:
        """`directory` is for rows in files, which are made there, or found again."""
        self.layout, self.directory, self.store = layout, directory, store
        self.clients: list[str] = []
        self._index: dict[str, int] = {}
        self._rows: dict[str, _Rows] = {}
        self.on_disk = store == "disk"

    def expect(self, clients: int) -> None:
        """So many clients will have rows: are these to be in memory, or in files?"""
        size = clients * sum(part.nbytes for part in self.layout.values())
        self._open(self.store == "disk" or (self.store == "auto" and size > MEMORY_LIMIT))

    def _open(self, on_disk: bool) -> None:
        if not self._rows:
            self.on_disk = on_disk
            for part, like in self.layout.items():
                self._rows[part] = _FileRows(like, self.directory / f"{part}.rows") if on_disk else _MemoryRows(like)

    def state_dict(self) -> dict[str, Any]:
        """In memory all rows are part of the state; on disk they stay in their files, and only their places are noted."""
        files = {part: rows for part, rows in self._rows.items() if isinstance(rows, _FileRows)}
        rows = {part: self.part(part) for part in self._rows if part not in files}
        places = {part: rows.save() for part, rows in files.items()}
        return {"clients": list(self.clients), "on-disk": self.on_disk, "rows": rows, "places": places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._open(state["on-disk"])
        for i, client in enumerate(state["clients"]):
            self.adopt(client)
            for part, rows in state["rows"].items():
                self._rows[part].write(i, rows[i])
        for part, places in state["places"].items():
            rows = self._rows[part]
            assert isinstance(rows, _FileRows)
            rows.load(places)

    def __contains__(self, client: str) -> bool:
        return client in self._index

    def __len__(self) -> int:
        return len(self.clients)

    def index(self, client: str) -> int:
        return self._index[client]

    def put(self, client: str, parts: Parts) -> None:
        """Store (some parts of) a client's model; a new client must bring all."""
        if client not in self._index:
            if set(parts) != set(self.layout):
                raise ValueError(
                    f"the first model of a client needs all parts {sorted(self.layout)}, got {sorted(parts)}"
                )
            self.adopt(client)
        for part, value in parts.items():
            self._rows[part].write(self._index[client], value)

    def adopt(self, client: str) -> None:
        """The next row is this client's; its numbers are there already, or are about to be written."""
        self._index[client] = len(self.clients)
        self.clients.append(client)

    def get(self, client: str, part: str) -> np.ndarray:
        row: np.ndarray = self._rows[part].read(self._index[client], self._index[client] + 1)[0]
        return row

    def part(self, part: str) -> np.ndarray:
        """One part of all clients, (clients, size). For small parts: all of it is in memory."""
        return self._rows[part].read(0, len(self))

    def mixed(self, weights: np.ndarray, part: str) -> np.ndarray:
        """Weighted means of one part, (means, size): `weights` (means, clients) times the rows. Integers stay integers."""
        like = self.layout[part]
        rows = self._rows[part]
        weights = weights.astype(np.float32 if like.dtype == np.float32 else np.float64)
        step = rows.block(len(self))
        total = weights[:, :step] @ rows.read(0, min(step, len(self)))
        for start in range(step, len(self), step):
            total += weights[:, start : start + step] @ rows.read(start, min(start + step, len(self)))
        return as_dtype(total, like.dtype)


class _Rows(ABC):
    def __init__(self, like: np.ndarray) -> None:
        self.dtype, self.size = like.dtype, like.size

    @abstractmethod
    def write(self, row: int, value: np.ndarray) -> None: ...

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray: ...

    def block(self, rows: int) -> int:
        """How many rows to read at a time."""
        return max(rows, 1)


class _MemoryRows(_Rows):
    def __init__(self, like: np.ndarray) -> None:
        super().__init__(like)
        self.array = np.empty((0, self.size), self.dtype)

    def write(self, row: int, value: np.ndarray) -> None:
        if row >= len(self.array):
            grown = np.empty((max(16, 2 * len(self.array), row + 1), self.size), self.dtype)
            grown[: len(self.array)] = self.array
            self.array = grown
        self.array[row] = value

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]


class _FileRows(_Rows):
    """Rows in a file, each somewhere: row i is at `places[i]`."""

    def __init__(self, like: np.ndarray, path: Path) -> None:
        super().__init__(like)
        make_directory(path.parent)
        path.touch()
        self.path = path
        self.file = open(path, "r+b", buffering=0)  # noqa: SIM115 - open as long as the pool lives
        self.bytes = self.size * self.dtype.itemsize
        self.places: list[int] = []
        self.saved: list[list[int]] = []  # the places in the last two states
        self.free: list[int] = []  # as far as it is known, the lowest last
        self.end = 0  # of the places in use
        self.kept: set[int] = set()  # places that must stay as they are

    def save(self) -> list[list[int]]:
        """The places of the last two states, this one the last; the rows are on the disk."""
        os.fsync(self.file.fileno())
        sync(self.path.parent)
        self.saved = [*self.saved, list(self.places)][-2:]
        self._look_for_room()
        return self.saved

    def load(self, saved: list[list[int]]) -> None:
        self.saved, self.places = [list(places) for places in saved], list(saved[-1])
        self._look_for_room()

    def _look_for_room(self) -> None:
        used = {place for places in self.saved for place in places}
        self.end = max(used, default=-1) + 1
        self.free = sorted(set(range(self.end)) - used, reverse=True)
        self.kept = used

    def write(self, row: int, value: np.ndarray) -> None:
        if row == len(self.places):
            self.places.append(self._new_place())
        elif self.places[row] in self.kept:
            self.places[row] = self._new_place()
        data = np.ascontiguousarray(value, self.dtype).data.cast("B")
        with_room(self.path, lambda: self._write_at(self.places[row], data))

    def _new_place(self) -> int:
        if self.free:
            return self.free.pop()
        self.end += 1
        return self.end - 1

    def _write_at(self, place: int, data: memoryview) -> None:
        self.file.seek(place * self.bytes)
        write_all(self.file, data)

    def read(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, self.size), self.dtype)
        for i, place in enumerate(self.places[start:stop]):
            self.file.seek(place * self.bytes)
            rows[i] = np.fromfile(self.file, self.dtype, self.size)
        return rows

    def block(self, rows: int) -> int:
        return max(1, min(rows, BLOCK_BYTES // self.bytes))
