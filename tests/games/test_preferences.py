"""Projection and search on the simplex, against cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games.preferences import Search, even, fewest_within_noise, on_simplex

points = st.lists(st.floats(-3, 3), min_size=1, max_size=8)


@given(points)
@settings(max_examples=200, deadline=None)
def test_the_nearest_point_satisfies_its_conditions(values):
    """On the simplex, p = max(x - c, 0) for one number c: the conditions of Karush, Kuhn and Tucker."""
    x, p = np.array(values), on_simplex(values)
    assert p.sum() == pytest.approx(1) and (p >= 0).all()
    shifts = (x - p)[p > 1e-12]
    assert np.ptp(shifts) < 1e-9
    assert (x[p <= 1e-12] <= shifts.max() + 1e-9).all()


def test_projection_against_a_solver():
    rng = np.random.default_rng(0)
    for _ in range(5):
        x, d = rng.normal(size=6), cp.Variable(6)
        cp.Problem(cp.Minimize(cp.sum_squares(d - x)), [d >= 0, cp.sum(d) == 1, d[1] == 0, d[4] == 0]).solve()
        np.testing.assert_allclose(on_simplex(x, {0, 2, 3, 5}), d.value, atol=1e-4)


def quadratic(seed, n=6, features=20):
    """|sum_i d_i theta_i - t|²: the loss of a mixture of models."""
    rng = np.random.default_rng(seed)
    thetas = np.repeat(rng.normal(size=(2, features)), n // 2, axis=0) + 0.1 * rng.normal(size=(n, features))
    target = thetas[0] + 0.1 * rng.normal(size=features)
    return thetas, target


def run(search, thetas, target, exchanges=30):
    seen = []
    for _ in range(exchanges):
        if search.finished:
            break
        tried = search.candidates()
        assert np.allclose(tried.sum(axis=1), 1) and (tried >= 0).all()
        assert not tried[:, [i for i in range(search.n) if i not in search.allowed]].any()
        losses = ((tried @ thetas - target) ** 2).sum(axis=1)
        best = tried[int(np.argmin(losses))]
        search.learn(tried, losses, 2 * thetas @ (best @ thetas - target))
        seen.append(search.loss)
    assert seen == sorted(seen, reverse=True)
    return seen


@pytest.mark.parametrize("allowed", [None, {0, 1, 4}, {0}])
def test_the_search_finds_the_best_mixture(allowed):
    for seed in range(5):
        thetas, target = quadratic(seed)
        d = cp.Variable(6)
        outside = [d[i] == 0 for i in range(6) if allowed is not None and i not in allowed]
        problem = cp.Problem(cp.Minimize(cp.sum_squares(thetas.T @ d - target)), [d >= 0, cp.sum(d) == 1, *outside])
        exact = problem.solve()
        search = Search(0, 6, allowed)
        run(search, thetas, target)
        assert search.loss == pytest.approx(exact, rel=1e-3)
        np.testing.assert_allclose(search.point, d.value, atol=0.02)


def test_twelve_exchanges_are_nearly_enough():
    thetas, target = quadratic(1)
    short, long = Search(0, 6), Search(0, 6)
    run(short, thetas, target, 12)
    run(long, thetas, target, 100)
    assert long.finished and short.loss < 1.01 * long.loss


def test_a_flat_loss_ends_the_search_at_once():
    search = Search(1, 3)
    tried = search.candidates()
    search.learn(tried, np.ones(len(tried)), np.zeros(3))
    assert search.finished and search.loss == 1


def test_the_first_candidates():
    rows = Search(1, 4, {1, 2, 3}).candidates()
    expected = [even({1}, 4), even({1, 2, 3}, 4), even({1, 2}, 4), even({1, 3}, 4)]
    assert {tuple(row) for row in rows} == {tuple(row) for row in expected}


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="allowed is empty"):
        on_simplex([0.5, 0.5], set())
    with pytest.raises(ValueError, match="point"):
        on_simplex([np.nan, 0.5])


# --- choosing under noise --------------------------------------------------------------------------------------------

CHOICES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 1.0, 7.5]), st.floats(0, 2), st.integers(1, 5)), min_size=1, max_size=6
)


@given(CHOICES, st.floats(0, 3), st.floats(0, 3))
def test_the_choice_is_near_the_least_loss_and_needs_the_fewest(choices, margin, more):
    losses, errors, sizes = zip(*choices, strict=True)
    k = fewest_within_noise(losses, errors, sizes, margin=margin)
    near = [j for j in range(len(choices)) if losses[j] <= min(losses) + margin * errors[j]]
    assert k in near and sizes[k] == min(sizes[j] for j in near)
    assert losses[k] == min(losses[j] for j in near if sizes[j] == sizes[k])
    assert sizes[fewest_within_noise(losses, errors, sizes, margin=margin + more)] <= sizes[k]
    assert losses[fewest_within_noise(losses, errors, sizes)] == min(losses)  # no margin: ties only


def test_a_choice_needs_one_of_each():
    with pytest.raises(ValueError, match="give one of each per choice"):
        fewest_within_noise([1.0, 2.0], [0.1], [1, 2])
