"""Images of classes that a task does not have, for clients whose labels mean nothing (open-set noise)."""

import numpy as np
import torch
from torch import Tensor

from coterie.tasks.datasets import load_dataset
from coterie.tasks.samples import DataError, Dataset
from coterie.tasks.training import normalised

USUAL = {  # task -> a set of the same shape, with other classes
    "mnist": "fashion-mnist",
    "fashion-mnist": "mnist",
    "emnist": "fashion-mnist",
    "cifar10": "cifar100",
    "cifar100": "cifar10",
}


def foreign_set(task: str, chosen: str, data_root: str) -> Dataset | None:
    """The data set that foreign images of a task come from; None: there is none."""
    name = USUAL.get(task, "none") if chosen == "auto" else chosen
    if name == "none":
        return None
    if name == task:
        raise DataError(f"attack.foreign = {name!r}: is the task itself; choose one with other classes.")
    try:
        found = load_dataset(name, data_root)
    except DataError as error:
        raise DataError(
            f"attack.foreign: {error} Or choose another data set, for example attack.foreign=fashion-mnist."
        ) from None
    if found.x.ndim != 4:
        raise DataError(f"attack.foreign = {name!r}: has no images; choose one that has.")
    return found


def foreign_images(of: Dataset, like: Dataset, number: int, rng: np.random.Generator, device: str) -> Tensor:
    """So many images, in the shape of a task's and normalised as these are."""
    if like.x.ndim != 4:
        raise DataError("attack.foreign: this task has no images; leave it out.")
    images = torch.from_numpy(of.x[rng.integers(len(of), size=number)]).to(torch.float32)
    channels, *size = like.x.shape[1:]
    if images.shape[1] != channels:
        images = images.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
    if list(images.shape[2:]) != size:
        images = torch.nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)
    scaled = images.numpy() * (largest(like) / largest(of))
    return normalised(np.ascontiguousarray(scaled, dtype=np.float32), like.mean, like.std, device)


def largest(dataset: Dataset) -> float:
    """The brightest that a pixel can be, by what there is: 16 in scikit-learn's digits, 255 in most sets."""
    return float(dataset.x.max())
