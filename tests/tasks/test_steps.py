"""Steps of Per-FedAvg and pFedMe, where the answer is known: a linear model and squared errors."""

import numpy as np
import pytest
import torch

from coterie.tasks.models import Network, build_network
from coterie.tasks.steps import Adapted, Moreau
from coterie.tasks.training import Samples, Sgd, train


def problem(n: int = 40, seed: int = 0) -> tuple[Samples, np.ndarray, np.ndarray]:
    """Samples, and f(w) = |A w - b|^2 / n with the bias as last coefficient."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.3 + 0.1 * rng.normal(size=n)
    samples = Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32)))
    return samples, np.concatenate([x, np.ones((n, 1))], axis=1), y


def linear() -> tuple[Network, np.ndarray]:
    network = build_network("linear", (3,), 1, seed=1)
    return network, network.dump()["classifier"].astype(float)


def gradient(a, b, w):
    return 2 * a.T @ (a @ w - b) / len(b)


def run(step, samples, *, rate=0.05, batch=1000, epochs=1, **sgd):
    network, start = linear()
    done = train(network, samples, Sgd(rate, batch, **sgd), epochs=epochs, rng=np.random.default_rng(0), step=step)
    return network.dump()["classifier"].astype(float), start, done


def test_one_batch_is_its_own_partner():
    samples, a, b = problem()
    got, w, done = run(Adapted(0.1), samples)
    adapted = w - 0.1 * gradient(a, b, w)
    np.testing.assert_allclose(got, w - 0.05 * gradient(a, b, adapted), rtol=1e-5, atol=1e-6)
    assert done.steps == 1 and done.loss == pytest.approx(((a @ adapted - b) ** 2).mean(), rel=1e-5)


def test_two_batches_make_one_step():
    samples, a, b = problem()
    got, w, done = run(Adapted(0.1), samples, batch=20)
    order = np.random.default_rng(0).permutation(40)
    one, two = order[:20], order[20:]
    adapted = w - 0.1 * gradient(a[one], b[one], w)
    np.testing.assert_allclose(got, w - 0.05 * gradient(a[two], b[two], adapted), rtol=1e-5, atol=1e-6)
    assert done.steps == 1


@pytest.mark.parametrize(("batch", "steps"), [(10, 2), (16, 2), (8, 3), (1000, 1)])
def test_an_odd_last_batch_takes_the_first(batch, steps):
    assert run(Adapted(0.1), problem()[0], batch=batch)[2].steps == steps


def test_without_adaptation_it_is_sgd_on_every_second_batch():
    samples, _, _ = problem()
    got, _, _ = run(Adapted(0.0), samples, momentum=0.5, weight_decay=0.1)
    plain, start = linear()
    train(plain, samples, Sgd(0.05, 1000, 0.5, 0.1), epochs=1, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(got.astype(np.float32), plain.dump()["classifier"])
    assert not np.allclose(got, start)


@pytest.mark.parametrize("pull", [0.1, 1.0, 15.0, 1e4])
def test_theta_is_the_minimum_and_w_goes_towards_it(pull):
    samples, a, b = problem()
    step = Moreau(pull, 400, 0.2)
    got, w, done = run(step, samples, rate=0.5 / pull)
    n = len(b)
    theta = np.linalg.solve(2 * a.T @ a / n + pull * np.eye(4), 2 * a.T @ b / n + pull * w)
    np.testing.assert_allclose(step.personal()["classifier"], theta, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, (w + theta) / 2, rtol=1e-4, atol=1e-5)
    assert done.loss == pytest.approx(((a @ theta - b) ** 2).mean(), rel=1e-3)


def test_a_pull_beyond_measure_is_sgd():
    samples, a, b = problem()
    step = Moreau(1e8, 1, 0.05)
    got, w, _ = run(step, samples)
    np.testing.assert_allclose(got, w - 0.05 * gradient(a, b, w), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(step.personal()["classifier"], w, rtol=1e-5, atol=1e-6)


def test_hardly_any_pull_leaves_w_where_it_is():
    samples, a, b = problem()
    step = Moreau(1e-9, 3, 0.1)
    got, w, _ = run(step, samples)
    np.testing.assert_allclose(got, w, atol=1e-6)
    alone = w.copy()
    for _ in range(3):
        alone = alone - 0.1 * gradient(a, b, alone)
    np.testing.assert_allclose(step.personal()["classifier"], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", [Adapted(0.1), Moreau(15.0, 2, 0.1)])
def test_hardly_any_samples(step):
    empty = Samples(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))
    network = build_network("lenet5", (1, 8, 8), 10, seed=1)
    start = network.dump()
    assert train(network, empty, Sgd(0.1, 8), epochs=1, rng=np.random.default_rng(0), step=step).steps == 0
    assert step.personal() == {} and all(np.array_equal(start[part], value) for part, value in network.dump().items())
    one = Samples(torch.ones(1, 1, 8, 8), torch.tensor([3]))
    assert train(network, one, Sgd(0.1, 8), epochs=1, rng=np.random.default_rng(0), step=step).steps == 1
    assert all(np.isfinite(value).all() for value in network.dump().values())
