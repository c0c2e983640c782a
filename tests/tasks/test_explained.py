"""What right labels explain of an update: against autograd and cvxpy, and of training with right and wrong labels."""

import cvxpy
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from coterie.tasks.explained import explained
from coterie.tasks.models import Network, build_network
from coterie.tasks.training import Samples, Sgd, train


def random_samples(classes: int, count: int) -> Samples:
    y = torch.arange(count) % classes
    return Samples(torch.randn(count, 4, generator=torch.Generator().manual_seed(1)), y)


@pytest.mark.parametrize("bias", [True, False])
def test_the_share_is_that_of_non_negative_least_squares(bias):
    samples = random_samples(3, 31)
    torch.manual_seed(2)
    extractor = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU())
    network = Network(extractor, torch.nn.Linear(6, 3, bias=bias))
    before = network.dump()
    rng = np.random.default_rng(3)
    for size in (0.01, 0.1):
        network.load(before)
        train(network, samples, Sgd(0.1, 8), epochs=2, rng=rng)
        after = {
            part: value + size * rng.normal(size=value.shape).astype(np.float32)
            for part, value in network.dump().items()
        }
        network.load({part: 0.75 * before[part] + 0.25 * after[part] for part in before})
        weights = list(network.classifier.parameters())
        columns = []
        for k in range(3):
            own = samples.y == k
            steps = torch.autograd.grad(-cross_entropy(network(samples.x[own]), samples.y[own]), weights)
            columns.append(np.concatenate([step.flatten().numpy() for step in steps]))
        update = after["classifier"] - before["classifier"]  # weights first, then bias: as torch lists them
        shares = cvxpy.Variable(3, nonneg=True)
        problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(np.array(columns).T @ shares - update)))
        problem.solve()
        expected = 1 - problem.value / (update @ update)
        assert explained(network, samples, before, after) == pytest.approx(expected, abs=1e-5)
        assert 0.02 < expected < 0.98


def test_a_step_down_the_loss_is_explained_and_one_up_is_not():
    samples = random_samples(3, 60)
    network = build_network("linear", (4,), 3, seed=1)
    before = network.dump()
    cross_entropy(network(samples.x), samples.y).backward()
    step = np.concatenate([p.grad.flatten().numpy() for p in network.classifier.parameters()])
    down, up = ({**before, "classifier": before["classifier"] + sign * 1e-3 * step} for sign in (-1, 1))
    assert explained(network, samples, before, down) > 0.999
    assert explained(network, samples, before, up) < 0.001


def test_nothing_is_explained_where_there_is_no_update_or_no_number():
    samples = random_samples(3, 30)
    network = build_network("linear", (4,), 3, seed=1)
    before = network.dump()
    assert explained(network, samples, before, dict(before)) == 0.0
    huge = {part: np.full_like(value, 3e38) for part, value in before.items()}
    assert explained(network, samples, before, huge) == 0.0


@pytest.mark.parametrize("labels", [(0,), (0, 1), (3, 8), tuple(range(10))])
def test_wrong_labels_are_seen_however_few_a_client_has(labels):
    """Networks trained on digits of these classes, with right and with wrong labels, judged on other digits."""
    digits = load_digits()
    x = torch.from_numpy((digits.images[:, None] / 8 - 1).astype(np.float32))
    y = torch.from_numpy(digits.target.astype(np.int64))
    server, everybody = Samples(x[:600], y[:600]), Samples(x[600:1200], y[600:1200])
    own = torch.isin(y[1200:], torch.tensor(labels))
    network = build_network("mlp", (1, 8, 8), 10, seed=1)
    train(network, everybody, Sgd(0.1, 32), epochs=2, rng=np.random.default_rng(1))
    before = network.dump()
    found = []
    for shift in (0, 1):
        network.load(before)
        samples = Samples(x[1200:][own], (y[1200:][own] + shift) % 10)
        train(network, samples, Sgd(0.05, 32), epochs=2, rng=np.random.default_rng(2))
        found.append(explained(network, server, before, network.dump()))
    assert found[0] > 0.8 and found[1] < 0.6
