"""Fast evaluation of coalition models gives what a plain loop gives."""

import itertools

import numpy as np
import pytest
import torch

from coterie.tasks.coalition_models import LARGEST_LOSS, CoalitionModels, chain_of
from coterie.tasks.models import WEIGHTS, build_network
from coterie.tasks.training import Samples, evaluate

SHAPES = {
    "lenet5": (1, 8, 8),
    "cnn": (3, 12, 12),
    "cnn-bn": (3, 13, 12),
    "mlp": (7,),
    "linear": (7,),
    "resnet18": (3, 8, 8),
}


def some_models(model: str, count: int, buffers: str = "average"):
    """A network, and models that differ in all that can differ: negative scales, other statistics."""
    network = build_network(model, SHAPES[model], 4, seed=1, buffers=buffers)
    rng = np.random.default_rng(2)
    base = network.dump()
    spread = {
        "extractor": 0.02 if model in ("resnet18", "cnn") else 0.2,
        "classifier": 0.2,
        "norm": 0.3 if model == "resnet18" else 1.0,
    }
    models = [base]
    for _ in range(count):
        other = {part: value.copy() for part, value in base.items()}
        for part in set(WEIGHTS) & set(other):
            other[part] += rng.normal(0, spread[part], other[part].shape).astype(np.float32)
        if "buffers" in other:
            other["buffers"] = np.abs(other["buffers"] + rng.normal(0, 0.3, other["buffers"].shape)).astype(np.float32)
        models.append(other)
    samples = Samples(
        torch.from_numpy(rng.standard_normal((61, *SHAPES[model])).astype(np.float32)), torch.arange(61) % 4
    )
    return network, models, samples


def mixtures_of(count: int, step: float = 1.0) -> np.ndarray:
    rows = [[1.0] + [0.0] * count]
    for size in range(1, count + 1):
        for members in itertools.combinations(range(count), size):
            rows.append([1 - step] + [step / size if i in members else 0.0 for i in range(count)])
    return np.array(rows)


def by_hand(network, models, mixture, samples, metric: str) -> float:
    """One mixture: average, load, evaluate."""
    joined = mixture[1:].sum() != 0
    parts = {}
    for part, first in models[0].items():
        c = mixture
        if part in ("buffers", "counters"):
            c = np.concatenate([[0.0], mixture[1:] / mixture[1:].sum()]) if joined else np.eye(len(models))[0]
        total = sum(weight * model[part].astype(np.float64) for weight, model in zip(c, models, strict=True))
        parts[part] = total.astype(first.dtype)
    network.load(parts)
    value = evaluate(network, samples)[metric]
    return -value if metric == "loss" else value


@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy", "loss"])
@pytest.mark.parametrize("model", SHAPES)
def test_as_a_plain_loop(model, metric):
    count = 2 if model == "resnet18" else 3
    network, models, samples = some_models(model, count)
    mixtures = mixtures_of(count, step=0.7)
    found = CoalitionModels(network, samples, metric, threads=2).utilities(models, mixtures)
    expected = [by_hand(network, models, mixture, samples, metric) for mixture in mixtures]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert len(set(np.round(expected, 6))) > 1


def test_which_networks_are_chains():
    for model in SHAPES:
        assert (chain_of(some_models(model, 0)[0]) is not None) == (model != "resnet18")
    network, models, samples = some_models("lenet5", 2, buffers="drop")
    assert chain_of(network) is None  # normalises by the batch
    found = CoalitionModels(network, samples, "loss").utilities(models, mixtures_of(2))
    np.testing.assert_allclose(found, [by_hand(network, models, m, samples, "loss") for m in mixtures_of(2)], rtol=1e-5)


def test_any_number_of_threads_to_the_bit(monkeypatch):
    monkeypatch.setattr("coterie.tasks.coalition_models.CHUNK", 1)  # many chunks
    network, models, samples = some_models("cnn-bn", 3)
    results = [CoalitionModels(network, samples, "loss", n).utilities(models, mixtures_of(3)) for n in (1, 2, 5)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_weights_in_several_blocks(monkeypatch):
    network, models, samples = some_models("cnn-bn", 4)
    once = CoalitionModels(network, samples, "loss").utilities(models, mixtures_of(4))
    monkeypatch.setattr("coterie.tasks.coalition_models.BLOCK_BYTES", 1)
    np.testing.assert_allclose(
        CoalitionModels(network, samples, "loss").utilities(models, mixtures_of(4)), once, rtol=1e-6
    )


@pytest.mark.parametrize("model", ["cnn-bn", "resnet18"])
def test_a_broken_model_is_worth_nothing_but_a_number(model):
    network, models, samples = some_models(model, 1)
    models[1]["extractor"][:] = 1e30
    assert CoalitionModels(network, samples, "accuracy").utilities(models, np.array([[0.0, 1.0]])) == [0.0]
    assert CoalitionModels(network, samples, "loss").utilities(models, np.array([[0.0, 1.0]])) == pytest.approx(
        -LARGEST_LOSS
    )


def test_a_broken_model_does_not_spoil_coalitions_without_it():
    network, models, samples = some_models("cnn-bn", 2)
    alone = np.array([[0.0, 0.0, 1.0]])
    expected = CoalitionModels(network, samples, "loss").utilities(models, alone)
    models[1]["extractor"][:] = 3e38
    both = np.array([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    assert CoalitionModels(network, samples, "loss").utilities(models, both)[2] == pytest.approx(expected[0])


def test_wrong_metric():
    network, _, samples = some_models("mlp", 0)
    with pytest.raises(ValueError, match="choose one of accuracy"):
        CoalitionModels(network, samples, "speed")
    with pytest.raises(ValueError, match="choose one of r2"):
        CoalitionModels(network, Samples(samples.x, torch.zeros(61)), "accuracy")
