"""The preferences d on the simplex over clients that suit one client best: projected gradients with a line search.

Somebody else evaluates: `Search.candidates()` are points to try, and `Search.learn` takes their losses and, for the best of them, the
slope d loss / d preferences. So a search costs one exchange per step, whatever the loss is, and has no step length to be chosen:

    d <- the best of   P(d - b slope),   b in {1/16, 1/4, 1, 4, 16} x the last good one;    P: nearest point of the simplex

The first candidates are the client alone, all together, and the client with each other one: the loss need not be convex in d. Clients
outside `allowed` never get weight. If no candidate is better, steps become shorter; the search is over when they are tiny.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from games import checks
from games.checks import FloatArray

FACTORS = 4.0 ** np.arange(-2, 3)
SHORTER = 4.0**-5  # just below what was tried
SHORTEST = 1e-9
MOST_PAIRS = 62  # first candidates: the client with each other one


def on_simplex(point: ArrayLike, allowed: Collection[int] | None = None) -> FloatArray:
    """The nearest point of the simplex that gives weight to `allowed` only (Held, Wolfe & Crowder 1974)."""
    values = checks.finite_array("point", point, ndim=1)
    inside = np.arange(len(values)) if allowed is None else np.array(sorted(allowed), dtype=int)
    if not len(inside):
        raise ValueError("allowed is empty: at least one client must have weight")
    descending = np.sort(values[inside])[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(inside) + 1)
    cut = excess[np.flatnonzero(descending > excess)[-1]]
    nearest = np.zeros(len(values))
    nearest[inside] = np.maximum(values[inside] - cut, 0)
    return np.asarray(nearest / nearest.sum())


def even(members: Collection[int], n: int) -> FloatArray:
    """The same weight for all members."""
    weights = np.zeros(n)
    weights[sorted(members)] = 1 / len(members)
    return weights


class Search:
    """For `client` among `n`, who may be helped by `allowed` (all by default; the client itself is always in)."""

    def __init__(self, client: int, n: int, allowed: Collection[int] | None = None) -> None:
        self.client, self.n = client, n
        self.allowed = frozenset(range(n) if allowed is None else allowed) | {client}
        self.point: FloatArray = even({client}, n)
        self.loss = np.inf
        self.slope: FloatArray = np.zeros(n)
        self.length = 0.0  # the last good b; 0: nothing was tried yet

    @property
    def finished(self) -> bool:
        return bool(np.isfinite(self.loss)) and self.length < SHORTEST * self._unit()

    def candidates(self) -> FloatArray:
        """Points to be tried, (points, clients)."""
        if not np.isfinite(self.loss):
            others = sorted(self.allowed - {self.client})
            sets = [{self.client}, self.allowed, *[{self.client, other} for other in others[:MOST_PAIRS]]]
            return np.unique([even(members, self.n) for members in sets], axis=0)
        return np.array([on_simplex(self.point - b * self.slope, self.allowed) for b in self.length * FACTORS])

    def learn(self, candidates: ArrayLike, losses: ArrayLike, slope: ArrayLike) -> None:
        """The losses of the candidates, and the slope at the best of them."""
        tried, values = checks.finite_array("candidates", candidates, ndim=2), np.asarray(losses, dtype=float)
        best = int(np.argmin(values))
        if not values[best] < self.loss:
            self.length *= SHORTER
            return
        first = not np.isfinite(self.loss)
        self.point, self.loss = tried[best], float(values[best])
        self.slope = checks.finite_array("slope", slope, ndim=1)
        self.length = self._unit() if first else self.length * float(FACTORS[best])

    def _unit(self) -> float:
        """The b that moves d by about 1."""
        allowed = self.slope[sorted(self.allowed)]
        spread = float(np.ptp(allowed))
        return 1 / spread if spread > 0 else 0.0
