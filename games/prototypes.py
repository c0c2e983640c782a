"""Which clients are of one kind, from their labels' mean features; and what a client's own mixture of labels changes.

A client tells, for each label c, its number of samples n_c and their mean feature mu_c, and per feature the sum of squares
within its labels. With s_d^2 the variance within labels (the median over clients, so that one cannot forge it):

    D_c(A, B)  = mean_d (mu_Ac - mu_Bc)^2 / s_d^2                how far two means of label c are apart
    v_c(A, B)  = 1 / n_Ac + 1 / n_Bc                             how far chance alone would set them
    Delta^2    = median over clients of the mean of D - v over pairs of a client's own labels, weighted by 1 / v
    T(A, B)    = mean over shared labels of min(8, D_c / (v_c + 0.02 Delta^2))

T is about 1 for clients of one kind, whatever their mixtures of labels. The pair with the least T is merged, sums and counts
added, while T < 3. Pairs without a shared label are merged last, if others see both alike. Noise that was added to sums for
privacy counts as chance, too. Nobody counts for more than four times the median number of samples: who claims a great number
of them cannot draw groups together.

If p(x | c) is the same for a client and its group, the posterior differs by the priors alone: log pi_i - log pi_group is added
to the classifier's biases, with pi_c = (n_c + 1/2) / (n + C/2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 3  # samples of a label that is told
SMALLEST_VARIANCE = 1e-8  # of the largest: features below it say nothing
TOLERANCE = 0.02  # of the distance between labels: mild differences of style do not count
MOST = 4.0  # medians of samples that one client may count for
CAP = 8.0  # one label, however far apart, does not decide alone


@dataclass(frozen=True)
class Prototypes:
    """What one client tells; labels that it does not tell have count 0."""

    counts: np.ndarray  # (labels,)
    means: np.ndarray  # (labels, features)
    squares: np.ndarray  # (features,): summed within labels
    noise: float = 0.0  # variance of what was added to each sum

    def known(self) -> np.ndarray:
        """(labels,): of which labels there is enough to compare."""
        return np.asarray(self.counts >= max(FEWEST, 2 * np.sqrt(self.noise)))


def prototypes_of(features: np.ndarray, labels: np.ndarray, classes: int) -> Prototypes:
    """Of (samples, features) and their labels; labels with fewer than three samples are left out."""
    counts = np.bincount(labels, minlength=classes).astype(float)
    counts[counts < FEWEST] = 0
    means = np.zeros((classes, features.shape[1]))
    squares = np.zeros(features.shape[1])
    for label in np.flatnonzero(counts):
        own = features[labels == label].astype(float)
        means[label] = own.mean(axis=0)
        squares += np.square(own - means[label]).sum(axis=0)
    return Prototypes(counts, means, squares)


def most_samples(numbers: np.ndarray) -> float:
    """What one of several may count for, by their numbers of samples."""
    return MOST * float(np.median(numbers[numbers > 0])) if (numbers > 0).any() else 0.0


def bounded(clients: Sequence[Prototypes]) -> list[Prototypes]:
    """As if nobody had more samples than that; their mixtures of labels, means and variances stay."""
    totals = np.array([one.counts.sum() for one in clients])
    shares = np.minimum(1.0, most_samples(totals) / np.maximum(totals, 1e-9))
    return [
        one if share == 1 else Prototypes(one.counts * share, one.means, one.squares * share, one.noise * share**2)
        for one, share in zip(clients, shares, strict=True)
    ]


class Kinds:
    """Clients or groups of them, standardised, so that they can be compared and merged."""

    def __init__(self, clients: Sequence[Prototypes]) -> None:
        clients = bounded(clients)
        known = np.stack([one.known() for one in clients])
        self.counts = np.where(known, np.stack([one.counts for one in clients]), 0.0)  # (clients, labels)
        variance = _within(clients, known)
        used = variance > SMALLEST_VARIANCE * variance.max(initial=0.0)
        scale = np.sqrt(variance[used])
        means = np.stack([one.means[:, used] / scale for one in clients])  # (clients, labels, features)
        self.sums = means * self.counts[:, :, None]
        self.noise = np.array([one.noise for one in clients]) * float(
            np.mean(1 / variance[used]) if used.any() else 0.0
        )
        self.tolerance = TOLERANCE * self._between()

    def _between(self) -> float:
        """Delta^2"""
        found = []
        for counts, sums, noise in zip(self.counts, self.sums, self.noise, strict=True):
            own = np.flatnonzero(counts)
            if len(own) < 2 or not sums.shape[1]:
                continue
            means = sums[own] / counts[own, None]
            chance = _chance(counts[own], noise)
            i, j = np.triu_indices(len(own), 1)
            apart, expected = np.square(means[i] - means[j]).mean(axis=1), chance[i] + chance[j]
            found.append(np.average(apart - expected, weights=1 / expected))
        return max(0.0, float(np.median(found))) if found else 0.0

    def distances(self, row: int) -> np.ndarray:
        """T of one with all, (groups,); nan where no label is shared."""
        shared = (self.counts > 0) & (self.counts[row] > 0)  # (groups, labels)
        if not self.sums.shape[2]:
            return np.where(shared.any(axis=1), 1.0, np.nan)
        safe = np.maximum(self.counts, 1e-9)
        means = self.sums / safe[:, :, None]
        apart = np.square(means - means[row]).mean(axis=2)
        chance = _chance(safe, self.noise[:, None])
        ratio = np.minimum(CAP, apart / (chance + chance[row] + self.tolerance))
        number = shared.sum(axis=1)
        total = np.where(shared, ratio, 0.0).sum(axis=1)
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    def all_distances(self) -> np.ndarray:
        return np.stack([self.distances(row) for row in range(len(self.counts))])

    def merged(self, groups: Sequence[Sequence[int]]) -> "Kinds":
        """These groups of clients in place of them."""
        new = object.__new__(Kinds)
        new.counts = np.stack([self.counts[list(group)].sum(axis=0) for group in groups])
        new.sums = np.stack([self.sums[list(group)].sum(axis=0) for group in groups])
        new.noise = np.array([self.noise[list(group)].sum() for group in groups])
        new.tolerance = self.tolerance
        return new


def _within(clients: Sequence[Prototypes], known: np.ndarray) -> np.ndarray:
    """s^2: the median over clients of the variance within their labels."""
    variances = [
        np.maximum(one.squares, 0.0) / (one.counts[own].sum() - own.sum())
        for one, own in zip(clients, known, strict=True)
        if one.counts[own].sum() > own.sum()
    ]
    return np.median(variances, axis=0) if variances else np.zeros(clients[0].squares.shape)


def _chance(counts: np.ndarray, noise: np.ndarray | float) -> np.ndarray:
    """The expected square of a standardised mean's error."""
    return np.asarray(1 / counts + noise / counts**2)


