"""A client's own images: what it tells of its pixels before the run, and how it scales them by all clients' statistics.

query.describe   what are your pixels like?     -> count, sum and sum of squares of each channel, of the images to train with
query.hello      with mean and deviation of all -> the client keeps them for the run
"""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coterie.client.store import Note, Store
from coterie.client.tables import ANY_ROUND
from coterie.tasks.own import parse_shape
from coterie.tasks.samples import DataError
from coterie.wire.config import RunConfig

if TYPE_CHECKING:
    from coterie.client.data import ClientData

TOPIC = "pixels"
UNTOLD = 127.5  # mean and std of bytes whose owner told none


class Pixels(BaseModel):
    """Sums over a client's pixels, in units of 255."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    count: int = Field(ge=0, le=10**15)
    sums: list[float] = Field(min_length=1, max_length=3)
    squares: list[float] = Field(min_length=1, max_length=3)


def has_images(config: RunConfig) -> bool:
    """Whether clients have images of their own in this run."""
    return config.task == "own" and len(parse_shape(config.input_shape)) == 3


def told_pixels(data: "ClientData") -> Pixels:
    if not _are_bytes(data):
        return Pixels(count=0, sums=[0.0] * data.dataset.x.shape[1], squares=[0.0] * data.dataset.x.shape[1])
    x = data.dataset.x[data.split.train]
    axes, count = (0, 2, 3), x.shape[0] * x.shape[2] * x.shape[3]
    sums, squares = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for image in x:  # one at a time: a float64 copy of all would be eight times as large
        pixels = image[None].astype(np.float64) / 255
        sums, squares = sums + pixels.sum(axes), squares + (pixels**2).sum(axes)
    return Pixels(count=count, sums=sums.tolist(), squares=squares.tolist())


def joined(told: list[Pixels]) -> str:
    """Mean and deviation of all pixels of each channel, as clients are told them; empty if nobody has bytes."""
    count = sum(pixels.count for pixels in told)
    if not count:
        return ""
    mean = np.sum([pixels.sums for pixels in told], axis=0) / count
    variance = np.sum([pixels.squares for pixels in told], axis=0) / count - mean**2
    std = np.sqrt(np.maximum(variance, 1e-6))
    return json.dumps({"mean": (255 * mean).tolist(), "std": (255 * std).tolist()})


def keep_pixels(me: Any, text: str) -> None:
    """For the rest of this run; refuses what is none."""
    constants(text, me.spec.input_shape[0])
    me.store.remember(TOPIC, Note(1, {}, {TOPIC: text}))


def constants(text: str, channels: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        told = json.loads(text)
        mean, std = (np.array(told[name], np.float32).reshape(channels) for name in ("mean", "std"))
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
            raise ValueError("numbers that cannot be")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the mean and deviation of pixels that the server sent cannot be used ({error}).") from None
    return mean, std


def scaled(data: "ClientData", config: RunConfig, store: Store) -> "ClientData":
    """With the statistics of all clients, or with its own; images whose owner told mean and std keep these."""
    if not _are_bytes(data):
        return data
    if config.scaling == "site":
        text = joined([told_pixels(data)])
    elif found := store.find(TOPIC, ANY_ROUND):
        text = found.facts[TOPIC]
    else:
        return data
    mean, std = constants(text, data.dataset.x.shape[1])
    return replace(data, dataset=replace(data.dataset, mean=mean, std=std))


def _are_bytes(data: "ClientData") -> bool:
    """Images of bytes whose owner told no mean and std; all others are as they are."""
    dataset = data.dataset
    return dataset.x.dtype == np.uint8 and bool(np.all(dataset.mean == UNTOLD) and np.all(dataset.std == UNTOLD))
