"""Who does harm, by what the server saw of the updates in all rounds. There are two kinds of evidence.

Worth. In a round with Shapley values SV, a client is d_i = (SV_i - median) / (1.4826 median |SV - median|) deviations
from the median client. This does not depend on how much is at stake in a round, nor, while less than half of its clients
are bad, on them.

Labels. With m_ck the mean log-odds that a client's model gives label k on the server's samples of class c, and e_ck its
standard error, a model that learned label k from samples of class k believes in it most for these. For the labels that
it answers more often than the model it started from, in proportion w_k to that,

    t_i = (0.25 + sum_k w_k (m_kk - m_ck)) / sqrt(sum_k w_k^2 (e_kk^2 + e_ck^2)),

c being the other class for which it believes most in k, and 0.25 what honest clients with similar classes may lack. One
with wrong labels is far below 0, however few classes it has; that its update is worth little need not show that,
because honest clients with few classes are often worth as little.

Each round counts within [-5, 5]; a client whose answer cannot be used has -5. Its score by one kind of evidence is the
mean over its rounds plus two standard errors, 2 / sqrt(rounds): what is left when the benefit of doubt is given. The
lower of its scores counts; below -bound a client is suspect.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.federation import name_order
from tasks.beliefs import Beliefs

FARTHEST = 5.0  # what one round can count
TO_NORMAL = 1.4826  # standard deviations in the median distance of a normal variable
TOLERANCE = 0.25  # of log-odds
DOUBT = 2.0  # standard errors
WORTH, LABELS = "worth", "labels"


class Evidence:
    def __init__(self) -> None:
        self.seen: dict[str, dict[str, tuple[float, int]]] = {WORTH: {}, LABELS: {}}  # sum and number of rounds

    def learn(
        self, clients: Sequence[str], worth: np.ndarray | None, labels: np.ndarray | None, unusable: Sequence[str] = ()
    ) -> None:
        """A round: Shapley values and label evidence of these clients, where known; others' answers were of no use."""
        if worth is not None:
            self._add(WORTH, clients, deviations(worth))
        if labels is not None:
            self._add(LABELS, clients, labels)
        self._add(WORTH, unusable, np.full(len(unusable), -FARTHEST))

    def _add(self, kind: str, clients: Sequence[str], values: np.ndarray) -> None:
        for client, value in zip(clients, np.clip(values, -FARTHEST, FARTHEST).tolist(), strict=True):
            total, rounds = self.seen[kind].get(client, (0.0, 0))
            self.seen[kind][client] = (total + value, rounds + 1)

    def judgement(self, bound: float) -> dict[str, Any]:
        """The suspects, by name, by which evidence, and everybody's score; {} before anybody was seen."""
        found: dict[str, tuple[float, str]] = {}
        for kind, seen in self.seen.items():
            for client, (total, rounds) in seen.items():
                score = (total / rounds + DOUBT / rounds**0.5, kind)
                found[client] = min(found.get(client, score), score)
        if not found:
            return {}
        suspects = sorted((client for client, (score, _) in found.items() if score < -bound), key=name_order)
        return {
            "suspects": suspects,
            "by": {client: found[client][1] for client in suspects},
            "score-below": -bound,
            "scores": {client: score for client, (score, _) in found.items()},
        }

    def state_dict(self) -> dict[str, dict[str, list[float]]]:
        return {kind: {client: list(entry) for client, entry in seen.items()} for kind, seen in self.seen.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        self.seen = {kind: {name: (total, int(n)) for name, (total, n) in seen.items()} for kind, seen in state.items()}


def deviations(values: np.ndarray) -> np.ndarray:
    """How far each value is from the median, in robust standard deviations; 0 for what is equal but for rounding."""
    away = values - np.median(values)
    scale = TO_NORMAL * np.median(np.abs(away))
    rounding = 1e-12 * max(1.0, float(np.abs(values).max()))
    away[np.abs(away) <= rounding] = 0.0
    return np.asarray(away / max(scale, rounding))


def label_evidence(before: Beliefs, after: Beliefs) -> float:
    """t of a client whose model went from `before` to `after`; 0 with fewer than two classes to compare."""
    labels = len(after.calls)
    if labels < 2:
        return 0.0
    gains = np.maximum(after.calls - before.calls, 0.0)
    shares = gains / gains.sum() if gains.any() else np.full(labels, 1 / labels)
    rivals = after.mean.copy()
    np.fill_diagonal(rivals, -np.inf)
    label, rival = np.arange(labels), rivals.argmax(axis=0)
    gaps = after.mean[label, label] - after.mean[rival, label]
    variances = after.error[label, label] ** 2 + after.error[rival, label] ** 2
    return float((shares @ gaps + TOLERANCE) / max(np.sqrt(shares**2 @ variances), 1e-12))
