"""Mixtures of models: exact for linear regression, never worse than any of the models for others."""

import numpy as np
import pytest
import torch

from coterie.games.mixing import mixing_weights
from coterie.strategies.pfedocf.mixing import best_mixture, chosen_mixture, mixed
from coterie.tasks.models import build_network
from coterie.tasks.training import Samples, evaluate


def test_linear_regression_has_the_exact_weights():
    """The quadratic problem, set up here from the residuals of every model."""
    rng = np.random.default_rng(0)
    network = build_network("linear", (3,), 1, seed=0)
    x, theta = rng.normal(size=(40, 3)), np.array([1.0, -2.0, 0.5])
    y = x @ theta + 0.1 * rng.normal(size=40)
    models = [{"classifier": np.append(theta + rng.normal(size=3), 0.0).astype(np.float32)} for _ in range(4)]
    samples = Samples(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32))
    residuals = np.stack([x @ model["classifier"][:3] - y for model in models])
    expected = mixing_weights(residuals @ residuals.T / 40)
    assert (expected > 0.01).sum() > 1  # a true mixture
    np.testing.assert_allclose(best_mixture(network, models, samples), expected, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_networks_are_never_worse_than_their_best_model(seed):
    rng = np.random.default_rng(seed)
    network = build_network("mlp", (4,), 3, seed=seed)
    samples = Samples(
        torch.tensor(rng.normal(size=(30, 4)), dtype=torch.float32), torch.tensor(rng.integers(0, 3, size=30))
    )
    start = network.dump()
    models = [
        {part: (value + 0.05 * rng.normal(size=value.shape)).astype(np.float32) for part, value in start.items()}
        for _ in range(3)
    ]

    def loss(weights):
        network.load(mixed(models, weights))
        return evaluate(network, samples)["loss"]

    weights = best_mixture(network, models, samples)
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all()
    assert loss(weights) <= min(loss(corner) for corner in np.eye(3)) + 1e-6


def test_a_useless_model_gets_nothing_and_a_broken_one_does_not_spread():
    network = build_network("linear", (1,), 1, seed=0)
    x = torch.tensor([[1.0], [2.0], [3.0]])
    good, bad = {"classifier": np.array([2, 0], np.float32)}, {"classifier": np.array([1e30, 0], np.float32)}
    assert best_mixture(network, [good, bad], Samples(x, 2 * x[:, 0])) == pytest.approx([1, 0])
    assert best_mixture(network, [good], Samples(x, 2 * x[:, 0])).tolist() == [1.0]


def test_the_best_mixture_is_taken_only_where_it_is_clear():
    """Predictions 0 (own) and 1 (coalition); targets about 0: own. Targets that say little: the coalition."""
    network = build_network("linear", (1,), 1, seed=0)
    own, coalition = ({"classifier": np.array([slope, 0], np.float32)} for slope in (0, 1))
    x = torch.ones(6, 1)

    def weights(targets):
        return chosen_mixture(network, [own, coalition], Samples(x[: len(targets)], torch.tensor(targets)))

    assert weights([0.1, -0.1, 0.0, 0.1, -0.1, 0.0]) == pytest.approx([1, 0], abs=1e-3)
    assert weights([3.0, -2.5, 3.0, -2.5, 0.4, 0.6]).tolist() == [0, 1]
    assert weights([0.0]).tolist() == [0, 1]  # one sample says nothing
    assert chosen_mixture(network, [own], Samples(x, x[:, 0])).tolist() == [1]
