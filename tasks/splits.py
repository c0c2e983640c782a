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
    indices: np.ndarray,
    labels: np.ndarray,
    *,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    fold: int = 0,
    folds: int = 0,
    every_label: bool = False,
) -> Split:
    """Divide a client's samples. `labels` are those of the whole data set.

    `test_fraction` of the samples are for testing; `validation_fraction` of the others for validation. A fraction above
    0 gives at least one sample as long as one is left for training, and testing comes first: a single sample is for
    training, the second for testing. Every label keeps a sample in training if the numbers allow it. With `every_label`
    each is also tested, if it has two samples, and validated, if it has three, where there is room for it.

    With `folds` the samples for testing are those of one `fold`, counted from 1: each is in exactly one of them, and labels
    are in all of them in proportion.
    """
    for name, fraction in (("test-fraction", test_fraction), ("validation-fraction", validation_fraction)):
        if not 0 <= fraction < 1:
            raise DataError(f"{name} is {fraction}; it must be at least 0 and below 1, for example 0.2.")
    if len(indices) == 0:
        raise DataError("a client has no samples; take fewer clients, or another partition.")
    rng = np.random.default_rng(seed)
    indices = np.asarray(indices)
    if folds:
        if len(indices) < folds:
            raise DataError(f"folds = {folds}: a client has {len(indices)} samples; take at most as many folds.")
        order = rng.permutation(indices)
        if labels.dtype.kind != "f":  # label after label, dealt in turn: every fold gets its share of each
            order = order[np.argsort(labels[order], kind="stable")]
        test = np.sort(order[fold - 1 :: folds])
        rest = np.setdiff1d(indices, test)
    else:
        rest, test = _draw(indices, labels, test_fraction, rng, every_label)
    train, validation = _draw(rest, labels, validation_fraction, rng, every_label)
    return Split(train, validation, test)


def _draw(
    indices: np.ndarray, labels: np.ndarray, fraction: float, rng: np.random.Generator, every_label: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The samples that stay and the `fraction` that is drawn."""
    wanted = round(len(indices) * fraction)
    count = min(max(wanted, 1 if fraction > 0 else 0), len(indices) - 1)
    order = stratified_order(indices, labels, rng)
    if every_label and labels.dtype.kind != "f":
        order = _with_every_label(order, labels, count)
    return np.sort(order[count:]), np.sort(order[:count])


def _with_every_label(order: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """The same order, but that a label with none of its samples among the first `count`, and two or more in all, changes
    places with a second one of the label that has most there."""
    order = order.copy()
    for label in np.unique(labels[order]):
        own = labels[order]
        places = np.flatnonzero(own == label)
        if len(places) < 2 or places[0] < count:
            continue
        first = own[:count]
        names, often = np.unique(first, return_counts=True)
        if len(often) and often.max() > 1:
            given = np.flatnonzero(first == names[often.argmax()])[-1]
            order[[given, places[0]]] = order[[places[0], given]]
    return order


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
