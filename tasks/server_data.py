"""The server's own validation data, kept away from all clients.

`server-data` is a number or a share of the task's published test samples (of all samples, where there is no published
test set), drawn by the seed with labels in proportion; or the path of a file of the server's own (tasks/own.py).
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.tasks.datasets import load_dataset
from coterie.tasks.samples import DataError, Dataset
from coterie.tasks.spec import TaskSpec
from coterie.tasks.splits import stratified_order


def is_amount(text: str) -> bool:
    """Whether `server-data` takes samples out of the task's data, and does not name a file."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def held_out(dataset: Dataset, server_data: str, seed: int) -> np.ndarray:
    """Indices of the samples that the server takes, ascending; none if it brings its own or has none."""
    if not is_amount(server_data):
        return np.empty(0, dtype=np.int64)
    candidates = (
        np.arange(len(dataset) - dataset.num_test, len(dataset)) if dataset.num_test else np.arange(len(dataset))
    )
    number = float(server_data) if math.isfinite(float(server_data)) else 0.0
    count = int(number) if number >= 1 else round(number * len(candidates))
    most = len(candidates) if dataset.num_test else len(candidates) - 1
    if not 1 <= count <= most or (number >= 1 and number != count):
        raise DataError(
            f"server-data = {server_data!r}: must be a number of samples from 1 to {most}, or a share below 1, of "
            f"{'the published test set' if dataset.num_test else 'all samples'} of {dataset.source}."
        )
    order = stratified_order(candidates, dataset.y, np.random.default_rng(seed))
    return np.sort(order[:count])


def without(dataset: Dataset, taken: np.ndarray) -> tuple[Dataset, np.ndarray]:
    """What is left to deal to clients: labels and owners without the samples `taken`, and where each was before.

    Partitions go by labels and owners, so `x` is only as long as it must be, and not copied.
    """
    rest = np.setdiff1d(np.arange(len(dataset)), taken)
    owner = None if dataset.owner is None else dataset.owner[rest]
    return replace(dataset, x=dataset.x[: len(rest)], y=dataset.y[rest], owner=owner, num_test=0), rest


def load_server_data(
    spec: TaskSpec, server_data: str, data_root: str, *, data: str, classes: str, input_shape: str, seed: int
) -> Dataset:
    """The validation samples alone, normalised as the clients' are."""
    if is_amount(server_data):
        dataset = load_dataset(spec.name, data_root, data=data, classes=classes, input_shape=input_shape)
        taken = held_out(dataset, server_data, seed)
        owner = None if dataset.owner is None else dataset.owner[taken]
        return replace(dataset, x=dataset.x[taken], y=dataset.y[taken], owner=owner, num_test=0)
    if not Path(server_data).expanduser().exists():
        raise DataError(
            f"server-data = {server_data!r}: there is no such file; give a path, or a number of the task's samples."
        )
    kinds = "regression" if spec.kind == "regression" else classes or str(spec.num_outputs)
    shape = ",".join(str(size) for size in spec.input_shape)
    own = load_dataset("own", data_root, data=server_data, classes=kinds, input_shape=shape)
    if spec.name == "own":
        return own
    task = load_dataset(spec.name, data_root)
    return replace(own, mean=task.mean, std=task.std)
