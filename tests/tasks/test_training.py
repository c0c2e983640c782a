"""Our SGD against torch's, clients with hardly any data, and metrics against scikit-learn's."""

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import nn
from torch.nn import functional

from coterie.tasks.models import Network, build_network
from coterie.tasks.training import Samples, Sgd, batches, evaluate, train


def images(n: int, seed: int = 0, classes: int = 10) -> Samples:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, 1, 8, 8)).astype(np.float32))
    return Samples(x, torch.from_numpy(rng.integers(0, classes, n)))


def lenet() -> Network:
    return build_network("lenet5", (1, 8, 8), 10, seed=1)


def plain_loop(network: nn.Module, samples: Samples, settings: Sgd, epochs: int, seed: int) -> None:
    """What the training must do, written with torch.optim."""
    optimizer = torch.optim.SGD(
        network.parameters(), lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    start = [parameter.detach().clone() for parameter in network.parameters()]
    rng = np.random.default_rng(seed)
    network.train()
    for _ in range(epochs):
        order = rng.permutation(len(samples))
        for first in range(0, len(order), settings.batch_size):
            chosen = torch.from_numpy(order[first : first + settings.batch_size])
            loss = functional.cross_entropy(network(samples.x[chosen]), samples.y[chosen])
            if settings.proximal_mu:
                distance = sum(((p - s) ** 2).sum() for p, s in zip(network.parameters(), start, strict=True))
                loss = loss + settings.proximal_mu / 2 * distance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


SETTINGS = [
    Sgd(0.05, 32),
    Sgd(0.1, 10, momentum=0.9),
    Sgd(0.05, 32, weight_decay=0.01),
    Sgd(0.02, 7, momentum=0.5, weight_decay=0.001),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_sgd_is_that_of_torch(settings, epochs):
    samples, ours, theirs = images(100), lenet(), lenet()
    before = ours.dump()
    trained = train(ours, samples, settings, epochs=epochs, rng=np.random.default_rng(4))
    plain_loop(theirs, samples, settings, epochs, seed=4)
    assert trained.steps == epochs * -(-100 // settings.batch_size)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-7)
    assert all(not np.array_equal(before[part], value) for part, value in ours.dump().items())


def test_one_step_is_torchs_bit_for_bit():
    samples, settings = images(32), Sgd(0.05, 32)
    ours, theirs = lenet(), lenet()
    train(ours, samples, settings, epochs=1, rng=np.random.default_rng(4))
    plain_loop(theirs, samples, settings, 1, seed=4)
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in theirs.state_dict().items())


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_the_proximal_term(mu):
    samples, ours, theirs = images(60), lenet(), lenet()
    settings = Sgd(0.1, 20, momentum=0.5, proximal_mu=mu)
    train(ours, samples, settings, epochs=2, rng=np.random.default_rng(4))
    plain_loop(theirs, samples, settings, 2, seed=4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    free = lenet()
    train(free, samples, Sgd(0.1, 20, momentum=0.5), epochs=2, rng=np.random.default_rng(4))
    start = lenet().dump()["extractor"]
    assert np.linalg.norm(ours.dump()["extractor"] - start) < np.linalg.norm(free.dump()["extractor"] - start)


def test_the_loss_is_the_mean_over_all_samples_seen():
    samples, network = images(50), lenet()
    trained = train(network, samples, Sgd(1e-12, 16), epochs=2, rng=np.random.default_rng(0))
    order, losses = np.random.default_rng(0), []
    reference = lenet().train()
    reference.requires_grad_(False)
    for _ in range(2):
        indices = order.permutation(50)
        for first in range(0, 50, 16):
            chosen = torch.from_numpy(indices[first : first + 16])
            losses.append(
                (float(functional.cross_entropy(reference(samples.x[chosen]), samples.y[chosen])), len(chosen))
            )
    assert trained.loss == pytest.approx(sum(loss * n for loss, n in losses) / 100, rel=1e-5)


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [("classifier",), ("extractor",), ("norm",), ("extractor", "norm"), ("extractor", "classifier")]
)
def test_only_the_named_parts_change(parts):
    network = lenet()
    before = network.dump()
    train(
        network,
        images(40),
        Sgd(0.1, 10, momentum=0.9, weight_decay=0.1),
        epochs=1,
        rng=np.random.default_rng(0),
        parts=parts,
    )
    for part, value in network.dump().items():
        assert np.array_equal(value, before[part]) == (
            part in ("extractor", "norm", "classifier") and part not in parts
        ), part


def test_a_phase_leaves_no_trace_on_the_next():
    """After training the classifier alone, all parts can be trained again, with no momentum left over."""
    samples, network = images(40), lenet()
    train(network, samples, Sgd(0.1, 10, momentum=0.9), epochs=1, rng=np.random.default_rng(0), parts=("classifier",))
    middle = network.dump()
    train(network, samples, Sgd(0.1, 10, momentum=0.9), epochs=1, rng=np.random.default_rng(1))
    fresh = lenet()
    fresh.load(middle)
    train(fresh, samples, Sgd(0.1, 10, momentum=0.9), epochs=1, rng=np.random.default_rng(1))
    assert all(np.array_equal(value, fresh.dump()[part]) for part, value in network.dump().items())
    assert not np.array_equal(network.dump()["extractor"], middle["extractor"])


def test_a_part_that_the_network_has_not():
    network = build_network("linear", (4,), 2, seed=0)
    before = network.dump()
    samples = Samples(torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 1]))
    assert (
        train(network, samples, Sgd(0.1, 2), epochs=3, rng=np.random.default_rng(0), parts=("extractor", "norm")).steps
        == 0
    )
    assert np.array_equal(network.dump()["classifier"], before["classifier"])


