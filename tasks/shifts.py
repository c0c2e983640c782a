"""Clients that differ in kind, made from data that do not: for experiments. Client i is of kind i mod `groups`.

rotate          images of kind k are turned by 90 k degrees
rotate-invert   kind k is turned by 90 (k // 2) degrees, and odd kinds have dark and bright exchanged about the mean
tilt            images of kind k are turned by 30 k degrees
permute-labels  each kind but the first has labels in an order of its own
swap-labels     each kind but the first has two pairs of labels exchanged
lone            client 0 alone is turned by 90 degrees
lones           clients 0, 1 and 2 are turned by 90, 180 and 270 degrees
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coterie.tasks.samples import DataError
from coterie.tasks.training import Samples

TILT_DEGREES = 30
ALONE = {"lone": 1, "lones": 3}  # clients that nobody is like


@dataclass(frozen=True)
class Shift:
    """What is done with the samples of one client."""

    name: str
    kind: int
    classes: int  # 0: regression
    seed: int

    def __call__(self, samples: Samples) -> Samples:
        if not self.kind or not len(samples):
            return samples
        if self.name in ON_LABELS:
            if not self.classes:
                raise DataError(f"shift = {self.name!r}: goes by labels, and a regression task has none.")
            rng = np.random.default_rng((self.seed, self.kind))
            order = torch.from_numpy(ON_LABELS[self.name](self.classes, rng)).to(samples.y.device)
            return Samples(samples.x, order[samples.y])
        if samples.x.ndim != 4 or samples.x.shape[2] != samples.x.shape[3]:
            raise DataError(f"shift = {self.name!r}: turns square images, and this task has none.")
        return Samples(ON_IMAGES[self.name](samples.x, self.kind), samples.y)


def kind_of(name: str, client: int, groups: int) -> int:
    if name in ALONE:
        return client + 1 if client < ALONE[name] else 0
    return client % groups if name != "none" else 0


def turned(x: Tensor, quarters: int) -> Tensor:
    return torch.rot90(x, quarters, (2, 3)).contiguous()


def turned_or_inverted(x: Tensor, kind: int) -> Tensor:
    return turned(-x if kind % 2 else x, kind // 2)


def tilted(x: Tensor, kind: int) -> Tensor:
    """By bilinear interpolation; what comes in from outside has the value of the corner."""
    angle = np.deg2rad(TILT_DEGREES * kind)
    matrix = torch.tensor([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0]], dtype=x.dtype)
    grid = functional.affine_grid(matrix.to(x.device).expand(len(x), 2, 3), list(x.shape), align_corners=False)
    corner = x[:, :, :1, :1]
    return functional.grid_sample(x - corner, grid, align_corners=False) + corner


def permuted(classes: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(classes)


def swapped(classes: int, rng: np.random.Generator) -> np.ndarray:
    order = np.arange(classes)
    chosen = rng.permutation(classes)[: min(4, classes // 2 * 2)].reshape(-1, 2)
    for one, other in chosen:
        order[[one, other]] = order[[other, one]]
    return order


ON_IMAGES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "rotate": turned,
    "rotate-invert": turned_or_inverted,
    "tilt": tilted,
    "lone": turned,
    "lones": turned,
}
ON_LABELS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "permute-labels": permuted,
    "swap-labels": swapped,
}
