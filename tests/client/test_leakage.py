"""What an upload tells about the samples behind it: the attacks of benchmarks/privacy.py, on digits, with privacy and without."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.tasks.datasets import load_dataset
from coterie.tasks.training import Samples

PATH = Path(__file__).parents[2] / "benchmarks" / "privacy.py"


@pytest.fixture(scope="module")
def attacks():
    spec = importlib.util.spec_from_file_location("privacy_attacks", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits(seed: int, count: int) -> Samples:
    dataset = load_dataset("digits", "")
    found = np.random.default_rng(seed).permutation(len(dataset.y))[:count]
    x = (dataset.x[found].astype(np.float32) - dataset.mean[:, None, None]) / dataset.std[:, None, None]
    return Samples(torch.from_numpy(x), torch.from_numpy(dataset.y[found]))


def test_the_step_that_is_inverted_is_the_gradient(attacks):
    """What the attacker sees without privacy, against autograd on a network of its own; the network is left as it was."""
    from coterie.tasks.models import build_network

    sample = digits(0, 1)
    network, twin = (build_network("lenet5", (1, 8, 8), 10, seed=1, group_norm=True) for _ in range(2))
    update = attacks.one_step(network, sample, None, 0)
    loss = torch.nn.functional.cross_entropy(twin(sample.x), sample.y)
    for change, gradient in zip(update, torch.autograd.grad(loss, list(twin.parameters())), strict=True):
        np.testing.assert_allclose(change, 0.1 * gradient, atol=1e-6)
    assert all(np.array_equal(value, twin.dump()[part]) for part, value in network.dump().items())
    assert int(update[-1].argmin()) == int(sample.y[0])


def test_inversion_in_closed_form(attacks):
    for seed in range(3):
        assert attacks.inversion(digits(seed, 1), None, seed) > 0.999
        assert attacks.inversion(digits(seed, 1), 1.0, seed) < 0.6


def test_inversion_by_descent(attacks):
    def mean_correlation(noise: float | None) -> float:
        found = [attacks.inversion_by_descent(digits(i, 1), noise, i, steps=200, smooth=0.03)[0] for i in range(4)]
        return float(np.mean(found))

    assert mean_correlation(None) > 0.45
    assert abs(mean_correlation(1.0)) < 0.25


def test_membership(attacks):
    samples = digits(0, 400)
    members, others = Samples(samples.x[:100], samples.y[:100]), Samples(samples.x[100:], samples.y[100:])
    clear, _ = attacks.trained(members, None, 0, 60)
    noisy, _ = attacks.trained(members, 4.0, 0, 60)
    assert attacks.membership(clear, members, others) > 0.65
    assert attacks.membership(noisy, members, others) < 0.6
