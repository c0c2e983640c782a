"""Whom a client listens to: pFedSV's relevance vector, whom to download, and how to weigh them (Wu et al. 2022).

    relevance   φ_j ← alpha φ_j + (1 - alpha) SV_j    for every j in the downloaded coalition S
    weights     w_j ∝ max(SV_j, 0) / dist_j           dist_j = |θ_j - θ_i at the start of the round|

Decided where the paper is silent or cannot work: alpha = 0.2; the own model is compared with itself at the start of
the round; if nobody's value is positive the client keeps its own model; k shrinks only after everybody was downloaded
once, and until then those never downloaded come first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from coterie.games import checks
from coterie.games.checks import FloatArray
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]


def update_relevance(
    relevance: ArrayLike, members: Sequence[int] | IntArray, values: ArrayLike, *, alpha: float = 0.2
) -> FloatArray:
    """The relevance vector after the members of a coalition got these Shapley values; the others keep theirs."""
    updated = checks.finite_array("relevance", relevance, ndim=1).copy()
    shapley = checks.finite_array("values", values, ndim=1)
    alpha = checks.fraction("alpha", alpha)
    chosen = [checks.whole_number("member", member, least=0, most=updated.size - 1) for member in members]
    if len(chosen) != shapley.size or len(set(chosen)) != len(chosen):
        raise ValueError(f"members {chosen} and {shapley.size} values do not match: give one value per distinct member")
    updated[chosen] = alpha * updated[chosen] + (1 - alpha) * shapley
    return updated


def choose_collaborators(
    relevance: ArrayLike, downloaded: ArrayLike, own: int, k: int, rng: np.random.Generator
) -> IntArray:
    """The clients to download next, best first; equal scores in random order.

    While some client was never downloaded, k of them: those first (at random), then by relevance. After that as many as
    have positive relevance, at least one and at most k.
    """
    scores = checks.finite_array("relevance", relevance, ndim=1)
    seen = np.asarray(downloaded, dtype=bool)
    if seen.shape != scores.shape:
        raise ValueError(f"downloaded has the shape {seen.shape}, relevance {scores.shape}: give one flag per client")
    own = checks.whole_number("own", own, least=0, most=scores.size - 1)
    k = checks.whole_number("k", k, least=1)
    others = checks.generator(rng, "choose_collaborators").permutation(np.delete(np.arange(scores.size), own))
    unseen = ~seen[others]
    count = k if unseen.any() else min(k, max(1, int((scores[others] > 0).sum())))
    # lexsort is stable and sorts by its last key first; the permutation above breaks ties
    ranked = others[np.lexsort((np.where(unseen, 0.0, -scores[others]), ~unseen))]
    return ranked[:count]


def aggregation_weights(values: ArrayLike, distances: ArrayLike, own: int) -> FloatArray:
    """The share of each member's model in the own new model; `own` is the client's place among the members.

    A distance of zero (a client that took no step) counts as the smallest positive one among those with a share, or as
    1 if there is none.
    """
    shapley = checks.finite_array("values", values, ndim=1)
    apart = checks.finite_array("distances", distances, ndim=1)
    if apart.shape != shapley.shape:
        raise ValueError(f"there are {shapley.size} values but {apart.size} distances: give one of each per member")
    if (apart < 0).any():
        raise ValueError(f"distances[{np.argmin(apart)}] is {apart.min()}: distances must not be negative")
    own = checks.whole_number("own", own, least=0, most=shapley.size - 1)
    gains = np.maximum(shapley, 0.0)
    if not gains.any():
        keep = np.zeros(shapley.size)
        keep[own] = 1.0
        return keep
    positive = apart[(apart > 0) & (gains > 0)]
    smallest = positive.min() if positive.size else 1.0
    shares = gains / gains.max() * (smallest / np.maximum(apart, smallest))
    weights: FloatArray = shares / shares.sum()
    return weights
