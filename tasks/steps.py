"""Steps of training that are more than one step along a gradient. Both end with a step of SGD, momentum and all, along

    Per-FedAvg (Fallah et al. 2020)    grad f(w - alpha grad f(w; first batch); second batch)
    pFedMe (T Dinh et al. 2020)        lambda (w - theta),  theta = argmin f(theta) + lambda/2 |theta - w|^2

The first is MAML without its second derivatives. The second is the gradient of f's Moreau envelope; theta is found by a few
steps from w of

    d <- (d - a grad f(w + d)) / (1 + a lambda),    d = theta - w

which is gradient descent with the pull taken implicitly: it has the same fixed point, and no lambda is too large for it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.tasks.training import Batch, FlatSgd, Step


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
