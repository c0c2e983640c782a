"""Who does harm, by what the server saw of the updates in all rounds. Two things count against a client:

Worth. In a round with Shapley values SV, a client is d_i = (SV_i - median) / (1.4826 median |SV - median|) deviations
from the median client. This does not depend on how much is at stake in a round, nor, while less than half of its clients
are bad, on them.

Labels. An honest client with few classes is often worth as little as one with wrong labels. But a model that learned
label k from samples of class k gives it to these more often than to any others. With r_ck the share of the server's n_c
samples of class c to which the client's model gives label k,

    t_i = sum_k w_k (r_kk - r_ck) / sqrt(sum_k w_k^2 v_k),    v_k = sum_{j in k, c} r_jk (1 - r_jk) / n_j + 1 / (2 n_j)^2,

c being the other class that gets k most often, and w_k proportional to how much more often the model gives label k than
the one it started from. It counts where it is below 0.

Both are within [-5, 5] and are put together as (d + min(t, 0)) / sqrt(2) (Stouffer 1949); a client whose answer cannot be
used has -5. Its score is the mean over its rounds plus two standard errors, 2 / sqrt(rounds): what is left when the
benefit of doubt is given. A client with a score below -bound is suspect.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.federation import name_order
from tasks.answers import Answers

FARTHEST = 5.0  # what one round can count
TO_NORMAL = 1.4826  # standard deviations in the median distance of a normal variable
DOUBT = 2.0  # standard errors


class Evidence:
    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, int]] = {}  # sum over rounds and their number

    def learn(
        self, clients: Sequence[str], worth: np.ndarray | None, labels: np.ndarray | None, unusable: Sequence[str] = ()
    ) -> None:
        """A round: Shapley values and label evidence of these clients, where known; others' answers were of no use."""
        known = [] if worth is None else [deviations(worth)]
        known += [] if labels is None else [np.minimum(labels, 0.0)]
        if known:
            limited = np.clip(known, -FARTHEST, FARTHEST)
            self._add(clients, limited.sum(axis=0) / np.sqrt(len(limited)))
        self._add(unusable, np.full(len(unusable), -FARTHEST))

    def _add(self, clients: Sequence[str], values: np.ndarray) -> None:
        for client, value in zip(clients, values.tolist(), strict=True):
            total, rounds = self.seen.get(client, (0.0, 0))
            self.seen[client] = (total + value, rounds + 1)

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


def deviations(values: np.ndarray) -> np.ndarray:
    """How far each value is from the median, in robust standard deviations; 0 for what is equal but for rounding."""
    away = values - np.median(values)
    scale = TO_NORMAL * np.median(np.abs(away))
    rounding = 1e-12 * max(1.0, float(np.abs(values).max()))
    away[np.abs(away) <= rounding] = 0.0
    return np.asarray(away / max(scale, rounding))


def label_evidence(before: Answers, after: Answers) -> float:
    """t of a client whose model went from `before` to `after`; 0 with fewer than two classes to compare."""
    labels = len(after.counts)
    if labels < 2:
        return 0.0
    gains = np.maximum((after.rates - before.rates).mean(axis=0), 0.0)
    shares = gains / gains.sum() if gains.any() else np.full(labels, 1 / labels)
    others = after.rates.copy()
    np.fill_diagonal(others, -1.0)
    own, rival = np.arange(labels), others.argmax(axis=0)
    spread = after.rates * (1 - after.rates) / after.counts[:, None] + 1 / (2 * after.counts[:, None]) ** 2
    gaps = after.rates[own, own] - after.rates[rival, own]
    return float(shares @ gaps / np.sqrt(shares**2 @ (spread[own, own] + spread[rival, own])))
