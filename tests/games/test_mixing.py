"""Mixing weights against cvxpy, against a grid, and their laws."""

import math

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games.mixing import mixing_weights, mixing_weights_from_outputs


@pytest.mark.parametrize("seed", range(30))
def test_optimal_against_cvxpy(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    factors = rng.normal(size=(n, int(rng.integers(1, 15)))) + rng.uniform(0, 2)
    matrix = factors @ factors.T
    a = cvxpy.Variable(n)
    best = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(factors.T @ a)), [a >= 0, cvxpy.sum(a) == 1]).solve()
    ours = mixing_weights(matrix)
    assert ours @ matrix @ ours == pytest.approx(best, abs=1e-5 * np.abs(matrix).max())


@given(st.integers(1, 20), st.integers(0, 2**32), st.sampled_from([1e-8, 1.0, 1e8]))
@settings(max_examples=100, deadline=None)
def test_on_the_simplex_and_kkt(n, seed, scale):
    """No vertex lies below the hyperplane of the optimum: M a ≥ aᵀ M a, with equality where a is positive."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, int(rng.integers(1, n + 3)))) * math.sqrt(scale)
    matrix = factors @ factors.T
    a = mixing_weights(matrix)
    assert a.sum() == pytest.approx(1) and (a >= 0).all()
    slack = matrix @ a - a @ matrix @ a
    tolerance = 1e-8 * np.abs(matrix).max()
    assert slack.min() >= -tolerance
    assert np.abs(slack[a > 1e-9]).max() <= tolerance


def test_by_hand():
    np.testing.assert_allclose(mixing_weights([[4.0, 0.0], [0.0, 1.0]]), [0.2, 0.8])  # inverse variances
    np.testing.assert_allclose(mixing_weights([[1.0, 2.0], [2.0, 9.0]]), [1.0, 0.0])
    np.testing.assert_allclose(mixing_weights([[3.0]]), [1.0])
    assert mixing_weights(np.ones((3, 3))).sum() == pytest.approx(1)  # all equally good
    assert mixing_weights(np.zeros((2, 2))).sum() == pytest.approx(1)


def test_indefinite_estimates_still_give_weights():
    a = mixing_weights([[0.1, 0.5], [0.5, 0.2]])
    assert a.sum() == pytest.approx(1) and (a >= 0).all()


def test_validation_outputs():
    """The least squared error on the split, found on a grid."""
    rng = np.random.default_rng(0)
    targets = np.eye(3)[rng.integers(0, 3, size=40)]
    outputs = 0.6 * targets + 0.4 * rng.dirichlet(np.ones(3), size=(2, 40))
    weights = mixing_weights_from_outputs(outputs, targets)
    grid = np.linspace(0, 1, 1001)
    errors = [((a * outputs[0] + (1 - a) * outputs[1] - targets) ** 2).sum() for a in grid]
    assert weights[0] == pytest.approx(grid[int(np.argmin(errors))], abs=1e-3)
    np.testing.assert_allclose(mixing_weights_from_outputs([[1.0, 3.0], [3.0, 1.0]], [2.0, 2.0]), [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mixing_weights([[1.0, 2.0]]), "square and symmetric"),
        (lambda: mixing_weights([[1.0, 2.0], [0.0, 1.0]]), "square and symmetric"),
        (lambda: mixing_weights([[math.nan]]), "is nan"),
        (lambda: mixing_weights_from_outputs([[1.0, 2.0]], [1.0, 2.0, 3.0]), "do not fit"),
        (lambda: mixing_weights_from_outputs([[1.0, 2.0]], [1.0, math.nan]), r"targets\[1\] is nan"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
