"""Checks of arguments that several modules need; each says what is wrong, the value, and what to do."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def finite_array(name: str, values: ArrayLike, ndim: int) -> FloatArray:
    """`values` as a float64 array with `ndim` axes, none of them empty, and only finite numbers."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from error
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, but its shape is {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}): at least one entry is needed")
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(axis[0]) for axis in np.nonzero(bad))
        raise ValueError(f"{name}{list(where)} is {array[where]}: all entries must be finite, replace or drop it")
    return array


def generator(rng: np.random.Generator | None, what: str) -> np.random.Generator:
    """`rng` itself, if it is a generator."""
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"{what} draws at random and rng is {rng!r}: pass rng=np.random.default_rng(seed)")
    return rng


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """`value` as an int within [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    number = int(value)
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} is {number}: it must be {bounds}")
    return number


def fraction(name: str, value: float) -> float:
    """`value`, if it lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}: it must lie between 0 and 1")
    return float(value)


def members(name: str, coalition: Collection[int], n: int) -> frozenset[int]:
    """`coalition` as a non-empty frozenset of clients 0 … n-1."""
    inside = frozenset(coalition)
    strangers = sorted(inside - set(range(n)), key=str)
    if strangers:
        raise ValueError(f"{name} holds {strangers[0]!r}: clients are numbered 0 to {n - 1}")
    if not inside:
        raise ValueError(f"{name} is empty: a coalition needs at least one client")
    return inside