def group_by_kind(clients: Sequence[Prototypes], threshold: float = 3.0) -> list[list[int]]:
    """Groups of clients, each in order, the largest first."""
    kinds = Kinds(clients)
    groups = [[i] for i in range(len(clients))]
    table = kinds.all_distances()
    while len(groups) > 1:
        np.fill_diagonal(table, np.inf)
        pairs = np.where(np.isnan(table), np.inf, table)
        if pairs.min() >= threshold:
            pairs = _by_others(table)
            if pairs.min() >= threshold:
                break
        one, other = sorted(divmod(int(pairs.argmin()), len(pairs)))
        groups[one] = sorted(groups[one] + groups[other])
        del groups[other]
        kinds = kinds.merged([[i] if i != one else [one, other] for i in range(len(table)) if i != other])
        table = np.delete(np.delete(table, other, 0), other, 1)
        table[one] = table[:, one] = kinds.distances(one)
    return sorted(groups, key=lambda group: (-len(group), group))


def _by_others(table: np.ndarray) -> np.ndarray:
    """What T would be where no label is shared: 1, and how differently those see both who share labels with both."""
    pairs = np.full(table.shape, np.inf)
    for one, other in np.argwhere(np.isnan(np.triu(table, 1))):
        apart = np.abs(table[one] - table[other])
        apart = apart[np.isfinite(apart)]
        pairs[one, other] = 1 + (apart.mean() if len(apart) else 0.0)
    return pairs


def to_groups(kinds: Kinds, row: int, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """T of a client with each group, itself left out, (groups,); nan where no label is shared."""
    others = [[i for i in group if i != row] for group in groups]
    table = kinds.merged([[row], *others]).distances(0)[1:]
    return np.asarray(table)


def prior(counts: np.ndarray) -> np.ndarray:
    """pi, (labels,)"""
    return np.asarray((counts + 0.5) / (counts.sum() + len(counts) / 2))


def prior_shift(own: np.ndarray, group: np.ndarray) -> np.ndarray:
    """What is added to the classifier's biases, (labels,), from both numbers of samples by label."""
    return np.asarray(np.log(prior(own)) - np.log(prior(group)))
