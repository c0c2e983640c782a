"""Means of models and distances between them, part by part."""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.tasks.models import WEIGHTS
from coterie.tasks.tensors import Vector, pieces
from coterie.wire.arrays import Parts


def as_dtype(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Counters are rounded to integers: a cast would cut them off."""
    return (np.rint(values) if np.issubdtype(dtype, np.integer) else values).astype(dtype, copy=False)


def average(models: Sequence[Mapping[str, np.ndarray]], weights: np.ndarray) -> Parts:
    """The weighted mean of every part, in float64. Weights are normalised first, so that running variances stay variances
    and counters stay counts, whatever they sum to."""
    weights = weights / weights.sum()
    return {name: weighted_sum([model[name] for model in models], weights) for name in models[0]}


def weighted_sum(vectors: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """In float64, back in the vectors' own type. What has no weight does not count, whatever it is."""
    total = np.zeros(vectors[0].shape, np.float64)
    for weight, vector in zip(weights, vectors, strict=True):
        if weight:
            total += weight * vector
    return as_dtype(total, vectors[0].dtype)


def distance(one: Mapping[str, Vector], other: Mapping[str, Vector]) -> float:
    """Euclidean, over the weights of both; read piece by piece, because models may be in files."""
    squares = 0.0
    for part, vector in one.items():
        if part in WEIGHTS:
            for piece in pieces(vector.size):
                squares += float(np.sum((vector[piece] - other[part][piece]) ** 2, dtype=np.float64))
    return float(np.sqrt(squares))


def stacked(models: Sequence[Mapping[str, np.ndarray]]) -> Parts:
    """Models that travel together: a row each."""
    return {part: np.stack([model[part] for model in models]) for part in models[0]}
