"""Who does harm, by what the server saw of the updates in all rounds. Two things count against a client:

Worth. In a round with Shapley values SV, a client is d_i = (SV_i - median) / s deviations from the median client, where
s = 1.4826 median |SV - median|. This does not depend on how much is at stake in a round, nor, while less than half of
its clients are bad, on them.

Explanation. An honest client with few classes is often worth as little as one with wrong labels. But its update is one
that right labels lead to. Let q_i be the share of the update that they explain (tasks/explained.py). A client is
z_i = (q_i - upper quartile) / s deviations from those whose updates are explained best, with s as above but within
[0.05, 0.15]: clients that all are explained well do not differ, and bad ones cannot stretch the scale. It counts where
it is below 0.

Both are within [-5, 5] and are put together as (d + min(z, 0)) / sqrt(2) (Stouffer 1949); a client whose answer cannot be
used has -5. Its score is the mean over its rounds plus two standard errors, 2 / sqrt(rounds): what is left when the
benefit of doubt is given. A client with a score below -bound is suspect.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding

FARTHEST = 5.0  # what one round can count
TO_NORMAL = 1.4826  # standard deviations in the median distance of a normal variable
DOUBT = 2.0  # standard errors
SPREADS = (0.05, 0.15)  # least and most that explained shares of honest clients are taken to differ by


class Evidence:
    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, int]] = {}  # sum over rounds and their number

    def learn(
        self, clients: Sequence[str], worth: np.ndarray | None, shares: np.ndarray | None, unusable: Sequence[str] = ()
    ) -> None:
        """A round: Shapley values and explained shares of these clients, where known; others' answers were of no use."""
        known = [] if worth is None else [deviations(worth)]
        known += [] if shares is None or not len(shares) else [shortfalls(shares)]
        if known:
            limited = np.clip(known, -FARTHEST, FARTHEST)
            self._add(clients, limited.sum(axis=0) / np.sqrt(len(limited)))
        self._add(unusable, np.full(len(unusable), -FARTHEST))

    def _add(self, clients: Sequence[str], values: np.ndarray) -> None:
        for client, value in zip(clients, values.tolist(), strict=True):
            total, rounds = self.seen.get(client, (0.0, 0))
            self.seen[client] = (total + value, rounds + 1)

    def findings(self, bound: float) -> list[Finding]:
        """Everybody's score, and who is suspect by it; nothing before anybody was seen."""
        if not self.seen:
            return []
        scores = {client: total / rounds + DOUBT / rounds**0.5 for client, (total, rounds) in self.seen.items()}
        suspects = sorted((client for client, score in scores.items() if score < -bound), key=name_order)
        return [Finding("suspects", "scores", scores, facts={"suspects": suspects, "score-below": -bound})]

    def state_dict(self) -> dict[str, list[float]]:
        return {client: list(entry) for client, entry in self.seen.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        self.seen = {client: (total, int(rounds)) for client, (total, rounds) in state.items()}


def deviations(values: np.ndarray) -> np.ndarray:
    """How far each value is from the median, in robust standard deviations; 0 for what is equal but for rounding."""
    away = values - np.median(values)
    scale = spread(values)
    rounding = 1e-12 * max(1.0, float(np.abs(values).max()))
    away[np.abs(away) <= rounding] = 0.0
    return np.asarray(away / max(scale, rounding))


def shortfalls(shares: np.ndarray) -> np.ndarray:
    """How far each share is below the best quarter of them; 0 for these."""
    return np.asarray(np.minimum(shares - np.quantile(shares, 0.75), 0.0) / np.clip(spread(shares), *SPREADS))


def spread(values: np.ndarray) -> float:
    """A robust standard deviation."""
    return float(TO_NORMAL * np.median(np.abs(values - np.median(values))))
