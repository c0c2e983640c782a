"""Agnostic weights against cvxpy, q-fair steps against their formula, and every 0/0."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games.fairness import agnostic_weights, q_fair_steps, shares_of


def test_ascent_against_a_solver():
    rng = np.random.default_rng(0)
    for _ in range(5):
        weights, losses, d = rng.dirichlet(np.ones(6)), rng.exponential(size=6), cp.Variable(6)
        cp.Problem(cp.Minimize(cp.sum_squares(d - weights - 0.3 * losses)), [d >= 0, cp.sum(d) == 1]).solve()
        np.testing.assert_allclose(agnostic_weights(weights, losses, 0.3), d.value, atol=1e-4)


def test_some_of_all_clients_share_what_they_have():
    whole, part = [0.4, 0.6], [0.2, 0.3]
    np.testing.assert_allclose(
        agnostic_weights(part, [1.0, 2.0], 0.1), 0.5 * agnostic_weights(whole, [1.0, 2.0], 0.1), rtol=1e-12
    )


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e100)), min_size=1, max_size=8), st.floats(0, 10))
@settings(max_examples=200, deadline=None)
def test_weights_stay_weights(pairs, step):
    weights, losses = np.array(pairs).T
    new = agnostic_weights(weights, losses, step)
    assert (new >= 0).all() and new.sum() == pytest.approx(weights.sum(), abs=1e-9)
    if weights.sum() > 0:
        shares, before = new / weights.sum(), weights / weights.sum()
        worst = losses == losses.max()
        assert (shares[worst] >= before[worst] - 1e-9).all()  # who has the highest loss never loses


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1e6))
def test_equal_losses_change_nothing(weights, loss):
    np.testing.assert_allclose(agnostic_weights(weights, [loss] * len(weights), 0.7), weights, atol=1e-12)


def test_shares():
    assert shares_of([1, 3]).tolist() == [0.25, 0.75] and shares_of([0.0] * 4).tolist() == [0.25] * 4
    with pytest.raises(ValueError, match=r"weights has -1\.0 in it"):
        shares_of([1.0, -1.0])


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 10)), min_size=1, max_size=8),
    st.floats(0, 5),
    st.floats(0.1, 100),
)
@settings(max_examples=200, deadline=None)
def test_q_fair_steps_are_the_papers(pairs, q, lipschitz):
    losses, distances = np.array(pairs).T
    h = q * losses ** (q - 1) * (lipschitz * distances) ** 2 + lipschitz * losses**q
    expected = lipschitz * losses**q / h.sum()
    got = q_fair_steps(losses, distances, q=q, lipschitz=lipschitz)
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert got.sum() <= 1 + 1e-9


@pytest.mark.parametrize("losses", [[1.0, 5.0, 0.0], [0.0, 0.0, 0.0]])
def test_q_of_zero_counts_all_alike(losses):
    np.testing.assert_allclose(q_fair_steps(losses, [1.0, 2.0, 3.0], q=0, lipschitz=3), [1 / 3] * 3)


def test_losses_of_zero_want_nothing():
    for q in (0.5, 1.0, 2.0):
        assert q_fair_steps([0.0, 0.0], [1.0, 1.0], q=q, lipschitz=3).tolist() == [0.0, 0.0]
        alone = q_fair_steps([2.0], [1.0], q=q, lipschitz=3)
        assert q_fair_steps([0.0, 2.0], [1.0, 1.0], q=q, lipschitz=3).tolist() == [0.0, *alone]


@pytest.mark.parametrize("losses", [[1e100, 1.0], [1e-300, 1.0], [1e-300, 1e100]])
@pytest.mark.parametrize("q", [0.1, 1.0, 5.0])
def test_losses_of_any_size(losses, q):
    steps = q_fair_steps(losses, [1e20, 1.0], q=q, lipschitz=20)
    assert np.isfinite(steps).all() and (steps >= 0).all() and steps.sum() <= 1


def test_negative_losses_are_refused():
    with pytest.raises(ValueError, match=r"losses has -0\.5 in it"):
        q_fair_steps([1.0, -0.5], [1.0, 1.0], q=1, lipschitz=1)