# --- clients with few samples ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (3, 32, [3]),
        (1, 32, [1]),
        (33, 32, [33]),
        (8, 4, [4, 4]),
        (3, 1, [1, 2]),
        (2, 1, [2]),
    ],
)
def test_a_lone_last_sample_joins_the_batch_before(n, size, expected):
    samples = Samples(torch.arange(n).float().view(n, 1), torch.arange(n))
    order = torch.randperm(n)
    made = batches(samples, size, order)
    assert [len(y) for _, y in made] == expected
    assert torch.equal(torch.cat([y for _, y in made]), order)
    assert all(torch.equal(x[:, 0].long(), y) for x, y in made)


@pytest.mark.parametrize("buffers", ["average", "drop"])
@pytest.mark.parametrize("n", [1, 2, 5, 33, 513])
def test_fewer_samples_than_a_batch_or_one_more(n, buffers, tmp_path):
    """A network whose BatchNorm sees one number per sample: torch refuses to normalise a batch of one."""
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\ndef build(shape, outputs):\n"
        "    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, outputs)\n"
    )
    network = build_network(str(path), (4,), 2, seed=0, buffers=buffers)
    before = network.dump()
    samples = Samples(torch.randn(n, 4), torch.arange(n) % 2)
    trained = train(network, samples, Sgd(0.1, 32), epochs=2, rng=np.random.default_rng(0))
    assert trained.steps == 2 * max(1, n // 32) and np.isfinite(trained.loss)
    assert not np.array_equal(network.dump()["classifier"], before["classifier"])
    assert all(np.isfinite(value).all() for value in network.dump().values())
    assert np.isfinite(evaluate(network, samples)["loss"])


def test_one_sample_takes_the_step_of_torch():
    """With running statistics as they are: a step in evaluation mode."""
    sample, ours, theirs = images(1), lenet(), lenet()
    train(ours, sample, Sgd(0.1, 32), epochs=1, rng=np.random.default_rng(0))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    functional.cross_entropy(theirs.eval()(sample.x), sample.y).backward()
    optimizer.step()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


@pytest.mark.parametrize(("n", "epochs"), [(0, 3), (5, 0)])
def test_nothing_to_do(n, epochs):
    network = lenet()
    before = network.dump()
    trained = train(network, images(n), Sgd(0.1, 32), epochs=epochs, rng=np.random.default_rng(0))
    assert (trained.loss, trained.steps) == (0.0, 0)
    assert all(np.array_equal(value, before[part]) for part, value in network.dump().items())


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "classes"), [(1, 10), (40, 10), (700, 10), (300, 3)])
def test_metrics_are_those_of_scikit_learn(n, classes):
    samples, network = images(n, classes=classes), lenet()
    train(network, images(100, seed=1), Sgd(0.1, 16), epochs=2, rng=np.random.default_rng(0))
    with torch.no_grad():
        probabilities = network.eval()(samples.x).double().softmax(1).numpy()
    y = samples.y.numpy()
    metrics = evaluate(network, samples)
    assert set(metrics) == {"loss", "accuracy", "balanced-accuracy"}
    assert metrics["accuracy"] == pytest.approx(sk.accuracy_score(y, probabilities.argmax(1)))
    assert metrics["loss"] == pytest.approx(sk.log_loss(y, probabilities, labels=range(10)), rel=1e-5)
    recalls = sk.recall_score(y, probabilities.argmax(1), labels=np.unique(y), average=None, zero_division=0)
    assert metrics["balanced-accuracy"] == pytest.approx(recalls.mean())
    if set(probabilities.argmax(1)) <= set(y):
        assert metrics["balanced-accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, probabilities.argmax(1)))


def test_metrics_of_regression():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)).astype(np.float32), rng.normal(2, 3, size=80).astype(np.float32)
    network = build_network("linear", (5,), 1, seed=0)
    samples = Samples(torch.from_numpy(x), torch.from_numpy(y))
    with torch.no_grad():
        predicted = network(samples.x)[:, 0].numpy()
    metrics = evaluate(network, samples)
    assert metrics == pytest.approx(
        {"loss": sk.mean_squared_error(y, predicted), "r2": sk.r2_score(y, predicted)}, rel=1e-4
    )
    constant = Samples(samples.x, torch.full((80,), 3.0))
    assert evaluate(network, constant)["r2"] == 0.0


def test_regression_finds_the_least_squares_solution():
    rng = np.random.default_rng(0)
    x, slope = rng.normal(size=(200, 3)).astype(np.float32), np.array([1.0, -2.0, 0.5], dtype=np.float32)
    samples = Samples(torch.from_numpy(x), torch.from_numpy(x @ slope + 4))
    network = build_network("linear", (3,), 1, seed=0)
    train(network, samples, Sgd(0.1, 50), epochs=60, rng=rng)
    assert network.dump()["classifier"] == pytest.approx([*slope, 4], abs=1e-3)
    assert evaluate(network, samples)["r2"] == pytest.approx(1, abs=1e-4)


def test_evaluation_changes_nothing():
    network = lenet()
    before = network.dump()
    one, two = evaluate(network, images(600)), evaluate(network, images(600))
    assert one == two and all(np.array_equal(value, before[part]) for part, value in network.dump().items())
