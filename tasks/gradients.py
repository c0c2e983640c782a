"""Losses of several models on the same samples, and their gradients.

The models are rows of one matrix per part. Networks of linear layers are evaluated all at once (torch.func.vmap), others
one after the other: side by side, convolutions with different weights are slower.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.tasks.models import WEIGHTS, Network
from coterie.tasks.training import Samples, evaluate, sample_loss

Rows = dict[str, np.ndarray]  # part -> (models, size)
SIMPLE = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity)
STATISTICS_SAMPLES = 512  # enough to measure what a normalisation layer sees


def training_gradients(
    network: Network, models: Rows, samples: Samples, *, steps: int, rate: float, most: int, rng: np.random.Generator
) -> tuple[Rows, np.ndarray]:
    """The gradient of each model's loss on at most `most` samples, and the losses, (models,).

    With more `steps` every model takes steps of gradient descent, each on other samples, and the sum of the gradients on
    its way is
    returned, with the mean of the losses.
    """
    here = {part: torch.from_numpy(np.array(rows)).to(samples.y.device) for part, rows in models.items()}
    total = {part: torch.zeros_like(rows) for part, rows in here.items()}
    losses = torch.zeros(len(next(iter(here.values()))))
    if len(samples):
        network.train()
        gradients_of = _all_at_once if is_simple(network) else _one_by_one
        for _ in range(steps):
            chosen = torch.from_numpy(rng.permutation(len(samples))[:most]).to(samples.y.device)
            found, loss = gradients_of(network, here, samples.x[chosen], samples.y[chosen])
            losses += loss.detach().cpu() / steps
            for part, gradient in found.items():
                total[part] += gradient
                here[part] -= rate * gradient
    return {part: value.cpu().numpy() for part, value in total.items()}, losses.double().numpy()


def validation_gradient(
    network: Network, models: Rows, validation: Samples, training: Samples
) -> tuple[Rows, np.ndarray]:
    """Every model's loss on the validation samples, and the gradient of the best one, one row per part."""
    count = len(next(iter(models.values())))
    losses = np.zeros(count)
    for k in range(count):
        network.load({part: rows[k] for part, rows in models.items()})
        measure_statistics(network, training)
        losses[k] = evaluate(network, validation)["loss"]
    best = int(np.argmin(losses)) if np.isfinite(losses).any() else 0
    row = {part: rows[best] for part, rows in models.items()}
    network.load(row)
    measure_statistics(network, training)
    network.eval()
    gradient, _ = _gradient(network, list(row), validation.x, validation.y)
    return {part: value[None].cpu().numpy() for part, value in gradient.items()}, losses


@torch.no_grad()
def measure_statistics(network: Network, samples: Samples) -> None:
    """Set the running statistics of normalisation layers to those of the samples."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers or len(samples) < 2:
        return
    usual = [layer.momentum for layer in layers]
    network.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean of all batches
        layer.train()
    network(samples.x[:STATISTICS_SAMPLES])
    for layer, momentum in zip(layers, usual, strict=True):
        layer.momentum = momentum


def is_simple(network: Network) -> bool:
    return all(isinstance(module, SIMPLE) for module in network.extractor.modules())


def _all_at_once(network: Network, models: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
    layout = {part: [(names[p], p.shape) for p in _parameters(network, part)] for part in models}

    def loss_of(rows: dict[str, Tensor]) -> Tensor:
        tensors: dict[str, Tensor] = {}
        for part, row in rows.items():
            pieces = torch.split(row, [shape.numel() for _, shape in layout[part]])
            tensors |= {name: piece.view(shape) for (name, shape), piece in zip(layout[part], pieces, strict=True)}
        return sample_loss(functional_call(network, tensors, (x,)), y)

    every: Callable[..., tuple[dict[str, Tensor], Tensor]] = vmap(grad_and_value(loss_of))
    return every(models)


def _one_by_one(network: Network, models: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    if len(y) == 1:  # BatchNorm cannot normalise one sample by itself
        network.eval()
    found: list[dict[str, Tensor]] = []
    losses: list[Tensor] = []
    for k in range(len(next(iter(models.values())))):
        with torch.no_grad():
            for part, rows in models.items():
                network.parts[part].copy_(rows[k])
        gradient, loss = _gradient(network, list(models), x, y)
        found.append(gradient)
        losses.append(loss)
    return {part: torch.stack([g[part] for g in found]) for part in models}, torch.stack(losses)


def _gradient(network: Network, parts: list[str], x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    parameters = {part: _parameters(network, part) for part in parts}
    every = [p for part in parameters.values() for p in part]
    for parameter in every:
        parameter.requires_grad_()
    loss = sample_loss(network(x), y)
    flat = iter(torch.autograd.grad(loss, every, materialize_grads=True))  # zeros for weights without an effect
    return {part: torch.cat([next(flat).flatten() for _ in own]) for part, own in parameters.items()}, loss.detach()


def _parameters(network: Network, part: str) -> list[Tensor]:
    assert part in WEIGHTS
    return network.parameters_of(part)
