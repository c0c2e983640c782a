"""Local training and evaluation on tensors that are already on the device: no data loader, no worker processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.tasks.models import NORMALISATION, WEIGHTS, Network
from coterie.tasks.samples import Dataset
from coterie.wire.arrays import Parts

EVALUATION_BATCH = 512
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Samples:
    """Inputs (n, ...) float32 and targets (n,), int64 labels or float32 values, on one device."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def regression(self) -> bool:
        return self.y.is_floating_point()


def chosen_samples(dataset: Dataset, indices: np.ndarray | slice, device: str) -> Samples:
    """The chosen samples of a data set, normalised, on the device."""
    x = normalised(dataset.x[indices], dataset.mean, dataset.std, device)
    return Samples(x, torch.from_numpy(dataset.y[indices]).to(device))


def normalised(x: np.ndarray, mean: np.ndarray, std: np.ndarray, device: str) -> Tensor:
    """(x - mean) / std with one number per channel or feature, as a network's input on the device."""
    inputs = torch.from_numpy(x).to(device=device, dtype=torch.float32, copy=True)
    shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
    centre, scale = (torch.from_numpy(np.asarray(v, np.float32)).to(device).view(shape) for v in (mean, std))
    return inputs.sub_(centre).div_(scale)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent as torch.optim.SGD does it, with FedProx's pull mu (w - w0) towards the starting point,
    or towards another one."""

    learning_rate: float
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0


@dataclass(frozen=True)
class Trained:
    loss: float  # mean over all samples seen, 0.0 without a step
    steps: int


def sample_loss(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    if y.is_floating_point():
        return functional.mse_loss(outputs.squeeze(1), y, reduction=reduction)
    return functional.cross_entropy(outputs, y, reduction=reduction)


def batches(samples: Samples, batch_size: int, order: Tensor) -> list[Batch]:
    """Batches in the given order. A lone last sample joins the batch before it: BatchNorm cannot normalise one sample."""
    ends = _ends(len(order), batch_size)
    x, y = samples.x[order], samples.y[order]
    return list(zip(x.tensor_split(ends), y.tensor_split(ends), strict=True))


def _ends(n: int, batch_size: int) -> list[int]:
    """Where batches end and the next begins; no batch of one but the only one (or with `batch_size` 1)."""
    ends = list(range(batch_size, n, batch_size))
    return ends[:-1] if ends and n - ends[-1] == 1 else ends


class FlatSgd:
    """SGD on the flat vectors of the trained parts: a step is a few vector operations, whatever the number of layers."""

    def __init__(self, network: Network, parts: Sequence[str], settings: Sgd, origin: Parts | None = None) -> None:
        self.network = network
        self.parts = parts
        self.settings = settings
        self.weights = [network.parts[part] for part in parts]
        self.gradients = [torch.zeros_like(flat) for flat in self.weights]
        self.origin: list[Tensor] = []  # w0
        if settings.proximal_mu and origin:
            self.origin = [
                torch.tensor(origin[part], device=flat.device) for part, flat in zip(parts, self.weights, strict=True)
            ]
        elif settings.proximal_mu:
            self.origin = [flat.clone() for flat in self.weights]
        self.velocity: list[Tensor] = []
        for part, gradient in zip(parts, self.gradients, strict=True):
            start = 0
            for parameter in network.parameters_of(part):
                parameter.grad = gradient[start : start + parameter.numel()].view(parameter.shape)
                start += parameter.numel()

    def slope(self, batch: Batch) -> Tensor:
        """Make the gradients those of the loss on a batch; that loss."""
        for gradient in self.gradients:
            gradient.zero_()
        x, y = batch
        loss = sample_loss(self.network(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self) -> None:
        s = self.settings
        for i, (weight, gradient) in enumerate(zip(self.weights, self.gradients, strict=True)):
            if s.proximal_mu:
                gradient.add_(weight - self.origin[i], alpha=s.proximal_mu)
            if s.weight_decay:
                gradient.add_(weight, alpha=s.weight_decay)
            if s.momentum:
                if len(self.velocity) <= i:
                    self.velocity.append(gradient.clone())
                else:
                    self.velocity[i].mul_(s.momentum).add_(gradient)
                gradient = self.velocity[i]
            weight.add_(gradient, alpha=-s.learning_rate)


class Step:
    """What is done with a batch: here, one step along its gradient. Other steps are in tasks/steps.py."""

    batches = 1  # that it takes

    def take(self, sgd: FlatSgd, batches: Sequence[Batch]) -> Tensor:
        """Change the weights; the loss on the last of the batches."""
        loss = sgd.slope(batches[0])
        sgd.step()
        return loss

    def personal(self) -> dict[str, np.ndarray]:
        """The parts of a model that is found on the way and is the client's own; most steps find none."""
        return {}


