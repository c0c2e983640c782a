"""Attacks on uploaded models: they work without privacy, and fail with it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tasks.training import Samples

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "privacy.py"


@pytest.fixture(scope="module")
def attacks():
    specification = importlib.util.spec_from_file_location("attacks", BENCHMARK)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def digits(count: int) -> tuple[Samples, Samples]:
    """Two disjoint sets of digits; a third of all labels is wrong, and can only be learned by heart."""
    data, rng = load_digits(), np.random.default_rng(5)
    chosen = rng.permutation(len(data.target))[: 2 * count]
    x = torch.from_numpy(((data.images[chosen, None] - 4.9) / 6.0).astype(np.float32))
    labels = np.where(rng.random(2 * count) < 0.33, rng.integers(10, size=2 * count), data.target[chosen])
    y = torch.from_numpy(labels.astype(np.int64))
    return Samples(x[:count], y[:count]), Samples(x[count:], y[count:])


def test_membership_shows_without_privacy_and_hardly_with_it(attacks):
    members, others = digits(120)
    open_model, _ = attacks.trained(members, None, seed=1, epochs=80)
    assert attacks.membership(open_model, members, others) > 0.65
    private_model, epsilon = attacks.trained(members, 2.0, seed=1, epochs=20)
    assert epsilon < 10
    assert abs(attacks.membership(private_model, members, others) - 0.5) < 0.08


def test_the_attack_itself_is_fair(attacks):
    """On a model that saw neither set it is a coin."""
    members, others = digits(120)
    untrained, _ = attacks.trained(members, None, seed=1, epochs=0)
    assert abs(attacks.membership(untrained, members, others) - 0.5) < 0.08


def test_a_sample_can_be_read_off_an_update_without_privacy_and_not_with_it(attacks):
    members, _ = digits(4)
    for i in range(4):
        sample = Samples(members.x[i : i + 1], members.y[i : i + 1])
        assert attacks.inversion(sample, None, seed=i) > 0.999
        assert attacks.inversion(sample, 1.0, seed=i) < 0.6
