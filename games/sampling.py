"""Which clients take part: inclusion probabilities of least variance, Poisson draws, Horvitz-Thompson weights.

AFedSV+ (ShapleyFL, Sun et al. 2023) draws client i independently with probability p_i and weighs it w_i / p_i, so that
the aggregate is unbiased. Its variance is least where

    minimise Σ w_i² / p_i   subject to   Σ p_i = m,  floor ≤ p_i ≤ 1,

that is p_i = clip(w_i · s, floor, 1) for the one scale s that makes the sum m. Without a floor this is the candidate
with the smallest feasible number l of clients at probability 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.games import checks
from coterie.games.checks import FloatArray

IntArray = NDArray[np.int64]


class Draw(NamedTuple):
    """The clients of one round, and how many draws were empty before it."""

    selected: IntArray
    empty_draws: int


def inclusion_probabilities(weights: ArrayLike, m: int, *, floor: float = 0.0) -> FloatArray:
    """Probabilities of taking part for m clients on average, with the least variance of Σ w/p.

    A weight of zero gives probability `floor`, unless fewer than m weights are positive: what is left of m is then
    shared evenly among the zeros.
    """
    w = _weights(weights)
    n = w.size
    m = checks.whole_number("m, the expected number of clients,", m, least=1, most=n)
    floor = checks.fraction("floor", floor)
    if floor * n > m * (1 + 1e-12):
        raise ValueError(f"floor={floor} for {n} clients already sums to {floor * n:g}, more than m={m}: lower it")
    positive = w > 0
    zeros = n - int(positive.sum())
    if n - zeros + floor * zeros <= m:  # even all positive weights at probability 1 do not exceed m
        return np.where(positive, 1.0, max(floor, (m - n + zeros) / max(zeros, 1)))
    return np.clip(w * _scale(w, m, floor), floor, 1.0)


def _scale(w: FloatArray, m: int, floor: float) -> float:
    """The s with Σ clip(w · s, floor, 1) = m: bisect the points where the sum bends, then solve the straight piece."""
    inverse = 1 / w[w > 0]
    bends = np.unique(np.concatenate([[0.0], floor * inverse, inverse]))
    low, high = 0, len(bends) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if np.clip(w * bends[middle], floor, 1.0).sum() < m:
            low = middle
        else:
            high = middle
    inside = w * (bends[low] + bends[high]) / 2  # no weight changes its piece between two bends
    free = (inside > floor) & (inside < 1)
    if not free.any():
        return float(bends[high])
    fixed = np.clip(inside[~free], floor, 1.0).sum()
    return float((m - fixed) / w[free].sum())


def poisson_draw(probabilities: ArrayLike, rng: np.random.Generator) -> Draw:
    """Every client on its own with its probability; an empty draw is repeated and counted."""
    p = _probabilities(probabilities)
    rng = checks.generator(rng, "poisson_draw")
    if not p.any():
        raise ValueError("probabilities are all 0: nobody can ever be drawn, give at least one above 0")
    empty_draws = 0
    while True:
        selected = np.flatnonzero(rng.random(p.size) < p)
        if selected.size:
            return Draw(selected, empty_draws)
        empty_draws += 1


def horvitz_thompson_weights(
    weights: ArrayLike, probabilities: ArrayLike, selected: ArrayLike, *, redrawn: bool = False
) -> FloatArray:
    """w_i / p_i for the selected clients, so that Σ_selected w_i/p_i · x_i is Σ_all w_i · x_i on average.

    With `redrawn` they are scaled by 1 - Π(1 - p_j), the chance of a draw that is not empty: this keeps the average
    right where empty draws are repeated.
    """
    w, p = checks.finite_array("weights", weights, ndim=1), _probabilities(probabilities)
    if w.shape != p.shape:
        raise ValueError(f"there are {w.size} weights but {p.size} probabilities: give one of each per client")
    chosen = np.asarray(selected, dtype=np.int64).reshape(-1)
    outside = (chosen < 0) | (chosen >= w.size)
    if outside.any():
        raise ValueError(f"selected holds {chosen[outside][0]}: clients are numbered 0 to {w.size - 1}")
    if (p[chosen] == 0).any():
        raise ValueError(f"client {chosen[p[chosen] == 0][0]} is selected but its probability is 0: set a floor")
    ratio: FloatArray = w[chosen] / p[chosen]
    return ratio * (1 - np.prod(1 - p)) if redrawn else ratio


def _weights(weights: ArrayLike) -> FloatArray:
    """Weights scaled to a largest of 1; what is then too small to divide by is zero."""
    w = checks.finite_array("weights", weights, ndim=1)
    if (w < 0).any():
        raise ValueError(f"weights[{np.argmax(w < 0)}] is {w[w < 0][0]}: weights must not be negative")
    if not w.any():
        raise ValueError("weights are all 0: at least one must be positive (equal weights for a uniform draw)")
    scaled = w / w.max()
    return np.where(scaled < 1e-200, 0.0, scaled)


def _probabilities(probabilities: ArrayLike) -> FloatArray:
    p = checks.finite_array("probabilities", probabilities, ndim=1)
    outside = (p < 0) | (p > 1)
    if outside.any():
        raise ValueError(f"probabilities[{np.argmax(outside)}] is {p[outside][0]}: it must lie between 0 and 1")
    return p
