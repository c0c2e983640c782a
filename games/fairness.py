"""Who counts how much, where nobody should be served badly: weights and steps that depend on the clients' losses.

    agnostic (Mohri et al. 2019)    max over the simplex of sum_i lambda_i F_i, by steps  lambda <- P(lambda + gamma F)
    q-fair (Li et al. 2020)         min of sum_i F_i^(q+1) / (q+1), by a step  w <- w - sum_i c_i (w - w_i)

P is the nearest point of the simplex. c_i = L F_i^q / sum_j h_j, with h_j = q F_j^(q-1) L^2 |w - w_j|^2 + L F_j^q, an
estimate of how fast the gradient of F_j^(q+1) / (q+1) changes if that of F_j does so at most L times as fast as w.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from coterie.games import checks
from coterie.games.checks import FloatArray
from coterie.games.preferences import on_simplex


def shares_of(weights: ArrayLike) -> FloatArray:
    """The weights as shares of their sum; equal ones if all are 0."""
    values = checks.finite_array("weights", weights, ndim=1)
    if (values < 0).any():
        raise ValueError(f"weights has {values.min()} in it: a weight must not be negative")
    total = values.sum()
    return np.asarray(values / total) if total > 0 else np.full(len(values), 1 / len(values))


def agnostic_weights(weights: ArrayLike, losses: ArrayLike, step: float) -> FloatArray:
    """The weights after a step of length `step` towards the clients with higher losses.

    These may be some of all clients: what they have together stays theirs, and they share it anew.
    """
    values, costs = checks.finite_array("weights", weights, ndim=1), checks.finite_array("losses", losses, ndim=1)
    above = costs - costs.max()  # the same nearest point, whatever the size of the losses
    return np.asarray(values.sum() * on_simplex(shares_of(values) + step * above))


def q_fair_steps(losses: ArrayLike, distances: ArrayLike, *, q: float, lipschitz: float) -> FloatArray:
    """c, how far the model goes towards that of each client; `distances` are |w - w_i|.

    A loss of 0 wants nothing if q > 0; if all are 0, nobody moves the model. With q = 0 all count the same, 1 / clients.
    """
    costs, far = checks.finite_array("losses", losses, ndim=1), checks.finite_array("distances", distances, ndim=1)
    if (costs < 0).any():
        raise ValueError(f"losses has {costs.min()} in it: powers need losses that are not negative")
    most = costs.max()
    if q > 0 and most == 0:
        return np.zeros(len(costs))
    relative = costs / most if most > 0 else np.ones(len(costs))  # no power of it is too large
    wanted = lipschitz * relative**q
    curvature = np.zeros(len(costs))
    if q > 0:
        own = relative > 0
        with np.errstate(over="ignore"):  # infinitely curved: no step at all
            curvature[own] = q * relative[own] ** (q - 1) * (lipschitz * far[own]) ** 2 / most
    return np.asarray(wanted / (wanted + curvature).sum())