PLAIN = Step()


def train(
    network: Network,
    samples: Samples,
    settings: Sgd,
    *,
    epochs: int,
    rng: np.random.Generator,
    parts: Sequence[str] = WEIGHTS,
    step: Step = PLAIN,
    origin: Parts | None = None,
) -> Trained:
    """`epochs` passes over `samples` that change only the named parts (and BatchNorm's running statistics). The pull of
    `settings` goes to the parts of `origin`, if that is given."""
    trained = [part for part in WEIGHTS if part in parts and part in network.parts]
    if not len(samples) or not epochs or not trained:
        return Trained(loss=0.0, steps=0)
    for part in WEIGHTS:
        for parameter in network.parameters_of(part):
            parameter.requires_grad_(part in trained)
    network.train()
    if len(samples) == 1:  # twice the same: the same mean and gradient, and BatchNorm can normalise it
        samples = Samples(torch.cat([samples.x, samples.x]), torch.cat([samples.y, samples.y]))
        for module in network.modules():
            if isinstance(module, NORMALISATION):
                module.eval()
    sgd = FlatSgd(network, trained, settings, origin)
    total, seen, steps = torch.zeros((), device=samples.y.device), 0, 0
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(samples))).to(samples.y.device)
        for taken in _taken(batches(samples, settings.batch_size, order), step.batches):
            count = len(taken[-1][1])
            total += step.take(sgd, taken) * count
            seen, steps = seen + count, steps + 1
    for parameter in network.parameters():
        parameter.grad = None
    return Trained(loss=float(total) / seen, steps=steps)


def _taken(every: list[Batch], number: int) -> list[list[Batch]]:
    """The batches of each step; those that the last one lacks are the first ones again."""
    return [[every[(i + k) % len(every)] for k in range(number)] for i in range(0, len(every), number)]


def outputs(network: Network, x: Tensor) -> Tensor:
    """The network's outputs in evaluation mode, (n, outputs)."""
    network.eval()
    return _in_chunks(network, x)


def features(network: Network, x: Tensor) -> Tensor:
    """What the extractor makes of the inputs, in evaluation mode, (n, features)."""
    network.eval()
    return _in_chunks(network.extractor, x)


@torch.inference_mode()
def _in_chunks(module: nn.Module, x: Tensor) -> Tensor:
    if len(x) == 1:  # BatchNorm without running statistics cannot normalise one sample, but can the same one twice
        doubled: Tensor = module(torch.cat([x, x]))
        return doubled[:1]
    return torch.cat([module(chunk) for chunk in x.tensor_split(_ends(len(x), EVALUATION_BATCH))])


def evaluate(network: Network, samples: Samples) -> dict[str, float]:
    """Loss and, for labels, accuracy and balanced accuracy (mean recall over the labels present); for values, R squared."""
    predicted = outputs(network, samples.x)
    y = samples.y
    loss = float(sample_loss(predicted, y))
    if samples.regression:
        spread = float(((y - y.mean()) ** 2).mean())
        return {"loss": loss, "r2": 1.0 - loss / spread if spread > 0 else 0.0}
    hits = (predicted.argmax(dim=1) == y).to(torch.float64)
    present = torch.bincount(y)
    recalls = torch.bincount(y, weights=hits)[present > 0] / present[present > 0]
    return {"loss": loss, "accuracy": float(hits.mean()), "balanced-accuracy": float(recalls.mean())}
