"""The preferences d on the simplex over clients that suit one client best: a quasi-Newton search that asks for few evaluations.

Somebody else evaluates: `Search.candidates()` are points to try, and `Search.learn` takes their losses and, for the best of
them, the slope g = d loss / d preferences. One exchange tries several points at once, so that no step length has to be
chosen:

    q            the minimum on the simplex of g (x - d) + (x - d) B (x - d) / 2,  B: curvature learned from slopes (BFGS)
    candidates   d + t (q - d) for t in {1, 1/2, 1/8}, and the nearest points of the simplex to d - b g for three lengths b

The first candidates are the client alone, all together, and the client with each other one: the loss need not be convex in
d. Clients outside `allowed` never get weight. If no candidate is better, steps become shorter; the search is over when they
are tiny.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from coterie.games import checks
from coterie.games.checks import FloatArray

PARTS_OF_THE_WAY = (1.0, 0.5, 0.125)
FACTORS = (0.25, 1.0, 4.0)
SHORTER = 4.0**-3  # just below what was tried
SHORTEST = 1e-6
MODEL_STEPS = 200  # to find q
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


def fewest_within_noise(losses: ArrayLike, errors: ArrayLike, sizes: ArrayLike, *, margin: float = 0.0) -> int:
    """Which of several choices to take: of those whose loss is at most `margin` standard errors (of the difference) above the
    least, one that needs the fewest collaborators, `sizes`; of these the one with the least loss, then the first."""
    loss = checks.finite_array("losses", losses, ndim=1)
    error, size = checks.finite_array("errors", errors, ndim=1), checks.finite_array("sizes", sizes, ndim=1)
    if not len(loss) or not loss.shape == error.shape == size.shape:
        raise ValueError(
            f"losses {loss.shape}, errors {error.shape} and sizes {size.shape}: give one of each per choice"
        )
    near = np.flatnonzero(loss <= loss.min() + margin * error)
    return int(min(near, key=lambda k: (size[k], loss[k], k)))


class Search:
    """For `client` among `n`, who may be helped by `allowed` (all by default; the client itself is always in)."""

    def __init__(self, client: int, n: int, allowed: Collection[int] | None = None) -> None:
        self.client, self.n = client, n
        self.allowed = frozenset(range(n) if allowed is None else allowed) | {client}
        self.point: FloatArray = even({client}, n)
        self.loss = np.inf
        self.slope: FloatArray = np.zeros(n)
        self.curvature: FloatArray | None = None
        self.reach = 1.0  # how far steps along the slope go, in units of the simplex

    @property
    def finished(self) -> bool:
        return bool(np.isfinite(self.loss)) and (self.reach < SHORTEST or self._spread() == 0)

    def candidates(self) -> FloatArray:
        """Points to be tried, (points, clients)."""
        if not np.isfinite(self.loss):
            others = sorted(self.allowed - {self.client})
            sets = [{self.client}, self.allowed, *[{self.client, other} for other in others[:MOST_PAIRS]]]
            return np.unique([even(members, self.n) for members in sets], axis=0)
        unit = self.reach / self._spread()
        rows = [on_simplex(self.point - factor * unit * self.slope, self.allowed) for factor in FACTORS]
        if self.curvature is not None:
            way = self._minimum(self.curvature) - self.point
            rows += [self.point + part * way for part in PARTS_OF_THE_WAY]
        return np.array(rows)

    def learn(self, candidates: ArrayLike, losses: ArrayLike, slope: ArrayLike) -> None:
        """The losses of the candidates, and the slope at the best of them."""
        tried, values = checks.finite_array("candidates", candidates, ndim=2), np.asarray(losses, dtype=float)
        best = int(np.argmin(values))
        if not values[best] < self.loss:
            self.reach *= SHORTER
            self.curvature = None
            return
        slope = checks.finite_array("slope", slope, ndim=1)
        if np.isfinite(self.loss):
            self._bend(tried[best] - self.point, slope - self.slope)
            self.reach = min(1.0, self.reach * (FACTORS[best] if best < len(FACTORS) else 1.0))
        self.point, self.loss, self.slope = tried[best], float(values[best]), slope

    def _spread(self) -> float:
        return float(np.ptp(self.slope[sorted(self.allowed)]))

    def _bend(self, moved: FloatArray, change: FloatArray) -> None:
        """The update of Broyden, Fletcher, Goldfarb and Shanno; where the loss bends downwards nothing is learned."""
        product = float(moved @ change)
        if product <= 1e-10 * float(np.linalg.norm(moved) * np.linalg.norm(change)):
            return
        if self.curvature is None:
            self.curvature = np.eye(self.n) * (float(change @ change) / product)
        bent = self.curvature @ moved
        self.curvature = (
            self.curvature + np.outer(change, change) / product - np.outer(bent, bent) / float(moved @ bent)
        )

    def _minimum(self, curvature: FloatArray) -> FloatArray:
        """q, by accelerated projected gradients (Beck & Teboulle 2009)."""
        step = 1 / float(np.linalg.eigvalsh(curvature)[-1])
        x = ahead = self.point
        momentum = 1.0
        for _ in range(MODEL_STEPS):
            new = on_simplex(ahead - step * (self.slope + curvature @ (ahead - self.point)), self.allowed)
            grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = new + (momentum - 1) / grown * (new - x)
            x, momentum = new, grown
        return x
