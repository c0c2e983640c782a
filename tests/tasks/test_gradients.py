"""Gradients of several models: all at once and one by one, against autograd on each."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coterie.tasks.gradients import (
    _all_at_once,
    _one_by_one,
    is_simple,
    measure_statistics,
    training_gradients,
    validation_gradient,
)
from coterie.tasks.models import build_network
from coterie.tasks.training import Samples, evaluate


def several(network, number=3, seed=0):
    rng = np.random.default_rng(seed)
    parts = {part: value for part, value in network.dump().items() if part in ("extractor", "norm", "classifier")}
    return {part: (v + 0.1 * rng.normal(size=(number, v.size))).astype(np.float32) for part, v in parts.items()}


def table(number=20, seed=0, regression=False):
    torch.manual_seed(seed)
    y = torch.randn(number) if regression else torch.randint(0, 3, (number,))
    return Samples(torch.randn(number, 6), y)


def images(number=20, seed=0):
    torch.manual_seed(seed)
    return Samples(torch.randn(number, 1, 8, 8), torch.randint(0, 3, (number,)))


def by_hand(network, row, samples):
    network.load(row)
    network.zero_grad()
    for parameter in network.parameters():
        parameter.requires_grad_()
    out = network(samples.x)
    loss = functional.mse_loss(out[:, 0], samples.y) if samples.regression else functional.cross_entropy(out, samples.y)
    loss.backward()
    return {p: torch.cat([t.grad.flatten() for t in network.parameters_of(p)]).numpy() for p in row}, float(
        loss.detach()
    )


@pytest.mark.parametrize(
    ("model", "samples"),
    [("mlp", table()), ("linear", table(regression=True)), ("lenet5", images()), ("cnn", images())],
)
def test_one_step_is_the_gradient_of_each_model(model, samples):
    outputs = 1 if samples.regression else 3
    network = build_network(model, tuple(samples.x.shape[1:]), outputs, seed=1)
    assert is_simple(network) == (model in ("mlp", "linear"))
    models = several(network)
    got, losses = training_gradients(
        network, models, samples, steps=1, rate=0.1, most=100, rng=np.random.default_rng(0)
    )
    network.train()
    for k in range(3):
        expected, loss = by_hand(network, {part: rows[k] for part, rows in models.items()}, samples)
        assert losses[k] == pytest.approx(loss, rel=1e-5)
        for part, value in expected.items():
            np.testing.assert_allclose(got[part][k], value, rtol=1e-3, atol=1e-5)


def test_both_ways_are_the_same():
    network, samples = build_network("mlp", (6,), 3, seed=1), table()
    models = {part: torch.from_numpy(rows) for part, rows in several(network).items()}
    (one, first), (two, second) = (way(network, models, samples.x, samples.y) for way in (_all_at_once, _one_by_one))
    torch.testing.assert_close(first, second)
    for part in models:
        torch.testing.assert_close(one[part], two[part], rtol=1e-4, atol=1e-6)


def test_more_steps_are_gradient_descent():
    network, samples = build_network("mlp", (6,), 3, seed=1), table()
    models = several(network, 2)
    kept = {part: rows.copy() for part, rows in models.items()}
    total, losses = training_gradients(
        network, models, samples, steps=3, rate=0.02, most=100, rng=np.random.default_rng(0)
    )
    row = {part: rows[1].copy() for part, rows in models.items()}
    sums, seen = {part: np.zeros_like(value) for part, value in row.items()}, []
    for _ in range(3):
        gradient, loss = by_hand(network, row, samples)
        seen.append(loss)
        for part in row:
            sums[part] += gradient[part]
            row[part] = row[part] - 0.02 * gradient[part]
    assert losses[1] == pytest.approx(np.mean(seen), rel=1e-4) and seen[2] < seen[0]
    for part in row:
        np.testing.assert_allclose(total[part][1], sums[part], rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(models[part], kept[part])  # what was received is not changed


def test_batches_are_of_at_most_so_many_samples():
    network, samples = build_network("linear", (6,), 3, seed=1), table(30)
    seen = []
    network.extractor.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    training_gradients(network, several(network), samples, steps=2, rate=0.1, most=8, rng=np.random.default_rng(0))
    assert seen == [8, 8]


def test_a_client_without_samples_has_no_gradient():
    network = build_network("mlp", (6,), 3, seed=1)
    got, losses = training_gradients(
        network, several(network), table(0), steps=1, rate=0.1, most=8, rng=np.random.default_rng(0)
    )
    assert not losses.any() and not any(value.any() for value in got.values())


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_all_losses_and_the_gradient_of_the_best(model):
    make = table if model == "mlp" else images
    validation, training = make(15, 1), make(40, 2)
    network = build_network(model, tuple(validation.x.shape[1:]), 3, seed=1)
    models = several(network, 4)
    gradient, losses = validation_gradient(network, models, validation, training)
    expected = []
    for k in range(4):
        network.load({part: rows[k] for part, rows in models.items()})
        measure_statistics(network, training)
        expected.append(evaluate(network, validation)["loss"])
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    best = int(np.argmin(losses))
    network.load({part: rows[best] for part, rows in models.items()})
    measure_statistics(network, training)
    network.eval()
    by, _ = by_hand(network, {part: rows[best] for part, rows in models.items()}, validation)
    for part, value in by.items():
        assert gradient[part].shape == (1, value.size)
        np.testing.assert_allclose(gradient[part][0], value, rtol=1e-3, atol=1e-5)


def test_statistics_are_those_of_the_samples():
    samples = images(50)
    network = build_network("lenet5", (1, 8, 8), 3, seed=1)
    momentum = network.extractor[1].momentum
    measure_statistics(network, samples)
    seen = network.extractor[0](samples.x)  # what the first normalisation sees
    np.testing.assert_allclose(network.extractor[1].running_mean, seen.mean((0, 2, 3)).detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.extractor[1].running_var, seen.var((0, 2, 3)).detach(), rtol=1e-3)
    assert network.extractor[1].momentum == momentum
    before = network.dump()["buffers"]
    measure_statistics(network, images(1))  # one sample has no variance: nothing is measured
    np.testing.assert_array_equal(network.dump()["buffers"], before)
