"""A hypernetwork: preferences d on the simplex over clients go in, the weights of a model come out (Navon et al. 2021).

    h = MLP(sqrt(N) d)        theta(d) = theta_0 + s (shift + head_l(h) for every tensor l of the model)

theta_0 is the run's initial model, s the root mean square of its weights, so that a step of the optimiser means the same
for every model; heads start at 0. A tensor of up to `chunk` numbers has a linear head of its own. A larger one is made in
chunks, by one head for all of them, from relu(h + e_c) with a learned vector e_c for each chunk: a head of (hidden x chunk)
numbers instead of (hidden x size).

Learning. Somebody else knows the gradient G(d) of the loss that theta(d) should make small. `follow` moves the hypernetwork
so that theta(d) comes close to theta(d) - eta G(d) for all the given d at once: a few steps of Adam on the squared
distance. The first is the back-propagation of eta G; more steps get more out of gradients that were expensive to come by.
"""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from coterie.tasks.models import WEIGHTS, Network

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
Rows = dict[str, np.ndarray]  # part -> (models, size)


class Diverged(ArithmeticError):
    """The hypernetwork's numbers are not finite any more; it is as it was before."""


class Hypernetwork(nn.Module):
    def __init__(
        self, network: Network, clients: int, *, hidden: int = 100, layers: int = 2, chunk: int = 16384, seed: int = 0
    ) -> None:
        """For models like `network`, whose weights are theta_0."""
        super().__init__()
        self.clients = clients
        self.taken = 0  # steps of Adam
        self.sizes = {
            part: [tensor.numel() for tensor in network.parameters_of(part)]
            for part in WEIGHTS
            if part in network.parts
        }
        start = torch.cat([network.parts[part].detach() for part in self.sizes])
        self.scale = float(start.square().mean().sqrt()) or 1.0
        self.start = start.clone()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = [clients] + [hidden] * layers
            self.trunk = nn.Sequential(
                *[m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
            )
            sizes = [size for part in self.sizes.values() for size in part]
            self.heads = nn.ModuleList([Head(hidden, size, chunk) for size in sizes])
        self.shift = nn.Parameter(torch.zeros_like(start))
        self.to(start.device)
        self._flatten()

    def forward(self, preferences: Tensor) -> Tensor:
        """(models, clients) -> (models, numbers)."""
        h = self.trunk(preferences * math.sqrt(self.clients))
        made = torch.cat([head(h) for head in self.heads], dim=1)
        theta: Tensor = self.start + self.scale * (self.shift + made)
        return theta

    @torch.no_grad()
    def models(self, preferences: np.ndarray) -> Rows:
        """The models for these preferences, part by part."""
        return self.split(self(self._tensor(preferences)).cpu().numpy())

    def slopes(self, preferences: np.ndarray, gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        """d loss / d preferences, (models, clients), from the losses' gradients at these models."""
        d = self._tensor(preferences).requires_grad_()
        (slope,) = torch.autograd.grad(self(d), d, self._tensor(self.join(gradients)))
        return np.asarray(slope.cpu().numpy(), np.float64)

    def follow(
        self,
        preferences: np.ndarray,
        gradients: Mapping[str, np.ndarray],
        *,
        step: float,
        rate: float,
        steps: int,
        weights: np.ndarray | None = None,
    ) -> float:
        """Learn from the gradients at the models for `preferences`; the share of the way that is left, 0 to about 1.

        `weights` (models,) say how much each counts. If numbers become infinite, nothing is changed and `Diverged` is raised.
        """
        d = self._tensor(preferences)
        count = self._tensor(np.ones(len(d)) if weights is None else weights)[:, None] / len(d)
        with torch.no_grad():
            way = self._tensor(self.join(gradients)) * -step
            target = self(d) + way
        before = (self.flat.clone(), self.mean.clone(), self.square.clone(), self.taken)
        for i in range(steps):
            self.gradient.zero_()
            loss = 0.5 * (count * (self(d) - target).square()).sum() / self.scale**2
            loss.backward()
            self._adam(rate * (1 - i / steps))
        with torch.no_grad():
            left = float((count * (self(d) - target).square()).sum())
        if not math.isfinite(left) or not bool(self.flat.isfinite().all()):
            for vector, old in zip((self.flat, self.mean, self.square), before[:3], strict=True):
                vector.copy_(old)
            self.taken = before[3]
            raise Diverged("the hypernetwork's numbers are not finite")
        whole = float((count * way.square()).sum())
        return left / whole if whole else 0.0

    def state(self) -> np.ndarray:
        """(3, numbers): the parameters, and Adam's two moments."""
        return torch.stack([self.flat, self.mean, self.square]).detach().cpu().numpy()

    def load(self, state: np.ndarray, taken: int) -> None:
        """The state of a hypernetwork of the same shape, after `taken` steps."""
        if state.shape != (3, self.flat.numel()):
            raise ValueError(
                f"a hypernetwork's state of shape {state.shape} does not fit one of {(3, self.flat.numel())}"
            )
        with torch.no_grad():
            for vector, row in zip((self.flat, self.mean, self.square), state, strict=True):
                vector.copy_(torch.from_numpy(row))
        self.taken = taken

    def split(self, numbers: np.ndarray) -> Rows:
        """(models, numbers) -> its parts."""
        ends = np.cumsum([sum(sizes) for sizes in self.sizes.values()])[:-1]
        return dict(zip(self.sizes, np.split(numbers, ends, axis=1), strict=True))

    def join(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts[part] for part in self.sizes], axis=1)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(self.shift.device)

    def _flatten(self) -> None:
        """All parameters and their gradients become views into one vector each: a step of Adam is a few operations."""
        parameters = list(self.parameters())
        self.flat = torch.cat([p.detach().flatten() for p in parameters])
        self.gradient, self.mean, self.square = (torch.zeros_like(self.flat) for _ in range(3))
        place = 0
        for p in parameters:
            where = slice(place, place + p.numel())
            p.data, p.grad = self.flat[where].view(p.shape), self.gradient[where].view(p.shape)
            place += p.numel()

    @torch.no_grad()
    def _adam(self, rate: float) -> None:
        self.taken += 1
        self.mean.lerp_(self.gradient, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(self.gradient, self.gradient, value=1 - BETA2)
        width = (self.square / (1 - BETA2**self.taken)).sqrt_().add_(EPSILON)
        self.flat.addcdiv_(self.mean, width, value=-rate / (1 - BETA1**self.taken))


class Head(nn.Module):
    """One tensor of `size` numbers from (models, hidden)."""

    def __init__(self, hidden: int, size: int, chunk: int) -> None:
        super().__init__()
        self.size = size
        chunks = -(-size // chunk)
        self.places = nn.Parameter(torch.randn(chunks, hidden)) if chunks > 1 else None
        self.out = nn.Linear(hidden, min(size, chunk))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, h: Tensor) -> Tensor:
        if self.places is not None:
            h = torch.relu(h[:, None] + self.places)  # (models, chunks, hidden)
        made: Tensor = self.out(h)
        return made.flatten(1)[:, : self.size]
