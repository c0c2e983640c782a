"""The last model of every client, on the server: one row per client in one matrix per part.

In memory, or, where that would take too much, in files that are read a few rows at a time, so that memory does not grow with the
number of clients.
"""

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from coterie.wire.arrays import Parts

MEMORY_LIMIT = 2 * 2**30  # bytes in memory before rows go to files
BLOCK_BYTES = 64 * 2**20  # read from files at a time


class ModelPool:
    def __init__(self, layout: Parts, directory: Path | None = None) -> None:
        """`directory` None keeps all rows in memory; else files are made there, or found again."""
        self.layout = layout
        self.on_disk = directory is not None
        self.clients: list[str] = []
        self._index: dict[str, int] = {}
        self._rows: dict[str, _Rows] = {
            part: _MemoryRows(like) if directory is None else _FileRows(like, directory / f"{part}.rows")
            for part, like in layout.items()
        }

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
        mean: np.ndarray = np.rint(total) if np.issubdtype(like.dtype, np.integer) else total
        return mean.astype(like.dtype, copy=False)


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
    """Rows one after the other in a file."""

    def __init__(self, like: np.ndarray, path: Path) -> None:
        super().__init__(like)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.file = open(path, "r+b", buffering=0)  # noqa: SIM115 - open as long as the pool lives

    def write(self, row: int, value: np.ndarray) -> None:
        self.file.seek(row * self.size * self.dtype.itemsize)
        np.ascontiguousarray(value, self.dtype).tofile(self.file)

    def read(self, start: int, stop: int) -> np.ndarray:
        self.file.seek(start * self.size * self.dtype.itemsize)
        return np.fromfile(self.file, self.dtype, (stop - start) * self.size).reshape(stop - start, self.size)

    def block(self, rows: int) -> int:
        return max(1, min(rows, BLOCK_BYTES // (self.size * self.dtype.itemsize)))
