"""By which metric models are chosen: the run's, on a client's validation samples or the server's.

Methods that know only losses ask for errors instead: 1 - metric, or the metric where lower is better. They are None where the
loss is what counts: with `metric` auto or loss, and where all samples have one label, for which most metrics are not defined.
"""

import numpy as np
import torch
from torch import Tensor

from coterie.tasks.metrics import LOWER_IS_BETTER, Answers, pseudo_values
from coterie.tasks.models import Network
from coterie.tasks.training import Samples, outputs, sample_loss

WORST = 1e6  # the error of a model whose outputs are not finite


def answers_of(predicted: Tensor, samples: Samples) -> Answers:
    return Answers.of(predicted.cpu().numpy(), samples.y.cpu().numpy(), samples.threshold)


def by_loss(samples: Samples) -> bool:
    return samples.metric in ("auto", "loss") or len(torch.unique(samples.y)) < 2


def metric_error(predicted: Tensor, samples: Samples) -> float | None:
    """Of all samples together."""
    if by_loss(samples):
        return None
    if not torch.isfinite(predicted).all():
        return WORST
    return _error(answers_of(predicted, samples).value(samples.metric), samples.metric)


def metric_errors(predicted: Tensor, samples: Samples) -> np.ndarray | None:
    """What each sample says (tasks/metrics.py); their mean is the error of all."""
    if by_loss(samples):
        return None
    if not torch.isfinite(predicted).all():
        return np.full(len(samples), WORST)
    answers = answers_of(predicted, samples)
    found = pseudo_values(answers, samples.metric)
    found = np.where(np.isfinite(found), found, answers.value(samples.metric))
    return found if samples.metric in LOWER_IS_BETTER else 1 - found


def validation_error(network: Network, samples: Samples) -> float:
    """What a model is chosen by: the lower, the better."""
    predicted = outputs(network, samples.x)
    error = metric_error(predicted, samples)
    return float(sample_loss(predicted, samples.y)) if error is None else error


def _error(value: float, metric: str) -> float:
    if not np.isfinite(value):
        return WORST
    return value if metric in LOWER_IS_BETTER else 1 - value
