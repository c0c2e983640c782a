"""The hypernetwork against autograd, torch's own Adam, and the exact Pareto front of linear regression."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from coterie.games.equilibrium import linear_pareto_front
from coterie.tasks.hypernetwork import Diverged, Hypernetwork
from coterie.tasks.models import build_network

D, CLIENTS = 5, 3


def small(clients=CLIENTS, model="mlp", shape=(4,), seed=1, **more):
    network = build_network(model, shape, 2, seed=seed)
    return network, Hypernetwork(network, clients, **{"hidden": 12, "layers": 2, "seed": 3, **more})


def shaken(hyper, seed=0):
    """The same hypernetwork with random heads: it starts with all of them at 0."""
    with torch.no_grad():
        hyper.flat.add_(0.3 * torch.randn(hyper.flat.shape, generator=torch.Generator().manual_seed(seed)))
    return hyper


def rays(number, clients=CLIENTS, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(clients), number)


def test_it_starts_as_the_initial_model_for_all_preferences():
    network, hyper = small(model="lenet5", shape=(1, 8, 8))
    models = hyper.models(rays(4))
    assert set(models) == {"extractor", "norm", "classifier"}
    for part, rows in models.items():
        np.testing.assert_array_equal(rows, np.tile(network.dump()[part], (4, 1)))


def test_different_preferences_give_different_models():
    models = shaken(small()[1]).models(np.eye(CLIENTS))["extractor"]
    assert min(np.abs(models[i] - models[j]).max() for i in range(3) for j in range(i)) > 1e-3


@pytest.mark.parametrize("chunk", [7, 100, 10**6])
def test_chunks_give_as_many_numbers_and_follow_preferences(chunk):
    network, hyper = small(chunk=chunk)
    shaken(hyper)
    models = hyper.models(rays(4))
    assert {part: rows.shape for part, rows in models.items()} == {
        part: (4, value.size) for part, value in network.dump().items()
    }
    changes = np.ptp(np.concatenate(list(models.values()), axis=1), axis=0)
    assert (changes > 0).mean() > 0.99  # in every chunk


def test_a_network_of_two_million_weights_needs_little_memory():
    """Without chunks 100 hidden units would need 216 million numbers, and Adam three times that."""
    network = build_network("cnn", (3, 32, 32), 10, seed=1)
    total = sum(value.size for value in network.dump().values())
    hyper = Hypernetwork(network, 10)
    assert total > 2_000_000
    assert hyper.flat.numel() < 5 * total  # its own shift of every weight, and the heads
    assert hyper.state().nbytes < 110 * 2**20
    assert sum(rows.shape[1] for rows in hyper.models(rays(1, 10)).values()) == total
    assert max(head.out.out_features for head in hyper.heads) == 16384


def composed_loss(network, theta, x, y):
    """The loss of the small MLP with the weights `theta` (numbers,), differentiable."""
    sizes = [p.shape for part in ("extractor", "classifier") for p in network.parameters_of(part)]
    w1, b1, w2, b2, w3, b3 = (
        piece.view(shape) for piece, shape in zip(theta.split([s.numel() for s in sizes]), sizes, strict=True)
    )
    hidden = torch.relu(functional.linear(torch.relu(functional.linear(x, w1, b1)), w2, b2))
    return functional.cross_entropy(functional.linear(hidden, w3, b3), y)


def client_data(seed):
    torch.manual_seed(seed)
    return torch.randn(9, 4), torch.randint(0, 2, (9,))


def test_back_propagation_on_the_server_is_that_of_the_composed_loss():
    """sum_i d_i L_i(HN(d)) by autograd through everything, against the clients' gradients, carried on by the server."""
    network, hyper = small(chunk=64)
    shaken(hyper)
    d = rays(1)
    data = [client_data(seed) for seed in range(CLIENTS)]
    hyper.gradient.zero_()
    theta = hyper(torch.tensor(d, dtype=torch.float32))[0]
    sum(w * composed_loss(network, theta, *own) for w, own in zip(d[0].tolist(), data, strict=True)).backward()
    expected = hyper.gradient.clone()
    assert expected.abs().max() > 0

    numbers = torch.tensor(hyper.join(hyper.models(d))[0])
    total = np.zeros((1, len(numbers)), np.float32)
    for w, own in zip(d[0], data, strict=True):
        leaf = numbers.clone().requires_grad_()
        composed_loss(network, leaf, *own).backward()
        total += w * leaf.grad.numpy()
    step = 0.5
    hyper.follow(d, hyper.split(total), step=step, rate=0.0, steps=1)
    got = hyper.gradient * hyper.scale**2 / step
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


