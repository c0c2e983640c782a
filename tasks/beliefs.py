"""What a model believes of every class: how likely it holds each label for the samples of each true class."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tasks.models import Network
from tasks.training import Samples, outputs

LARGEST = 100.0  # log-odds, either way; what a broken model has instead of infinity


@dataclass(frozen=True)
class Beliefs:
    """Of the classes with two samples or more; their labels only."""

    mean: np.ndarray  # (classes, labels) mean log-odds, log p / (1 - p)
    error: np.ndarray  # (classes, labels) its standard error
    calls: np.ndarray  # (labels,) how often a label is the model's answer, every class counting alike


def beliefs(network: Network, samples: Samples) -> Beliefs:
    """The beliefs of `network` on samples with labels."""
    y = samples.y.cpu().numpy()
    classes, counts = np.unique(y, return_counts=True)
    classes = classes[counts > 1]
    odds = log_odds(outputs(network, samples.x).double()).cpu().numpy()
    of = [odds[y == c] for c in classes]  # (samples, labels) of each class
    answers = np.array([[(own.argmax(axis=1) == k).mean() for k in classes] for own in of])
    return Beliefs(
        mean=np.array([own[:, classes].mean(axis=0) for own in of]),
        error=np.array([own[:, classes].std(axis=0, ddof=1) / np.sqrt(len(own)) for own in of]),
        calls=answers.mean(axis=0) if len(of) else np.zeros(0),
    )


def log_odds(outputs: Tensor) -> Tensor:
    """Of every label against all others, from a network's outputs (samples, labels); unlike log p / (1 - p), exact near p = 1."""
    others = (
        outputs.unsqueeze(1)
        .repeat(1, outputs.shape[1], 1)
        .diagonal_scatter(torch.full_like(outputs, -torch.inf), dim1=1, dim2=2)
    )  # (samples, labels, labels)
    return (outputs - others.logsumexp(dim=2)).nan_to_num(-LARGEST).clamp(-LARGEST, LARGEST)
