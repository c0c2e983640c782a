"""A long-tailed data set, made from one that is not: the counts of labels fall geometrically (ShapleyFL, appendix B.3)."""

import numpy as np

from coterie.tasks.samples import DataError


def long_tail(labels: np.ndarray, imbalance: float, rng: np.random.Generator) -> np.ndarray:
    """The samples that stay, ascending: n / imbalance^(k / (K - 1)) of the k-th of K labels, in random order, with the
    largest n for which there are enough of each."""
    if labels.dtype.kind == "f":
        raise DataError("long-tail goes by labels, and a regression task has none; leave it at 1.")
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in rng.permutation(np.unique(labels))]
    shares = imbalance ** -(np.arange(len(members)) / max(len(members) - 1, 1))
    most = min(len(own) / share for own, share in zip(members, shares, strict=True))
    counts = np.rint(most * shares).astype(int)
    if not counts.all():
        raise DataError(f"long-tail = {imbalance:g}: the rarest label would have no sample; lower it.")
    return np.sort(np.concatenate([own[:count] for own, count in zip(members, counts, strict=True)]))