def test_slopes_are_those_of_autograd():
    network, hyper = small()
    shaken(hyper)
    d, own = rays(2), client_data(5)
    leaf = torch.tensor(d, dtype=torch.float32, requires_grad=True)
    theta = hyper(leaf)
    sum(composed_loss(network, row, *own) for row in theta).backward()
    rows = theta.detach().clone().requires_grad_()
    sum(composed_loss(network, row, *own) for row in rows).backward()
    np.testing.assert_allclose(hyper.slopes(d, hyper.split(rows.grad.numpy())), leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_steps_are_those_of_adam():
    torch.manual_seed(0)
    _, hyper = small()
    _, other = small()
    d = rays(6)
    gradients = {part: np.random.default_rng(1).normal(size=r.shape) for part, r in hyper.models(d).items()}
    target = other(torch.tensor(d, dtype=torch.float32)).detach() - 0.1 * torch.tensor(hyper.join(gradients)).float()
    hyper.follow(d, gradients, step=0.1, rate=0.02, steps=5)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.02)
    for i in range(5):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - i / 5)
        optimizer.zero_grad(set_to_none=False)
        loss = (other(torch.tensor(d, dtype=torch.float32)) - target).square().sum() / (2 * 6 * other.scale**2)
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(hyper.models(d)["extractor"], other.models(d)["extractor"], rtol=1e-3, atol=1e-5)


def test_it_comes_closer_to_where_the_gradients_point():
    _, hyper = small(model="linear", hidden=40)
    d = rays(8)
    gradients = {part: np.random.default_rng(1).normal(size=r.shape) for part, r in hyper.models(d).items()}
    few, many = (
        small(model="linear", hidden=40)[1].follow(d, gradients, step=0.05, rate=0.02, steps=n) for n in (2, 200)
    )
    assert many < few < 1 and many < 0.1


def regression(clients=6, features=20, samples=100, seed=0):
    rng = np.random.default_rng(seed)
    thetas = np.repeat(rng.normal(size=(2, features)), clients // 2, axis=0) + rng.uniform(
        -0.05, 0.05, (clients, features)
    )
    x = rng.normal(size=(clients, samples, features))
    y = np.einsum("csf,cf->cs", x, thetas) + rng.normal(size=(clients, samples))
    return np.einsum("csf,csg->cfg", x, x) / samples, np.einsum("csf,cs->cf", x, y) / samples, (y**2).mean(axis=1)


def test_it_learns_the_exact_pareto_front_of_linear_regression():
    grams, moments, squares = regression()
    clients, features = moments.shape

    def weighted_loss(theta, d):
        own = np.einsum("kf,cfg,kg->kc", theta, grams, theta) - 2 * theta @ moments.T + squares
        return (d * own).sum(axis=1)

    network = build_network("linear", (features,), 1, seed=1)
    hyper = Hypernetwork(network, clients, hidden=40, seed=2)
    rng = np.random.default_rng(3)
    for _ in range(30):
        d = rng.dirichlet(np.full(clients, 0.2), 32)
        numbers = hyper.models(d)["classifier"].astype(float)
        theta, bias = numbers[:, :features], numbers[:, features:]
        gradient = 2 * (np.einsum("kc,cfg,kg->kf", d, grams, theta) - d @ moments)
        hyper.follow(d, {"classifier": np.concatenate([gradient, 2 * bias], axis=1)}, step=0.25, rate=0.01, steps=20)
    d = rng.dirichlet(np.ones(clients), 1000)
    exact = weighted_loss(linear_pareto_front(grams, moments, d), d)
    start = weighted_loss(np.tile(network.dump()["classifier"][:features], (1000, 1)), d)
    found = weighted_loss(hyper.models(d)["classifier"][:, :features].astype(float), d)
    assert (start / exact).mean() > 1.5
    assert (found / exact - 1).mean() < 0.05


def test_a_state_can_be_loaded_again():
    _, hyper = small()
    _, other = small()
    d = rays(4)
    gradients = {part: np.ones_like(r) for part, r in hyper.models(d).items()}
    hyper.follow(d, gradients, step=0.1, rate=0.02, steps=3)
    other.load(hyper.state(), hyper.taken)
    for one in (hyper, other):
        one.follow(d, gradients, step=0.1, rate=0.02, steps=3)
    np.testing.assert_array_equal(hyper.state(), other.state())
    assert other.taken == 6
    with pytest.raises(ValueError, match="does not fit"):
        small(hidden=5)[1].load(hyper.state(), 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_divergence_is_said_and_nothing_is_changed(bad):
    _, hyper = small()
    shaken(hyper)
    before = hyper.state()
    d = rays(4)
    gradients = {part: np.full(r.shape, bad, np.float32) for part, r in hyper.models(d).items()}
    with pytest.raises(Diverged, match="not finite"):
        hyper.follow(d, gradients, step=10.0, rate=0.02, steps=3)
    np.testing.assert_array_equal(hyper.state(), before)
    assert hyper.taken == 0
