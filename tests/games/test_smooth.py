"""The smooth game against enumeration of all coalitions, and against fits with one value left out."""

import numpy as np
import pytest

from coterie.games import smooth
from coterie.games.shapley import estimate, normalise, shapley_from_table


def all_coalitions(n):
    return (np.arange(1 << n)[:, None] >> np.arange(n) & 1).astype(bool)


def kernel(first, second):
    n = first.shape[1]
    distance = (first[:, None] ^ second[None]).sum(axis=2)
    ratio = (n - 2) / (n + 2)
    return ratio**distance - ratio ** (n - distance)


@pytest.mark.parametrize("n", [2, 3, 6, 7])
def test_its_values_are_those_of_all_coalitions(n):
    rng = np.random.default_rng(n)
    members = all_coalitions(n)[rng.permutation(1 << n)[:4]]
    alpha = rng.normal(size=4)
    table = kernel(all_coalitions(n), members) @ alpha
    found = smooth._shapley(members, alpha, (n - 2) / (n + 2))
    # u(N - S) = -u(S), so the mean of u over a player's strata is its Shapley value, but for what all have in common
    wanted = shapley_from_table(table) / 2
    np.testing.assert_allclose(found - found.mean(), wanted - wanted.mean(), atol=1e-12)


def test_what_is_left_outside_is_the_error_of_a_fit_to_the_others(monkeypatch):
    monkeypatch.setattr(smooth, "PENALTIES", (0.05,))
    rng = np.random.default_rng(0)
    members, values = all_coalitions(6)[rng.permutation(np.arange(1, 32))[:12]], rng.normal(size=12)
    found = smooth.smooth_game(members, values)
    scale = 1 - (4 / 8) ** 6
    for j in range(12):
        others = np.arange(12) != j
        weights = np.linalg.solve(
            kernel(members[others], members[others]) + 0.05 * scale * np.eye(11), values[others]
        )  # fmt: skip
        assert found.outside[j] == pytest.approx(values[j] - kernel(members[[j]], members[others]) @ weights, abs=1e-9)


def test_more_draws_than_are_fitted(monkeypatch):
    rng = np.random.default_rng(1)
    members = all_coalitions(9)[rng.permutation(np.arange(1, 256))[:90]]
    values = (2.0 * members - 1) @ rng.normal(size=9)
    monkeypatch.setattr(smooth, "MOST_FITTED", 40)
    found = smooth.smooth_game(members, values)
    assert len(found.inside) == len(found.outside) == 90
    assert np.square(found.outside).mean() < 0.1 * np.square(values).mean()  # also those that the fit has not seen


def test_cc_of_averaged_models_takes_few_evaluations():
    """A game as ShapleyFL plays it, a smooth function of a mean: a quarter of the coalitions, and hardly an error."""
    n = 10
    points = np.random.default_rng(3).normal(size=(n, 5))
    points[:2] -= 3
    members = all_coalitions(n)
    means = members @ points / np.maximum(members.sum(axis=1), 1)[:, None]
    table = np.tanh(means[:, 0]) - np.square(means).sum(axis=1)
    truth = normalise(shapley_from_table(table))

    def utility(coalition):
        return table[sum(1 << i for i in coalition)]

    errors = []
    for seed in range(10):
        found = estimate(utility, n, method="cc", budget=250, rng=np.random.default_rng(seed))
        errors.append(np.mean((normalise(found.values) - truth) ** 2))
    assert np.mean(errors) < 1e-4  # means by size with slopes alone: 5e-4
