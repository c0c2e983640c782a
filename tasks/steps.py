"""Steps of training that are more than one step along a gradient. They end with a step of SGD, momentum and all. Two
of them go along

    Per-FedAvg (Fallah et al. 2020)    grad f(w - alpha grad f(w; first batch); second batch)
    pFedMe (T Dinh et al. 2020)        lambda (w - theta),  theta = argmin f(theta) + lambda/2 |theta - w|^2

The first is MAML without its second derivatives. The second is the gradient of f's Moreau envelope; theta is found by a few
steps from w of

    d <- (d - a grad f(w + d)) / (1 + a lambda),    d = theta - w

which is gradient descent with the pull taken implicitly: it has the same fixed point, and no lambda is too large for it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.tasks.training import Batch, FlatSgd, Sgd, Step, sample_loss


class Adapted(Step):
    """Along the gradient that the model has after a step of length `alpha`."""

    batches = 2

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def take(self, sgd: FlatSgd, batches: Sequence[Batch]) -> Tensor:
        start = [weight.clone() for weight in sgd.weights]
        sgd.slope(batches[0])
        for weight, gradient in zip(sgd.weights, sgd.gradients, strict=True):
            weight.add_(gradient, alpha=-self.alpha)
        loss = sgd.slope(batches[1])
        for weight, before in zip(sgd.weights, start, strict=True):
            weight.copy_(before)
        sgd.step()
        return loss


class Moreau(Step):
    """Along lambda (w - theta), lambda being `pull`; theta by `steps` steps of length `rate`."""

    def __init__(self, pull: float, steps: int, rate: float) -> None:
        self.pull, self.steps, self.rate = pull, steps, rate
        self.theta: dict[str, Tensor] = {}  # of the last batch

    def take(self, sgd: FlatSgd, batches: Sequence[Batch]) -> Tensor:
        start = [weight.clone() for weight in sgd.weights]
        away = [torch.zeros_like(weight) for weight in start]
        for _ in range(self.steps):
            loss = sgd.slope(batches[0])
            for weight, before, d, gradient in zip(sgd.weights, start, away, sgd.gradients, strict=True):
                d.add_(gradient, alpha=-self.rate).div_(1 + self.rate * self.pull)
                torch.add(before, d, out=weight)
        self.theta = {part: weight.clone() for part, weight in zip(sgd.parts, sgd.weights, strict=True)}
        for weight, before, d, gradient in zip(sgd.weights, start, away, sgd.gradients, strict=True):
            weight.copy_(before)
            torch.mul(d, -self.pull, out=gradient)
        sgd.step()
        return loss

    def personal(self) -> dict[str, np.ndarray]:
        return {part: theta.cpu().numpy() for part, theta in self.theta.items()}


class Held(Step):
    """Along the gradient of f(w) + pull/2 |w - to|^2 - <tilt, w>; FedAMP's without a tilt, FedDyn's with one."""

    def __init__(self, to: Mapping[str, Tensor], pull: float, tilt: Mapping[str, Tensor] | None = None) -> None:
        self.to, self.pull, self.tilt = to, pull, tilt

    def take(self, sgd: FlatSgd, batches: Sequence[Batch]) -> Tensor:
        loss = sgd.slope(batches[0])
        for part, weight, gradient in zip(sgd.parts, sgd.weights, sgd.gradients, strict=True):
            gradient.add_(weight - self.to[part], alpha=self.pull)
            if self.tilt is not None:
                gradient.sub_(self.tilt[part])
        sgd.step()
        return loss


class TwoHeads(Step):
    """FedRoD: the network along the gradient of its loss with `prior` (classes,) added to its outputs; then a second classifier,
    `head`, of which the outputs are added to the network's, on the same features."""

    def __init__(self, head: Tensor, prior: Tensor, settings: Sgd) -> None:
        self.head, self.prior = head.clone().requires_grad_(), prior
        self.sgd = torch.optim.SGD([self.head], settings.learning_rate, settings.momentum, 0, settings.weight_decay)

    def take(self, sgd: FlatSgd, batches: Sequence[Batch]) -> Tensor:
        (x, y), network = batches[0], sgd.network
        for gradient in sgd.gradients:
            gradient.zero_()
        features = network.extractor(x)
        outputs = network.classifier(features)
        loss = sample_loss(outputs + self.prior, y, weights=sgd.class_weights)
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        classes, size = network.classifier.weight.shape
        weight, bias = self.head[: classes * size].view(classes, size), self.head[classes * size :]
        both = outputs.detach() + features.detach() @ weight.T + bias
        self.sgd.zero_grad()
        sample_loss(both, y, weights=sgd.class_weights).backward()  # type: ignore[no-untyped-call]
        self.sgd.step()
        return loss.detach()
