"""Files of arrays in the format of safetensors, written and read piece by piece: what is large is not in memory twice.

8 bytes   length of the header, little-endian
header    JSON: name -> dtype, shape, data_offsets; __metadata__ -> short texts
data      the arrays, one after the other
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np

from coterie.wire.files import write_atomically

PIECE = 2**20  # numbers handled at a time
DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"},
}
NAMES = {np.dtype(text): name for name, text in DTYPES.items()}


@dataclass(frozen=True)
class StoredArray:
    """An array in a file; a slice of its first axis is read when it is asked for."""

    path: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, which: slice | EllipsisType) -> np.ndarray:
        if isinstance(which, slice):
            start, stop, _ = slice(which.start, which.stop).indices(self.shape[0])
            row, shape = math.prod(self.shape[1:]), (max(stop - start, 0), *self.shape[1:])
        else:
            start, row, shape = 0, 0, self.shape
        place = self.offset + start * row * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, math.prod(shape), offset=place).reshape(shape)


Vector = np.ndarray | StoredArray  # what can be sliced along its first axis


def pieces(size: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE))


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str], *, durable: bool = True
) -> None:
    write_atomically(path, lambda: encoded(arrays, metadata), durable=durable)


def encoded(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Iterator[Any]:
    """The bytes of a file, piece by piece."""
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, array in ordered.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in ordered.values():
        flat = np.ascontiguousarray(array).reshape(-1)
        yield from (flat[piece].data.cast("B") for piece in pieces(flat.size))


def stored_arrays(path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """The arrays in a file, not read yet, and its texts; a ValueError says what is wrong with the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError("no header")
        try:
            header = json.loads(file.read(length))
        except RecursionError:
            raise ValueError("a header with too many brackets in brackets") from None
    try:
        texts = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        arrays = {name: _placed(path, 8 + length, entry) for name, entry in header.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a header of another kind: {error}") from None
    if 8 + length + sum(array.size * array.dtype.itemsize for array in arrays.values()) != size:
        raise ValueError(f"{size} bytes, which is not what its header says")
    return arrays, texts


def _placed(path: Path, first: int, entry: Mapping[str, Any]) -> StoredArray:
    start, end = entry["data_offsets"]
    array = StoredArray(path, first + start, np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"]))
    if start < 0 or end - start != array.size * array.dtype.itemsize:
        raise ValueError(f"{start} to {end} is not the place of an array of {array.shape}")
    return array
