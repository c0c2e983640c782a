"""Shapley values against textbook games, against the definition over all orders, and against the axioms."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games.estimators import least_budget
from coterie.games.shapley import estimate, normalise, shapley_from_table, shapley_values

SAMPLERS = ("mc", "tmc", "dmc", "cc")
utilities = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 3))


def by_orders(utility, n):
    """The definition: the mean marginal over all n! orders."""
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        for position, player in enumerate(order):
            before = frozenset(order[:position])
            total[player] += utility(before | {player}) - utility(before)
    return total / math.factorial(n)


def game(table):
    """A utility function from a table by bit mask."""
    return lambda coalition: table[sum(1 << player for player in coalition)]


def random_game(n, seed):
    return game(np.random.default_rng(seed).normal(size=1 << n))


def voting(coalition):
    return float(sum((50, 49, 1)[player] for player in coalition) >= 51)


def averaged_scalars(coalition):
    models = (Fraction(0), Fraction(1), Fraction(2), Fraction(5))
    if not coalition:
        return Fraction(-4)
    return -((sum(models[i] for i in coalition) / len(coalition) - 1) ** 2)


@pytest.mark.parametrize(
    ("utility", "expected"),
    [
        (lambda s: min(len(s & {0}), len(s & {1, 2})), [Fraction(2, 3), Fraction(1, 6), Fraction(1, 6)]),
        (lambda s: max((i + 1 for i in s), default=0), [Fraction(1, 3), Fraction(5, 6), Fraction(11, 6)]),
        (voting, [Fraction(2, 3), Fraction(1, 6), Fraction(1, 6)]),
        (averaged_scalars, [Fraction(k, 108) for k in (329, 293, 193, -491)]),
    ],
    ids=["glove", "airport", "voting", "averaged models"],
)
def test_textbook_games(utility, expected):
    wanted = [float(value) for value in expected]
    n = len(wanted)
    np.testing.assert_allclose(shapley_values(utility, n), wanted, atol=1e-12)
    for method in SAMPLERS:  # with room for every coalition a sampler ends at the exact value
        found = estimate(utility, n, method=method, budget=1 << n, rng=np.random.default_rng(0), tolerance=0.0)
        np.testing.assert_allclose(found.values, wanted, atol=1e-12)


@given(st.integers(2, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_exact_is_the_definition(n, data):
    table = np.array(data.draw(st.lists(utilities, min_size=1 << n, max_size=1 << n)))
    expected = by_orders(game(table), n)
    np.testing.assert_allclose(shapley_from_table(table), expected, atol=1e-9)
    np.testing.assert_allclose(shapley_values(game(table), n), expected, atol=1e-9)


@given(st.integers(2, 7), st.integers(0, 2**32), st.sampled_from(("exact", "mc", "dmc", "cc")))
@settings(max_examples=60, deadline=None)
def test_efficiency_under_a_small_budget(n, seed, method):
    utility = random_game(n, seed)
    budget = None if method == "exact" else 2 + 2 * n * n
    found = estimate(utility, n, method=method, budget=budget, rng=np.random.default_rng(seed))
    assert found.values.sum() == pytest.approx(utility(frozenset(range(n))) - utility(frozenset()), abs=1e-9)
    assert found.evaluations <= (budget or 1 << n)


@given(st.integers(3, 6), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_symmetry_null_player_and_linearity(n, seed):
    rng = np.random.default_rng(seed)
    by_size = rng.normal(size=n)  # players 1 … n-1 are alike, player 0 adds nothing
    alike = shapley_values(lambda s: by_size[len(s - {0})], n)
    assert alike[0] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(alike[1:], (by_size[n - 1] - by_size[0]) / (n - 1), atol=1e-12)

    first, second = rng.normal(size=(2, 1 << n))
    combined = shapley_from_table(2.5 * first - second)
    np.testing.assert_allclose(combined, 2.5 * shapley_from_table(first) - shapley_from_table(second), atol=1e-9)


@given(st.integers(3, 6), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_equivariance(n, seed):
    order = np.random.default_rng(seed).permutation(n)
    utility = random_game(n, seed)
    renamed = shapley_values(lambda s: utility(frozenset(int(order[i]) for i in s)), n)
    np.testing.assert_allclose(renamed, shapley_values(utility, n)[order], atol=1e-12)


@pytest.mark.parametrize("method", SAMPLERS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 11])
def test_additive_games_have_no_variance(method, n):
    weights = np.random.default_rng(n).uniform(1, 2, size=n)
    for seed in range(3):
        found = estimate(
            lambda s: 3 + sum(weights[i] for i in s), n, method=method, budget=2 + 2 * n * n,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        np.testing.assert_allclose(found.values, weights, rtol=1e-12)
        assert (np.nan_to_num(found.standard_errors) < 1e-7).all()


def repeated(utility, n, runs, **arguments):
    found = [estimate(utility, n, rng=np.random.default_rng(seed), **arguments) for seed in range(runs)]
    return np.array([one.values for one in found]), np.array([one.standard_errors for one in found])


@pytest.mark.parametrize("pivot", range(6))
def test_dmc_is_unbiased_for_every_pivot(pivot):
    utility = random_game(6, seed=7)
    values, _ = repeated(utility, 6, 500, method="dmc", budget=46, pivot=pivot)
    deviation = (values.mean(axis=0) - by_orders(utility, 6)) / (values.std(axis=0) / math.sqrt(len(values)))
    assert np.abs(deviation).max() < 4.5


@pytest.mark.parametrize("antithetic", [False, True])
def test_permutation_sampling_is_unbiased_though_the_budget_ends_it(antithetic):
    utility = random_game(5, seed=3)
    values, _ = repeated(utility, 5, 1500, method="mc", budget=22, antithetic=antithetic)
    deviation = (values.mean(axis=0) - by_orders(utility, 5)) / (values.std(axis=0) / math.sqrt(len(values)))
    assert np.abs(deviation).max() < 4.5


def test_cc_is_nearly_unbiased():
    utility = random_game(6, seed=11)
    values, _ = repeated(utility, 6, 1500, method="cc", budget=46)
    assert np.abs(values.mean(axis=0) - by_orders(utility, 6)).max() < 0.25 * values.std(axis=0).min()


@pytest.mark.parametrize("options", [{"method": "mc"}, {"method": "dmc", "pivot": 2}, {"method": "cc"}])
@pytest.mark.parametrize("budget", [130, 200])
def test_standard_errors_are_what_repetition_shows(options, budget):
    utility = random_game(8, seed=5)
    values, errors = repeated(utility, 8, 250, budget=budget, **options)
    ratio = np.sqrt((errors**2).mean(axis=0)) / values.std(axis=0)
    assert ratio.min() > 0.7 and ratio.max() < 1.4


def test_antithetic_orders_remove_pair_effects():
    """With pairwise effects only, an order and its reverse together give the exact value."""
    effects = np.random.default_rng(0).normal(size=(7, 7))

    def utility(s):
        return sum(effects[i, j] for i in s for j in s)

    exact = shapley_values(utility, 7)
    paired = estimate(utility, 7, method="mc", budget=14, antithetic=True, rng=np.random.default_rng(1))
    single = estimate(utility, 7, method="mc", budget=14, rng=np.random.default_rng(1))
    np.testing.assert_allclose(paired.values, exact, atol=1e-9)
    assert np.abs(single.values - exact).max() > 0.1


def test_truncation_saves_evaluations_and_stays_within_tolerance():
    weights = 0.5 ** np.arange(12)
    asked = []

    def utility(s):
        return sum(weights[i] for i in s)

    arguments = {"method": "tmc", "budget": 200, "rng": np.random.default_rng(0)}
    found = estimate(lambda s: asked.append(s) or utility(s), 12, tolerance=0.1, **arguments)
    assert len(asked) == len(set(asked)) == found.evaluations <= 200
    assert 0 < weights.sum() - found.values.sum() <= 0.1 * weights.sum() + 1e-12
    untruncated = estimate(utility, 12, tolerance=0.0, **arguments)
    np.testing.assert_allclose(untruncated.values, weights, atol=1e-12)


@pytest.mark.parametrize("method", ["exact", *SAMPLERS])
def test_no_coalition_is_evaluated_twice_and_the_count_is_true(method):
    asked = []
    utility = random_game(7, seed=1)
    found = estimate(lambda s: asked.append(s) or utility(s), 7, method=method, rng=np.random.default_rng(0))
    assert len(asked) == len(set(asked)) == found.evaluations
    assert all(isinstance(coalition, frozenset) for coalition in asked)
    assert found.evaluations <= (128 if method == "exact" else 3 * 49)


def test_auto_is_exact_when_that_costs_no_more_than_the_budget():
    utility, rng = random_game(6, seed=2), np.random.default_rng(0)
    assert estimate(utility, 6, method="auto", budget=64).method == "exact"
    assert estimate(utility, 6, method="auto", budget=63, rng=rng).method == "cc"
    assert estimate(utility, 6, method="auto", budget=63, known={frozenset(): 0.0}).evaluations == 63
    # by default the budget is 3n²: seven players are exact, eight are not
    assert estimate(random_game(7, 0), 7, method="auto").method == "exact"
    assert estimate(random_game(8, 0), 8, method="auto", rng=rng).method == "cc"


@pytest.mark.parametrize("method", ["exact", "dmc", "cc"])
def test_scaled_values_do_without_the_ends(method):
    """v(∅) and v(N) move all values alike, so they need not be evaluated for min-max scaled values."""
    n, utility = 6, random_game(6, seed=4)
    ends = {frozenset(), frozenset(range(n))}

    def guarded(coalition):
        assert coalition not in ends
        return utility(coalition)

    arguments = {"method": method, "budget": 62, "rng": np.random.default_rng(9)}
    found = estimate(guarded, n, known=dict.fromkeys(ends, 0.0), **arguments)
    full = shapley_values(utility, n)
    np.testing.assert_allclose(normalise(found.values), normalise(full), atol=1e-9)
    assert found.evaluations <= 62


def test_samplers_are_reproducible():
    utility = random_game(9, seed=0)
    for method in SAMPLERS:
        first, second = (shapley_values(utility, 9, method=method, rng=np.random.default_rng(3)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


def test_one_draw_has_no_standard_error():
    found = estimate(random_game(6, 0), 6, method="mc", budget=7, rng=np.random.default_rng(0))
    assert found.evaluations == 7
    assert np.isnan(found.standard_errors).all()


def test_a_table_of_twenty_players():
    """Σ over pairs of i·j has the value i·(Σ j - i)/2 … exactly what pairwise effects share out."""
    n = 20
    worth = np.arange(1.0, n + 1)
    member = np.arange(1 << n)[:, None] >> np.arange(n) & 1
    values = shapley_from_table(((member @ worth) ** 2 - member @ worth**2) / 2)
    np.testing.assert_allclose(values, worth * (worth.sum() - worth) / 2, rtol=1e-9)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(0.1, 10), st.floats(-5, 5))
def test_normalise_is_min_max_and_forgets_scale_and_shift(values, scale, shift):
    array = np.array(values)
    if np.ptp(array) < 1e-3:
        return
    scaled = normalise(array)
    assert scaled.min() == 0 and scaled.max() == 1
    assert scaled.argmin() == array.argmin()
    np.testing.assert_allclose(normalise(scale * array + shift), scaled, atol=1e-6)
    np.testing.assert_allclose(array.min() + scaled * np.ptp(array), array, atol=1e-9)


@pytest.mark.parametrize("values", [[0.3], [1.0, 1.0, 1.0], [0.1 + 0.2, 0.3], [1e-17, 0.0]])
def test_normalise_of_equal_values_is_undefined(values):
    assert normalise(values) is None


def constant(coalition):
    return 1.0


def raising(coalition):
    raise RuntimeError("no model")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shapley_values(constant, 0), "n, the number of players, is 0"),
        (lambda: shapley_values(constant, 1), "n, the number of players, is 1"),
        (lambda: shapley_values(constant, 2.5), "whole number"),
        (lambda: shapley_values(constant, 3, method="exakt"), "'exakt': choose one of auto"),
        (lambda: shapley_values(lambda s: math.nan, 3), r"utility of coalition \[\] is nan"),
        (lambda: shapley_values(lambda s: math.inf if len(s) == 2 else 0.0, 3), r"coalition \[0, 1\] is inf"),
        (lambda: shapley_values(lambda s: None, 3), "None: it must be a number"),
        (lambda: shapley_values(raising, 3), "utility raised RuntimeError"),
        (lambda: shapley_values(constant, 3, budget=-1), "budget is -1"),
        (lambda: shapley_values(constant, 3, method="mc", budget=-1), "budget is -1"),
        (lambda: shapley_values(constant, 3, budget=0), "budget is 0"),
        (lambda: shapley_values(constant, 4, budget=15), "16 evaluations, more than budget=15"),
        (lambda: shapley_values(constant, 40), "fit in memory"),
        (lambda: shapley_values(constant, 4, method="mc"), r"pass rng=np.random.default_rng\(seed\)"),
        (lambda: shapley_values(constant, 4, method="mc", rng=7), "rng is 7"),
        (lambda: shapley_values(constant, 4, method="dmc", pivot=4), "pivot is 4"),
        (lambda: shapley_values(constant, 4, method="tmc", tolerance=-0.1), "tolerance is -0.1"),
        (lambda: shapley_values(constant, 3, known={frozenset({3}): 0.0}), "player 3"),
        (lambda: shapley_values(constant, 3, known={frozenset(): math.nan}), "nan: it must be finite"),
        (lambda: shapley_from_table([0.0, 1.0, 2.0]), "table has 3 entries"),
        (lambda: shapley_from_table([0.0, 1.0]), "table has 2 entries"),
        (lambda: shapley_from_table([0.0, 1.0, math.nan, 2.0]), r"table\[2\] is nan"),
        (lambda: normalise([]), "values is empty"),
        (lambda: normalise([0.0, math.nan]), r"values\[1\] is nan"),
        (lambda: normalise(["a"]), "array of numbers"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("method", SAMPLERS)
@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_too_small_a_budget_names_one_that_is_enough(method, n):
    utility = random_game(n, seed=0)
    with pytest.raises(ValueError, match="at least") as caught:
        shapley_values(utility, n, method=method, budget=1, rng=np.random.default_rng(0))
    enough = int(str(caught.value).split("at least ")[1])
    for seed in range(20):
        shapley_values(utility, n, method=method, budget=enough, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("method", ["auto", "exact", *SAMPLERS])
def test_the_least_budget_pays_for_every_draw(method):
    for players, seed in itertools.product(range(2, 9), range(10)):
        utility, least = random_game(players, seed), least_budget(method, players)
        found = estimate(utility, players, method=method, budget=least, rng=np.random.default_rng(seed))
        assert found.evaluations <= least
        if method != "tmc":
            total = utility(frozenset(range(players))) - utility(frozenset())
            assert found.values.sum() == pytest.approx(total)


def test_auto_takes_what_the_budget_pays_for():
    ran = {
        budget: estimate(random_game(8, 0), 8, method="auto", budget=budget, rng=np.random.default_rng(0)).method
        for budget in (9, 35, 36, 255, 256)  # cc of eight: 2 + 2 (8 + 4 + 3 + 2)
    }
    assert ran == {9: "mc", 35: "mc", 36: "cc", 255: "cc", 256: "exact"}
