"""All coalitions of a few averaged models at once.

    f_S = Σ_{i ∈ S} a_i f_i / Σ_{i ∈ S} a_i      for all 2^n coalitions S of the members' outputs f_1 … f_n

Row m of a table belongs to the members whose bits are set in m, as `games.shapley.shapley_from_table` reads it.
Sums double up: the coalitions with member i are those of the members before it, plus f_i; n steps instead of 2^n.

Clients that share an extractor differ in a linear classifier only. The logits of an averaged linear classifier are the
average of the logits, so one forward pass per member gives the accuracy and loss of every coalition (pFedSV, Wu et al.
2022, §5.1). For outputs that are not linear in the averaged parameters this would be an ensemble, not the average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from coterie.games import checks
from coterie.games.checks import FloatArray

MOST_MEMBERS = 20
BLOCK = 1 << 18  # numbers held at once by coalition_scores: 2 MB stay in the processor's cache


@dataclass(frozen=True)
class CoalitionScores:
    """Accuracy and mean cross-entropy of every coalition, by bit mask."""

    accuracy: FloatArray  # (2^n,); 0 for the empty coalition, as in pFedSV
    loss: FloatArray  # (2^n,); log(classes) for the empty coalition: it guesses uniformly


def coalition_averages(outputs: ArrayLike, *, weights: ArrayLike | None = None) -> FloatArray:
    """The average of every coalition, (2^n, …), from one output or parameter array per member, (n, …).

    Row 0, the empty coalition, is zero. Weights, for example sample counts, are uniform by default.
    """
    array = np.asarray(outputs, dtype=np.float64)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"outputs has the shape {array.shape}: give one array per member, (members, …)")
    checks.finite_array("outputs", array, ndim=array.ndim)
    shares = _member_weights(weights, len(array))
    columns = (slice(None),) + (None,) * (array.ndim - 1)
    totals = _subset_sums(shares)
    totals[0] = 1.0  # the empty sum is 0 whatever it is divided by
    sums = _subset_sums(array * shares[columns])
    sums /= totals[columns]
    return sums


def coalition_scores(logits: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> CoalitionScores:
    """Accuracy and loss of every coalition's averaged logits; logits (n, samples, classes), labels (samples,)."""
    array = checks.finite_array("logits", logits, ndim=3)
    members, samples, classes = array.shape
    truth = np.asarray(labels)
    if truth.shape != (samples,) or not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels must be {samples} whole numbers, but they are {truth.dtype} of shape {truth.shape}")
    if truth.min() < 0 or truth.max() >= classes:
        raise ValueError(f"labels reach from {truth.min()} to {truth.max()}: they must lie in 0 to {classes - 1}")
    _member_weights(weights, members)
    correct, loss = np.zeros(1 << members), np.zeros(1 << members)
    step = max(1, BLOCK // (classes << members))
    for start in range(0, samples, step):
        # classes before samples: numpy reduces an axis of ten classes far faster when it is not the last
        block, answers = array[:, start : start + step].transpose(0, 2, 1), truth[start : start + step]
        averages = coalition_averages(block, weights=weights)  # (coalitions, classes, step)
        correct += (averages.argmax(axis=1) == answers).sum(axis=1)
        averages -= averages.max(axis=1, keepdims=True)
        right = averages[:, answers, np.arange(len(answers))]
        loss += (np.log(np.exp(averages, out=averages).sum(axis=1)) - right).sum(axis=1)
    correct[0] = 0.0
    return CoalitionScores(correct / samples, loss / samples)


def _subset_sums(values: FloatArray) -> FloatArray:
    """Sums over all subsets of the first axis, (n, …) → (2^n, …)."""
    sums = np.zeros((1 << len(values), *values.shape[1:]))
    for member, value in enumerate(values):
        np.add(sums[: 1 << member], value, out=sums[1 << member : 2 << member])
    return sums


def _member_weights(weights: ArrayLike | None, members: int) -> FloatArray:
    if members > MOST_MEMBERS:
        raise ValueError(f"{members} members have 2^{members} coalitions: at most {MOST_MEMBERS} members fit in memory")
    shares = checks.finite_array("weights", np.ones(members) if weights is None else weights, ndim=1)
    if shares.shape != (members,) or (shares <= 0).any():
        raise ValueError(f"weights must be {members} positive numbers, one per member, not {shares.tolist()}")
    return shares
