"""Inclusion probabilities against cvxpy and the KKT conditions, draws against enumeration of all of them."""

import itertools
import math

import cvxpy
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie.games.sampling import horvitz_thompson_weights, inclusion_probabilities, poisson_draw

weight_lists = st.lists(st.one_of(st.just(0.0), st.floats(1e-4, 1.0)), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("weights", "m", "floor", "expected"),
    [
        ([0.6, 0.1, 0.1, 0.1, 0.1], 2, 0.0, [1, 0.25, 0.25, 0.25, 0.25]),
        ([1, 1, 1, 1], 2, 0.0, [0.5] * 4),
        ([3, 1], 1, 0.0, [0.75, 0.25]),
        ([5, 5, 1, 1], 3, 0.0, [1, 1, 0.5, 0.5]),
        ([1, 2, 3], 3, 0.0, [1, 1, 1]),
        ([1, 0, 0], 1, 0.0, [1, 0, 0]),
        ([1, 0, 0], 2, 0.0, [1, 0.5, 0.5]),
        ([1, 0, 0], 1, 0.1, [0.8, 0.1, 0.1]),
        ([8, 1, 1], 1, 0.2, [0.6, 0.2, 0.2]),
        ([7.0], 1, 0.0, [1]),
        ([1e-300, 1e-300], 1, 0.0, [0.5, 0.5]),
        ([1e300, 1e300, 1e-300], 2, 0.0, [1, 1, 0]),
    ],
)
def test_by_hand(weights, m, floor, expected):
    np.testing.assert_allclose(inclusion_probabilities(weights, m, floor=floor), expected, atol=1e-12)


@given(weight_lists, st.integers(1, 9), st.floats(0, 0.3))
@settings(max_examples=300, deadline=None)
def test_feasible_and_kkt(weights, m, floor):
    w = np.array(weights)
    assume(w.any() and m <= w.size and floor * w.size <= m)
    p = inclusion_probabilities(w, m, floor=floor)
    assert p.sum() == pytest.approx(m, abs=1e-9)
    assert (p >= floor).all() and (p <= 1).all()
    # KKT: one λ with w_i/p_i = λ between the bounds, w_i/p_i ≤ λ at the floor, ≥ λ at 1
    if (w > 0).sum() + floor * (w == 0).sum() > m:
        slope = np.divide(w, p, out=np.zeros_like(w), where=p > 0)
        free = (p > floor + 1e-9) & (p < 1 - 1e-9)
        low, high = p <= floor + 1e-9, p >= 1 - 1e-9
        least = slope[free | high].min(initial=np.inf)
        assert slope[free | low].max(initial=0) <= least * (1 + 1e-6) + 1e-9
        assert np.ptp(slope[free]) < 1e-6 if free.any() else True
    else:
        assert (p[w > 0] == 1).all()


