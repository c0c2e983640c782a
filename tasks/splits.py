"""Each client's own train, validation and test samples, drawn once by seed and stratified by label."""

from dataclasses import dataclass

import numpy as np

from coterie.tasks.samples import DataError


@dataclass(frozen=True)
class Split:
    """Sample indices, ascending, disjoint; together all of the client's samples."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split(
    indices: np.ndarray, labels: np.ndarray, *, test_fraction: float, validation_fraction: float, seed: int
) -> Split:
    """Divide a client's samples. `labels` are those of the whole data set.

    `test_fraction` of the samples are for testing; `validation_fraction` of the others for validation. A fraction above
    0 gives at least one sample as long as one is left for training, and testing comes first: a single sample is for
    training, the second for testing. Every label keeps a sample in training if the numbers allow it.
    """
    for name, fraction in (("test-fraction", test_fraction), ("validation-fraction", validation_fraction)):
        if not 0 <= fraction < 1:
            raise DataError(f"{name} is {fraction}; it must be at least 0 and below 1, for example 0.2.")
    if len(indices) == 0:
        raise DataError("a client has no samples; take fewer clients, or another partition.")
    rng = np.random.default_rng(seed)
    rest, test = _draw(np.asarray(indices), labels, test_fraction, rng)
    train, validation = _draw(rest, labels, validation_fraction, rng)
    return Split(train, validation, test)


def _draw(
    indices: np.ndarray, labels: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The samples that stay and the `fraction` that is drawn."""
    wanted = round(len(indices) * fraction)
    count = min(max(wanted, 1 if fraction > 0 else 0), len(indices) - 1)
    order = stratified_order(indices, labels, rng)
    return np.sort(order[count:]), np.sort(order[:count])


def stratified_order(indices: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random order in which every beginning has the labels in proportion, and one of each label comes at the end.

    The r-th of a label's n samples gets the place (r + 1/2) / n; ties stay in random order.
    """
    shuffled = rng.permutation(indices)
    own = labels[shuffled]
    if own.dtype.kind == "f":  # regression targets: all are one label
        return shuffled
    places = np.empty(len(own))
    for label in np.unique(own):
        members = np.flatnonzero(own == label)
        places[members] = (np.arange(len(members)) + 0.5) / len(members)
        places[members[-1]] += 1
    return shuffled[np.argsort(places, kind="stable")]
