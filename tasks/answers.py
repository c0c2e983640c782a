"""What a model answers: for the samples of every class, how often each label."""

from dataclasses import dataclass

import numpy as np

from tasks.models import Network
from tasks.training import Samples, outputs


@dataclass(frozen=True)
class Answers:
    """On the classes that have samples; their labels only."""

    rates: np.ndarray  # (classes, labels) share of the samples of a class that get a label
    counts: np.ndarray  # (classes,) samples


def answers(network: Network, samples: Samples) -> Answers:
    """The answers of `network` on samples with labels."""
    y = samples.y.cpu().numpy()
    given = outputs(network, samples.x).argmax(dim=1).cpu().numpy()
    classes, counts = np.unique(y, return_counts=True)
    return Answers(np.array([[(given[y == c] == k).mean() for k in classes] for c in classes]), counts)
