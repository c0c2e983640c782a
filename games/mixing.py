"""Mixing weights: the point of the simplex with the least quadratic error.

    minimise aᵀ M a   subject to   a ≥ 0, Σ a = 1

An active set method (Wolfe 1976): solve on the current support, step back to the border when a weight would turn
negative, let the most promising weight in, until none lowers the error. It ends at the exact optimum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.games import checks
from coterie.games.checks import FloatArray


def mixing_weights(matrix: ArrayLike) -> FloatArray:
    """The weights that minimise aᵀ M a on the simplex, for a symmetric M (its negative part, if any, is cut off)."""
    m = checks.finite_array("matrix", matrix, ndim=2)
    if m.shape[0] != m.shape[1] or not np.allclose(m, m.T, rtol=1e-8, atol=1e-12 * np.abs(m).max()):
        raise ValueError(f"matrix must be square and symmetric, but its shape is {m.shape} or its halves differ")
    values, vectors = np.linalg.eigh((m + m.T) / 2)
    m = (vectors * np.maximum(values, 0.0)) @ vectors.T
    m /= np.abs(m).max() or 1.0
    weights = np.zeros(len(m))
    weights[np.argmin(m.diagonal())] = 1.0
    for _ in range(10 * len(m) + 10):
        gradient = m @ weights
        entering = int(np.argmin(gradient))
        if gradient[entering] >= weights @ gradient - 1e-12:
            break
        support = weights > 0
        support[entering] = True
        weights = _solve_on(m, weights, support)
    return weights


def _solve_on(m: FloatArray, weights: FloatArray, support: NDArray[np.bool_]) -> FloatArray:
    """The best weights that vanish outside the support, reached from `weights` without leaving the simplex."""
    while True:
        inside = np.flatnonzero(support)
        bordered = np.ones((len(inside) + 1, len(inside) + 1))
        bordered[:-1, :-1], bordered[-1, -1] = m[np.ix_(inside, inside)], 0.0
        target: FloatArray = np.zeros(len(m))
        target[inside] = np.linalg.lstsq(bordered, np.append(np.zeros(len(inside)), 1.0), rcond=None)[0][:-1]
        falling = support & (target <= 0)
        if not falling.any():
            target /= target.sum()
            return target
        step = (weights[falling] / (weights[falling] - target[falling])).min()
        weights = np.maximum(weights + step * (target - weights), 0.0)
        support = support & ~(falling & (weights <= 1e-14))
        weights[~support] = 0.0
        weights /= weights.sum()


def mixing_weights_from_outputs(outputs: ArrayLike, targets: ArrayLike) -> FloatArray:
    """Weights of models whose mixed outputs have the least mean squared error on a validation split.

    outputs: (models, samples) or (models, samples, classes); targets: (samples,) or (samples, classes), for example
    one-hot labels for probabilities (the Brier score).
    """
    wanted = np.asarray(targets, dtype=np.float64)
    predictions = checks.finite_array("outputs", outputs, ndim=wanted.ndim + 1)
    checks.finite_array("targets", wanted, ndim=wanted.ndim)
    if predictions.shape[1:] != wanted.shape:
        raise ValueError(f"outputs of shape {predictions.shape} do not fit targets of shape {wanted.shape}")
    residuals = (predictions - wanted).reshape(len(predictions), -1)
    return mixing_weights(residuals @ residuals.T / len(wanted))
