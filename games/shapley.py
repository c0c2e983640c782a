"""Shapley values: what each player of a cooperative game contributed.

    φ_i = Σ_{S ∌ i} |S|! (n-|S|-1)! / n! · (v(S + i) - v(S))        (Shapley, 1953)

`estimate` runs one of several methods over one memory of utilities and one budget of distinct evaluations:
`exact` (all 2^n coalitions), `mc` (random orders), `tmc` (truncated orders), `dmc` (differences to a pivot; ShapleyFL,
Sun et al. 2023), `cc` (complementary contributions; Zhang et al. 2023), and `auto`: exact when that costs no more than
the budget, else cc, else mc where the budget is too small for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from coterie.games import checks, estimators
from coterie.games.checks import FloatArray
from coterie.games.memo import Memo, Utility

METHODS = ("auto", "exact", "mc", "tmc", "dmc", "cc")
LARGEST_EXACT = 24  # a table of 2^24 utilities takes 128 MB


class Options(TypedDict, total=False):
    """What a method may be told beyond its budget; see `estimate`."""

    known: Mapping[frozenset[int], float] | None
    antithetic: bool
    pivot: int | None
    tolerance: float


@dataclass(frozen=True)
class Estimate:
    """Shapley values and what they took."""

    values: FloatArray  # (players,)
    standard_errors: FloatArray  # (players,); 0 when exact, nan when too little was drawn to tell
    evaluations: int  # distinct coalitions whose utility was asked for
    method: str  # the one that ran, never "auto"


def shapley_values(
    utility: Utility,
    n: int,
    *,
    method: str = "exact",
    budget: int | None = None,
    rng: np.random.Generator | None = None,
    **options: Unpack[Options],
) -> FloatArray:
    """The values alone of `estimate`, which see."""
    return estimate(utility, n, method=method, budget=budget, rng=rng, **options).values


def estimate(
    utility: Utility,
    n: int,
    *,
    method: str = "exact",
    budget: int | None = None,
    rng: np.random.Generator | None = None,
    known: Mapping[frozenset[int], float] | None = None,
    antithetic: bool = False,
    pivot: int | None = None,
    tolerance: float = 0.01,
) -> Estimate:
    """Shapley values of the game `utility` (a function of a frozenset) among players 0 … n-1.

    budget      most distinct evaluations; by default all 2^n for exact, 3n² for the others (what 3n orders ask for)
    rng         generator of the samplers; exact needs none
    known       utilities known beforehand: they are not evaluated and cost nothing. v(∅) and v(N) move all values of
                exact, dmc and cc by the same amount, so who only needs differences may pass any number for them
    antithetic  mc, tmc: every order is followed by its reverse
    pivot       dmc: the player that the others are compared with; by default one drawn by rng
    tolerance   tmc: an order is cut off where v is within this share of |v(N) - v(∅)| of v(N)
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    n = checks.whole_number("n, the number of players,", n, least=2)
    if pivot is not None:
        pivot = checks.whole_number("pivot", pivot, least=0, most=n - 1)
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance is {tolerance}: it must lie in [0, 1)")
    if budget is None:
        budget = 1 << n if method == "exact" else 3 * n * n
    memo = Memo(utility, n, checks.whole_number("budget", budget, least=1), known or {})
    cost = (1 << n) - len(known or {})
    if method == "auto":
        dear = estimators.least_budget("cc", n) - 2 + memo.missing([0, memo.grand]) > memo.budget
        method = "exact" if cost <= memo.budget and n <= LARGEST_EXACT else "mc" if dear else "cc"
    if method == "exact":
        if n > LARGEST_EXACT or cost > memo.budget:
            raise ValueError(
                f"exact values of {n} players take {cost} evaluations, more than "
                f"{f'budget={memo.budget}' if n <= LARGEST_EXACT else 'fit in memory'}: use method='auto' or 'cc'"
            )
        return _exact(memo, method)
    rng = checks.generator(rng, f"method {method!r}")
    if method == "mc":
        values, errors = estimators.permutations(memo, rng, antithetic=antithetic)
    elif method == "tmc":
        values, errors = estimators.permutations(memo, rng, antithetic=antithetic, tolerance=tolerance or None)
    elif method == "dmc":
        chosen = int(rng.integers(n)) if pivot is None else pivot
        values, errors = estimators.pivot_differences(memo, rng, pivot=chosen)
    else:
        values, errors = estimators.complementary_contributions(memo, rng)
    if memo.complete:  # every coalition is known by now: no need to estimate
        return _exact(memo, method)
    return Estimate(values, errors, memo.evaluations, method)


def _exact(memo: Memo, method: str) -> Estimate:
    table = np.fromiter((memo(mask) for mask in range(1 << memo.n)), np.float64, 1 << memo.n)
    return Estimate(shapley_from_table(table), np.zeros(memo.n), memo.evaluations, method)


def shapley_from_table(table: ArrayLike) -> FloatArray:
    """Exact values from the utilities of all coalitions; entry m belongs to the players whose bits are set in m.

    φ_i sums v(S) · (s-1)!(n-s)!/n! over S with i, minus v(S) · s!(n-s-1)!/n! over S without. Adding the second sum over
    all S to both leaves one weight per coalition; sums over the coalitions with i come from folding the table in half.
    """
    utilities = checks.finite_array("table", table, ndim=1)
    n = utilities.size.bit_length() - 1
    if utilities.size != 1 << n or n < 2:
        raise ValueError(f"table has {utilities.size} entries: it must hold all 2^n coalitions of n ≥ 2 players")
    sizes = np.zeros(1, dtype=np.int64)
    for _ in range(n):
        sizes = np.concatenate([sizes, sizes + 1])
    # s!(n-s-1)!/n! = 1 / (n · C(n-1, s)); a coalition of all n has nobody to add, the empty one nobody to lose
    lost = np.array([1 / (n * math.comb(n - 1, s)) for s in range(n)] + [0.0])
    gained = np.concatenate([[0.0], lost[:-1]])
    utilities = utilities - utilities[0]
    without = float(lost[sizes] @ utilities)
    folded = (lost + gained)[sizes] * utilities
    values = np.empty(n)
    for player in reversed(range(n)):
        lower, upper = folded.reshape(2, -1)
        values[player] = upper.sum() - without
        folded = lower + upper
    return values


def normalise(values: ArrayLike, *, tolerance: float = 1e-12) -> FloatArray | None:
    """Values scaled to [0, 1]: (φ - min φ) / (max φ - min φ), the NSV of ShapleyFL.

    None when the scaling is undefined: one value only, or all equal up to `tolerance` times max(1, largest |φ|), where
    only rounding would be scaled up. The caller then keeps what it had.
    """
    array = checks.finite_array("values", values, ndim=1)
    low, high = array.min(), array.max()
    if high - low <= tolerance * max(1.0, abs(low), abs(high)):
        return None
    scaled: FloatArray = (array - low) / (high - low)
    return scaled
