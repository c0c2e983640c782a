"""Who does harm, by the Shapley values of all rounds.

In a round with values SV, a client is d_i = (SV_i - median) / (1.4826 median |SV - median|) deviations from the median
client, within [-5, 5]; one whose answer cannot be used is -5. Its score is the mean of d over its rounds plus two
standard errors, 2 / sqrt(rounds): what is left when the benefit of doubt is given. A client with a score below -bound is
suspect. Neither depends on how much is at stake in a round, nor, while less than half of its clients are bad, on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from strategies.federation import name_order

FARTHEST = 5.0  # deviations from the median that a round can count
TO_NORMAL = 1.4826  # standard deviations in the median distance of a normal variable
DOUBT = 2.0  # standard errors


class Evidence:
    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, int]] = {}  # sum of d and number of rounds

    def observe(self, clients: Sequence[str], values: np.ndarray) -> None:
        away = values - np.median(values)
        scale = TO_NORMAL * np.median(np.abs(away))
        rounding = 1e-12 * max(1.0, float(np.abs(values).max()))
        away[np.abs(away) <= rounding] = 0.0
        self._add(clients, np.clip(away / max(scale, rounding), -FARTHEST, FARTHEST).tolist())

    def refuse(self, clients: Sequence[str]) -> None:
        """Their answers could not be used."""
        self._add(clients, [-FARTHEST] * len(clients))

    def _add(self, clients: Sequence[str], deviations: Iterable[float]) -> None:
        for client, deviation in zip(clients, deviations, strict=True):
            total, rounds = self.seen.get(client, (0.0, 0))
            self.seen[client] = (total + deviation, rounds + 1)

    def judgement(self, bound: float) -> dict[str, Any]:
        """The suspects, by name, and everybody's score; {} before anybody was seen."""
        if not self.seen:
            return {}
        scores = {client: total / rounds + DOUBT / rounds**0.5 for client, (total, rounds) in self.seen.items()}
        suspects = sorted((client for client, score in scores.items() if score < -bound), key=name_order)
        return {"suspects": suspects, "score-below": -bound, "scores": scores}

    def state_dict(self) -> dict[str, list[float]]:
        return {client: list(entry) for client, entry in self.seen.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        self.seen = {client: (total, int(rounds)) for client, (total, rounds) in state.items()}
