"""A smooth game through what is known of a game: coalitions that differ in few players have similar utilities.

For u(S) = v(S) - v(N - S), of which some values are known, kernel ridge regression gives

    u(S) ≈ Σ_T a_T κ(|S △ T|),    κ(d) = r^d - r^(n-d),    r = (n - 2) / (n + 2).

r^d is the prior in which an effect of j players together has a variance ∝ (2/n)^j; its odd part κ is what u can have.
The penalty is the one with the smallest squared error when each value is predicted from the others. The Shapley value of
the fit needs no coalitions: with others joining with probability p, E r^|S △ T| is a product, integrated over p (Owen 1972).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.games.checks import FloatArray

PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0)  # in units of κ(0)
MOST_FITTED = 600  # the fit takes the cube of it


@dataclass(frozen=True)
class SmoothGame:
    strata: FloatArray  # (players,) mean over sizes of the fit's mean over coalitions with i, but for a common constant
    inside: FloatArray  # (coalitions,) what the fit leaves of the known values
    outside: FloatArray  # (coalitions,) what it leaves of each when fitted to the others


def smooth_game(members: NDArray[np.bool_], values: FloatArray) -> SmoothGame:
    """The fit to the values of the coalitions `members` (coalitions, players)."""
    n = members.shape[1]
    if not values.any():
        return SmoothGame(np.zeros(n), values, values)
    ratio = (n - 2) / (n + 2)
    fitted = np.arange(0, len(values), -(-len(values) // MOST_FITTED))
    kernel = _kernel(members, members[fitted], ratio)
    own = kernel[fitted]
    scale = float(own.diagonal().mean())
    eigenvalues, vectors = np.linalg.eigh(own / scale)
    turned = vectors.T @ values[fitted]
    candidates = []
    for penalty in PENALTIES:
        gains = 1 / (np.maximum(eigenvalues, 0.0) + penalty)
        alpha = vectors @ (turned * gains)
        alone = alpha / (vectors**2 @ gains)  # a value less its prediction from the others
        candidates.append((float(alone @ alone), alpha / scale, alone))
    _, alpha, alone = min(candidates, key=lambda candidate: candidate[0])
    inside = values - kernel @ alpha
    outside = inside.copy()
    outside[fitted] = alone
    return SmoothGame(_shapley(members[fitted], alpha, ratio), inside, outside)


def _kernel(first: NDArray[np.bool_], second: NDArray[np.bool_], ratio: float) -> FloatArray:
    n = first.shape[1]
    a, b = first.astype(float), second.astype(float)
    distance = np.rint(a.sum(axis=1)[:, None] + b.sum(axis=1) - 2 * a @ b.T).astype(int)
    of_distance = ratio ** np.arange(n + 1.0)
    return np.asarray((of_distance - of_distance[::-1])[distance])


def _shapley(members: NDArray[np.bool_], alpha: FloatArray, ratio: float) -> FloatArray:
    """∫ E Σ_T a_T κ(|S + i △ T|) dp for every player i, the others being in S with probability p."""
    n = members.shape[1]
    nodes, weights = np.polynomial.legendre.leggauss(n // 2 + 1)  # exact for degree n - 1
    p, weights = (1 + nodes[:, None, None]) / 2, weights / 2

    def mean(size: NDArray[np.int64], belongs: NDArray[np.bool_]) -> FloatArray:
        """∫ E r^|S + i △ T| dp for T of that size, by whether i is in T."""
        same, other = size - belongs, n - 1 - size + belongs
        within = (p + (1 - p) * ratio) ** same * (1 - p + p * ratio) ** other
        return np.asarray(np.tensordot(weights, within, 1) * np.where(belongs, 1.0, ratio))

    sizes, choices = np.arange(n + 1)[:, None], np.array([[False, True]])
    by_size = mean(sizes, choices)  # (sizes, i in T)
    odd = by_size - by_size[::-1, ::-1]  # r^(n-d) is the distance to T's complement
    return np.asarray(alpha @ odd[members.sum(axis=1)[:, None], members.astype(int)])
