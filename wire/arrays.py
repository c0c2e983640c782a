"""How models travel: in as few arrays as can be, because the number of arrays, not of bytes, is what a message costs.

The parts of a model are flat vectors, those of several models matrices with a row for each. All of one dtype and one number of
rows are joined to one array whose name says what is in it, for example `extractor:61706+classifier:850`.
"""

import functools
import io
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord

NUMPY = "numpy.ndarray"  # how Flower calls the format of an array's bytes

Parts = dict[str, np.ndarray]  # part name -> flat vector


class Place(NamedTuple):
    """Where a part is: columns `start` to `stop` of an array that should have `width` of them."""

    array: Array
    start: int
    stop: int
    width: int


def pack(parts: Mapping[str, np.ndarray]) -> ArrayRecord:
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, value in parts.items():
        alike.setdefault((_name(value.dtype), value.shape[:-1]), []).append(name)
    return ArrayRecord({_key(parts, names): _joined([parts[name] for name in names]) for names in alike.values()})


def unpack(record: ArrayRecord) -> Parts:
    return {name: read(place.array)[..., place.start : place.stop] for name, place in places(record).items()}


def places(record: ArrayRecord) -> dict[str, Place]:
    """Where each part of `record` says it is; the sizes are those of a stranger. Raises ValueError if they are none."""
    found: dict[str, Place] = {}
    for key, array in record.items():
        named = [piece.partition(":") for piece in key.split("+")]
        if len(named) == 1 and not named[0][1]:  # a part alone
            width = array.shape[-1] if array.shape else 0
            found[key] = Place(array, 0, width, width)
            continue
        stops = np.cumsum([int(size) for _, _, size in named]).tolist()
        for (name, _, size), stop in zip(named, stops, strict=True):
            found[name] = Place(array, stop - int(size), stop, stops[-1])
    return found


def read(array: Array) -> np.ndarray:
    """What is in `array`; where its bytes are as `pack` makes them, a view of them that cannot be written to."""
    header = _header(array.dtype, tuple(array.shape))
    dtype, size = np.dtype(array.dtype), math.prod(array.shape)
    as_packed = array.stype == NUMPY and len(array.data) == len(header) + size * dtype.itemsize
    if as_packed and size and array.data.startswith(header):
        return np.frombuffer(array.data, dtype, offset=len(header)).reshape(array.shape)
    return array.numpy()


def _key(parts: Mapping[str, np.ndarray], names: list[str]) -> str:
    return names[0] if len(names) == 1 else "+".join(f"{name}:{parts[name].shape[-1]}" for name in names)


def _joined(values: list[np.ndarray]) -> Array:
    """The same bytes as those of `Array.from_numpy_ndarray(np.concatenate(values, axis=-1))`, in half of the time."""
    first, dtype = values[0], _name(values[0].dtype)
    shape = (*first.shape[:-1], sum(value.shape[-1] for value in values))
    pieces = values if first.ndim == 1 or len(values) == 1 else [np.concatenate(values, axis=-1)]
    data = b"".join([_header(dtype, shape), *[np.ascontiguousarray(piece).data for piece in pieces]])
    return Array(dtype=dtype, shape=shape, stype=NUMPY, data=data)


@functools.lru_cache(maxsize=16)
def _name(dtype: np.dtype) -> str:
    """numpy takes longer to find the name of a type than to copy a small array."""
    return str(dtype)


@functools.lru_cache(maxsize=64)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    empty = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(empty, description)
    return empty.getvalue()
