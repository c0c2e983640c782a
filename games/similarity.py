"""How alike two clients' data are, seen from their classifiers (pFedSim, Tan et al. 2023, Eq. 3).

    Φ_ij = -1/C Σ_c log(1 - max(0, cos(φ_ic, φ_jc))),   φ_ic = row c of client i's last linear layer, bias left out

Cosines are clamped to 1 - 1e-4 and everything is float64: identical rows count 9.21 instead of infinity. A row of zeros
has no direction and counts as unlike everything. The authors' code averages the cosines before the logarithm; that is
`variant="authors"`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.games import checks
from coterie.games.checks import FloatArray

LARGEST_COSINE = 1 - 1e-4
SELF_WEIGHT = -math.log(1 - LARGEST_COSINE)  # 9.21: as much as an identical classifier of somebody else
VARIANTS = ("paper", "authors")


def classifier_similarity(
    classifiers: ArrayLike, *, self_weight: float = SELF_WEIGHT, variant: str = "paper"
) -> FloatArray:
    """The similarity of all pairs of clients, (clients, clients), with `self_weight` on the diagonal.

    classifiers has the shape (clients, classes, features). The paper's own self weight is 1.
    """
    array = checks.finite_array("classifiers", classifiers, ndim=3)
    similarity = similarity_rows(array, range(len(array)), self_weight=self_weight, variant=variant)
    return (similarity + similarity.T) / 2  # a matrix product may round [i, j] and [j, i] differently


def similarity_rows(
    classifiers: ArrayLike,
    selected: Sequence[int] | NDArray[np.int64],
    *,
    self_weight: float = SELF_WEIGHT,
    variant: str = "paper",
) -> FloatArray:
    """The rows of `classifier_similarity` for the selected clients only: (selected, clients)."""
    array = checks.finite_array("classifiers", classifiers, ndim=3)
    clients, classes, _ = array.shape
    chosen = [checks.whole_number("selected client", client, least=0, most=clients - 1) for client in selected]
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}: choose one of {', '.join(VARIANTS)}")
    if not (math.isfinite(self_weight) and self_weight >= 0):
        raise ValueError(f"self_weight is {self_weight}: it must be finite and not negative")
    total = np.zeros((len(chosen), clients))
    for directions in _directions(array):
        cosines = directions[chosen] @ directions.T
        total += cosines if variant == "authors" else _closeness(cosines)
    total /= classes
    if variant == "authors":
        total = _closeness(total)
    total[np.arange(len(chosen)), chosen] = self_weight
    return total


def _directions(classifiers: FloatArray) -> FloatArray:
    """Unit rows, (classes, clients, features); zero rows stay zero. Scaling first keeps squares from overflowing."""
    rows = classifiers.transpose(1, 0, 2)
    largest = np.abs(rows).max(axis=2, keepdims=True)
    scaled: FloatArray = np.divide(rows, largest, out=np.zeros(rows.shape), where=largest > 0)
    norms = np.linalg.norm(scaled, axis=2, keepdims=True)
    np.divide(scaled, norms, out=scaled, where=norms > 0)
    return scaled


def _closeness(cosines: FloatArray) -> FloatArray:
    """-log(1 - cos) of the clamped cosines, in place."""
    np.clip(cosines, 0.0, LARGEST_COSINE, out=cosines)
    np.log1p(np.negative(cosines, out=cosines), out=cosines)
    return np.negative(cosines, out=cosines)


def aggregation_weights(similarity: ArrayLike) -> FloatArray:
    """Rows scaled to sum 1: times the stored extractors (clients, parameters) they are the personalised averages."""
    rows = checks.finite_array("similarity", similarity, ndim=2)
    if (rows < 0).any():
        raise ValueError(f"similarity holds {rows.min()}: entries must not be negative")
    totals = rows.sum(axis=1, keepdims=True)
    if (totals == 0).any():
        raise ValueError(f"row {np.argmin(totals)} of similarity is all 0: give a self weight above 0")
    weights: FloatArray = rows / totals
    return weights
