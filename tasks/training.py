"""Local training and evaluation on tensors that are already on the device: no data loader, no worker processes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.tasks.metrics import Answers
from coterie.tasks.models import NORMALISATION, WEIGHTS, Network
from coterie.tasks.samples import Dataset
from coterie.wire.arrays import Parts

EVALUATION_BATCH = 512
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Samples:
    """Inputs (n, ...) float32 and targets (n,), int64 labels or float32 values, on one device; and the run's `metric`, by which
    models are judged on them."""

    x: Tensor
    y: Tensor
    metric: str = "auto"
    threshold: float = 0.5

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
    class_weights: tuple[float, ...] = ()  # of the loss; () weighs all alike
    augment: tuple[str, ...] = ()  # see `augmented`


@dataclass(frozen=True)
class Trained:
    loss: float  # mean over all samples seen, 0.0 without a step
    steps: int


def sample_loss(outputs: Tensor, y: Tensor, reduction: str = "mean", weights: Tensor | None = None) -> Tensor:
    """`weights` of the classes; the mean is then that of weighted samples."""
    if y.is_floating_point():
        return functional.mse_loss(outputs.squeeze(1), y, reduction=reduction)
    return functional.cross_entropy(outputs, y, reduction=reduction, weight=weights)


def balanced_weights(counts: np.ndarray) -> tuple[float, ...]:
    """n / (k n_c) for the k classes that are there, as scikit-learn's `balanced`; 1 for the others."""
    there = counts > 0
    weights = counts.sum() / np.maximum(there.sum() * counts, 1)
    return tuple(float(weight) for weight in np.where(there, weights, 1.0))


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
        self.class_weights: Tensor | None = None
        if settings.class_weights:
            self.class_weights = torch.tensor(settings.class_weights, device=network.classifier.weight.device)
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
        loss = sample_loss(self.network(x), y, weights=self.class_weights)
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
        seen_now = augmented(samples, settings.augment, rng) if settings.augment else samples
        for taken in _taken(batches(seen_now, settings.batch_size, order), step.batches):
            count = len(taken[-1][1])
            total += step.take(sgd, taken) * count
            seen, steps = seen + count, steps + 1
    for parameter in network.parameters():
        parameter.grad = None
    return Trained(loss=float(total) / seen, steps=steps)


def kinds_of(augment: str) -> tuple[str, ...]:
    """The words of the setting `augment`."""
    return tuple(word.strip() for word in augment.split(",") if word.strip())


def augmented(samples: Samples, kinds: Sequence[str], rng: np.random.Generator) -> Samples:
    """Images of one epoch: `flip`, half of them from left to right; `crop`, moved by up to an eighth in both directions,
    with the mean, which is 0, where nothing was."""
    x = samples.x
    n, _, height, width = x.shape
    if "flip" in kinds:
        turned = torch.from_numpy(rng.random(n) < 0.5).to(x.device)
        x = torch.where(turned[:, None, None, None], x.flip(3), x)
    if "crop" in kinds:
        room = max(1, min(height, width) // 8)
        padded = functional.pad(x, [room] * 4)
        down, right = (torch.from_numpy(rng.integers(0, 2 * room + 1, n)).to(x.device) for _ in range(2))
        rows = (down[:, None] + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (right[:, None] + torch.arange(width, device=x.device))[:, None, None, :]
        which = torch.arange(n, device=x.device)[:, None, None, None]
        x = padded[which, torch.arange(x.shape[1], device=x.device)[None, :, None, None], rows, columns]
    return Samples(x, samples.y)


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
    """Loss and, for labels, accuracy and balanced accuracy (mean recall over the labels present); for values, R squared. Also
    the metric of the samples, where it is another and is defined."""
    predicted = outputs(network, samples.x)
    y = samples.y
    loss = float(sample_loss(predicted, y))
    if samples.regression:
        spread = float(((y - y.mean()) ** 2).mean())
        found = {"loss": loss, "r2": 1.0 - loss / spread if spread > 0 else 0.0}
        return found | _chosen_metric(predicted, samples, found)
    hits = (predicted.argmax(dim=1) == y).to(torch.float64)
    present = torch.bincount(y)
    recalls = torch.bincount(y, weights=hits)[present > 0] / present[present > 0]
    found = {"loss": loss, "accuracy": float(hits.mean()), "balanced-accuracy": float(recalls.mean())}
    return found | _chosen_metric(predicted, samples, found)


def _chosen_metric(predicted: Tensor, samples: Samples, known: Collection[str]) -> dict[str, float]:
    if samples.metric == "auto" or samples.metric in known or not torch.isfinite(predicted).all():
        return {}
    answers = Answers.of(predicted.cpu().numpy(), samples.y.cpu().numpy(), samples.threshold)
    value = answers.value(samples.metric)
    return {samples.metric: value} if np.isfinite(value) else {}