@pytest.mark.parametrize("n", range(2, 12))
def test_optimal_against_cvxpy(n):
    """100 random draws of weights for each number of clients: 1,000 in all."""
    rng = np.random.default_rng(n)
    p, squares, m, floor = cvxpy.Variable(n), cvxpy.Parameter(n, nonneg=True), cvxpy.Parameter(), cvxpy.Parameter()
    variance = cvxpy.sum(cvxpy.multiply(squares, cvxpy.inv_pos(p)))
    problem = cvxpy.Problem(cvxpy.Minimize(variance), [cvxpy.sum(p) == m, p <= 1, p >= floor])
    for _ in range(100):
        w, m.value = rng.pareto(1.0, size=n) + 0.01, int(rng.integers(1, n + 1))
        w /= w.max()
        squares.value, floor.value = w**2, float(rng.choice([0.0, 0.5 * m.value / n]))
        best = problem.solve()
        ours = inclusion_probabilities(w, int(m.value), floor=floor.value)
        assert ours.sum() == pytest.approx(m.value) and (ours <= 1).all() and (ours >= floor.value).all()
        found = (w**2 / ours).sum()
        assert found <= best * (1 + 1e-5) and found == pytest.approx(best, rel=1e-2)  # the solver's own error is larger


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8), st.floats(0.1, 100), st.randoms())
@settings(deadline=None)
def test_scale_and_order_do_not_matter(weights, factor, random):
    w, m = np.array(weights), len(weights) // 2
    p = inclusion_probabilities(w, m)
    order = list(range(len(w)))
    random.shuffle(order)
    np.testing.assert_allclose(inclusion_probabilities(factor * w[order], m), p[order], atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_horvitz_thompson_is_unbiased_over_all_draws(seed):
    rng = np.random.default_rng(seed)
    n, m = 7, 3
    w, x = rng.dirichlet(np.ones(n)), rng.normal(size=n)
    p = inclusion_probabilities(w, m)
    plain = repeated = total = 0.0
    for drawn in itertools.product([False, True], repeat=n):
        chance = math.prod(p_i if inside else 1 - p_i for p_i, inside in zip(p, drawn, strict=True))
        selected = np.flatnonzero(drawn)
        plain += chance * horvitz_thompson_weights(w, p, selected) @ x[selected]
        if selected.size:
            total += chance
            repeated += chance * horvitz_thompson_weights(w, p, selected, redrawn=True) @ x[selected]
    assert plain == pytest.approx(w @ x, abs=1e-12)
    assert repeated / total == pytest.approx(w @ x, abs=1e-12)  # given that the draw was not empty


def test_draws_follow_their_probabilities_and_their_seed():
    p = np.array([1.0, 0.7, 0.2, 0.0])
    rng = np.random.default_rng(0)
    counts = np.zeros(4)
    for _ in range(4000):
        counts[poisson_draw(p, rng).selected] += 1
    np.testing.assert_allclose(counts / 4000, p, atol=0.03)
    first, second = (poisson_draw([0.5] * 20, np.random.default_rng(4)).selected for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_an_empty_draw_is_repeated_and_counted():
    rng = np.random.default_rng(1)
    draws = [poisson_draw([0.05, 0.05], rng) for _ in range(300)]
    assert all(draw.selected.size for draw in draws)
    empty = sum(draw.empty_draws for draw in draws) / 300
    assert empty == pytest.approx(0.95**2 / (1 - 0.95**2), rel=0.2)  # mean of a geometric distribution


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inclusion_probabilities([0.5, math.nan], 1), r"weights\[1\] is nan"),
        (lambda: inclusion_probabilities([0.5, math.inf], 1), r"weights\[1\] is inf"),
        (lambda: inclusion_probabilities([0.0, 0.0], 1), "weights are all 0"),
        (lambda: inclusion_probabilities([0.5, -0.1], 1), r"weights\[1\] is -0.1"),
        (lambda: inclusion_probabilities([], 1), "weights is empty"),
        (lambda: inclusion_probabilities([[1.0]], 1), "1 axes"),
        (lambda: inclusion_probabilities([1.0, 1.0], 3), "m, the expected number of clients, is 3"),
        (lambda: inclusion_probabilities([1.0, 1.0], 0), "is 0"),
        (lambda: inclusion_probabilities([1.0, 1.0], 1.5), "whole number"),
        (lambda: inclusion_probabilities([1.0, 1.0], 1, floor=0.6), "lower it"),
        (lambda: inclusion_probabilities([1.0, 1.0], 1, floor=-0.1), "floor is -0.1"),
        (lambda: inclusion_probabilities([1.0, 1.0], 1, floor=math.nan), "floor is nan"),
        (lambda: poisson_draw([0.0, 0.0], np.random.default_rng(0)), "all 0"),
        (lambda: poisson_draw([0.5, 1.5], np.random.default_rng(0)), r"probabilities\[1\] is 1.5"),
        (lambda: poisson_draw([0.5], None), "rng is None"),
        (lambda: horvitz_thompson_weights([1.0, 1.0], [0.5, 0.0], [1]), "client 1 is selected but"),
        (lambda: horvitz_thompson_weights([1.0], [0.5, 0.5], [0]), "1 weights but 2 probabilities"),
        (lambda: horvitz_thompson_weights([1.0], [0.5], [1]), "selected holds 1"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
