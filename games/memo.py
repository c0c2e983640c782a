"""One memory and one budget for the utility of coalitions.

A coalition is a bit mask inside `games` (player i is bit i) and a frozenset for the caller's utility. A coalition is
evaluated once; only distinct evaluations count against the budget, and utilities known beforehand cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Utility = Callable[[frozenset[int]], float]


class Memo:
    """Utilities of coalitions by bit mask, evaluated when first asked for."""

    def __init__(self, utility: Utility, n: int, budget: int, known: Mapping[frozenset[int], float]) -> None:
        self.n = n
        self.grand = (1 << n) - 1
        self.budget = budget
        self.evaluations = 0
        self._utility = utility
        self._values: dict[int, float] = {}
        for coalition, value in known.items():
            strangers = sorted(set(coalition) - set(range(n)), key=str)
            if strangers:
                raise ValueError(f"known holds a coalition with player {strangers[0]!r}: players are 0 to {n - 1}")
            self._values[sum(1 << player for player in coalition)] = _checked(value, coalition)

    def __call__(self, mask: int) -> float:
        if mask not in self._values:
            coalition = frozenset(player for player in range(self.n) if mask >> player & 1)
            try:
                value = self._utility(coalition)
            except Exception as error:
                raise ValueError(f"utility raised {error!r} for coalition {sorted(coalition)}") from error
            self._values[mask] = _checked(value, coalition)
            self.evaluations += 1
        return self._values[mask]

    def missing(self, masks: Iterable[int]) -> int:
        """How many distinct evaluations these coalitions would still take."""
        return sum(mask not in self._values for mask in set(masks))

    def affords(self, masks: Iterable[int]) -> bool:
        """Whether the budget covers these coalitions."""
        return self.evaluations + self.missing(masks) <= self.budget

    @property
    def complete(self) -> bool:
        """Whether every coalition is known, so that the exact value is too."""
        return len(self._values) == 1 << self.n


def _checked(value: Any, coalition: Iterable[int]) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"utility of coalition {sorted(coalition)} is {value!r}: it must be a number") from error
    if not math.isfinite(number):
        raise ValueError(f"utility of coalition {sorted(coalition)} is {number}: it must be finite")
    return number
