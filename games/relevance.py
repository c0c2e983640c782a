"""Whom a client listens to: pFedSV's relevance vector, whom to download, and how to weigh them (Wu et al. 2022).

    relevance   φ_j ← alpha φ_j + (1 - alpha) SV_j    for every j in the downloaded coalition S

Two forms of the game have their own weights and their own choice. By gain, where SV_j says how much j lowers the loss
of the own model, so that its sign means help or harm:

    weights     own model 1/(m+1), the others m/(m+1) in the ratio of max(SV_j, 0); m others have SV_j > 0
    choice      half of the places for the best, half for the unknown and the long unseen; scores fade with time

As in the paper, where v(∅) = 0 and the own model is one of the players:

    weights     w_j ∝ max(SV_j, 0) / dist_j           dist_j = |θ_j - θ_i at the start of the round|
    choice      those never downloaded first, then the positive ones

Decided where the paper is silent or cannot work: alpha = 0.2; the own model is compared with itself at the start of
the round; if nobody's value is positive the client keeps its own model; k shrinks only after everybody was downloaded
once, and until then those never downloaded come first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.games import checks
from coterie.games.checks import FloatArray

IntArray = NDArray[np.int64]
FADE = 0.9  # what a score keeps of itself in a round
LONG_UNSEEN = 5  # rounds after which a judgement is old


def update_relevance(
    relevance: ArrayLike,
    members: Sequence[int] | IntArray,
    values: ArrayLike,
    *,
    alpha: float = 0.2,
    first: Collection[int] = (),
) -> FloatArray:
    """The relevance vector after the members of a coalition got these Shapley values; the others keep theirs.

    The value of those members that are judged for the `first` time is their relevance.
    """
    updated = checks.finite_array("relevance", relevance, ndim=1).copy()
    shapley = checks.finite_array("values", values, ndim=1)
    alpha = checks.fraction("alpha", alpha)
    chosen = [checks.whole_number("member", member, least=0, most=updated.size - 1) for member in members]
    if len(chosen) != shapley.size or len(set(chosen)) != len(chosen):
        raise ValueError(f"members {chosen} and {shapley.size} values do not match: give one value per distinct member")
    old = np.array([member not in first for member in chosen], dtype=bool)
    updated[chosen] = np.where(old, alpha * updated[chosen] + (1 - alpha) * shapley, shapley)
    return updated


def faded(relevance: ArrayLike, ages: ArrayLike) -> FloatArray:
    """What is left of scores so many rounds after they were measured; nothing of one that never was (age infinity)."""
    scores = checks.finite_array("relevance", relevance, ndim=1)
    return scores * FADE ** _ages(ages, scores.size)


def ask_next(relevance: ArrayLike, ages: ArrayLike, k: int, rng: np.random.Generator) -> IntArray:
    """Which of the others to ask for their models next, at most k; `relevance` is faded, ages as in `faded`.

    k - ⌊k/2⌋ places are for the best positive scores. The rest are for those who were never judged, in random order, then
    for those who were not for 5 rounds, the oldest first. Places that are left go to more positive scores. All of the
    never judged are asked as soon as they fit into the k places: up to 2k others are known after two rounds. A single
    place is for the best, but as long as somebody waits not right after one was asked who helped.
    """
    scores = checks.finite_array("relevance", relevance, ndim=1)
    old = _ages(ages, scores.size)
    k = checks.whole_number("k", k, least=1)
    others = checks.generator(rng, "ask_next").permutation(scores.size)  # breaks ties: the sorts below are stable
    best = [j for j in others[np.argsort(-scores[others], kind="stable")].tolist() if scores[j] > 0]
    waiting = [j for j in others[np.argsort(-old[others], kind="stable")].tolist() if old[j] >= LONG_UNSEEN]
    unknown = int(np.isinf(old).sum())
    places = k - k // 2
    if unknown <= k:
        places = min(places, k - unknown)
    if k == 1 and waiting and any(old[j] == 0 for j in best):
        places = 0
    chosen = best[:places]
    chosen += [j for j in waiting if j not in chosen][: k - len(chosen)]
    chosen += [j for j in best if j not in chosen][: k - len(chosen)]
    return np.array(chosen, dtype=np.int64)


def _ages(ages: ArrayLike, size: int) -> FloatArray:
    array = np.asarray(ages, dtype=np.float64)
    if array.shape != (size,) or not (array >= 0).all():
        raise ValueError(f"ages must be {size} numbers of rounds, infinity for never, not {array.tolist()}")
    return array


def gain_weights(values: ArrayLike) -> FloatArray:
    """The shares of the own model, which comes first, and of the others in the new one, from the values of the others.

    Each of the m with a positive value would have the share 1/(m+1) in a uniform mean, and so has the own model; what the
    m have together is theirs in the ratio of their values.
    """
    gains = np.maximum(checks.finite_array("values", values, ndim=1), 0.0) if np.size(values) else np.zeros(0)
    helpful = int((gains > 0).sum())
    if not helpful:
        keep: FloatArray = np.eye(1, gains.size + 1)[0]
        return keep
    relative = gains / gains.max()
    weights: FloatArray = np.concatenate([[1.0], helpful * relative / relative.sum()]) / (helpful + 1)
    return weights


def choose_collaborators(
    relevance: ArrayLike, downloaded: ArrayLike, own: int, k: int, rng: np.random.Generator
) -> IntArray:
    """The paper's choice of clients to download next, best first; equal scores in random order.

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
    """The paper's share of each member's model in the own new model; `own` is the client's place among the members.

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
