"""How much of which model: weights on the simplex for which the mixed model has the least validation loss, if that is clear.

Models are mixed by their parameters, so that the mixture is a model like any other. For a linear network with squared error
that is the same as mixing outputs, and the quadratic problem of games/mixing.py has the exact answer. For other networks its
answer is one starting point among others, the models themselves; from the best of them, straight lines towards each model are
searched. So the best mixture is never worse on the validation samples than any of the models, the own one among them.

Few samples say little. Without them a client would take the models of its coalitions, which it joined for good reasons, in equal
parts. It takes the best mixture instead only where that is better by more than the standard error of the difference. (Ties to
the own model cost five points where all clients are alike.)
"""

from collections.abc import Sequence

import numpy as np
import torch

from coterie.games.mixing import mixing_weights_from_outputs
from coterie.tasks.judging import metric_errors, validation_error
from coterie.tasks.models import Network
from coterie.tasks.parts import weighted_sum
from coterie.tasks.training import Samples, outputs, sample_loss
from coterie.wire.arrays import Parts

WORST = 1e30  # in place of a loss that is not finite: such a model is of no use to anybody
STEPS = (0.1, 0.25, 0.5, 0.75, 0.9)
PASSES = 2


def clearly_positive(differences: np.ndarray) -> bool:
    """Whether their mean is above zero by more than its standard error."""
    if len(differences) < 2:
        return False
    return bool(differences.mean() > differences.std(ddof=1) / np.sqrt(len(differences)))


def chosen_mixture(network: Network, models: Sequence[Parts], samples: Samples) -> np.ndarray:
    """The weights of the own model, which comes first, and those of the coalitions; `network` is changed."""
    number = len(models)
    if number == 1:
        return np.ones(1)
    together = np.append(0.0, np.full(number - 1, 1 / (number - 1)))
    if len(samples) < 2:
        return together
    best = best_mixture(network, models, samples)
    network.load(mixed(models, together))
    before = sample_losses(network, samples)
    network.load(mixed(models, best))
    return best if clearly_positive(before - sample_losses(network, samples)) else together


def sample_losses(network: Network, samples: Samples) -> np.ndarray:
    """The loss on each sample, or its error by the run's metric; one that is not finite is a very large one."""
    predicted = outputs(network, samples.x)
    if (errors := metric_errors(predicted, samples)) is not None:
        return errors
    losses = sample_loss(predicted, samples.y, "none").double().cpu().numpy()
    return np.asarray(np.nan_to_num(np.minimum(losses, WORST), nan=WORST))


def best_mixture(network: Network, models: Sequence[Parts], samples: Samples) -> np.ndarray:
    """The weights of the models; `network` is changed."""
    number = len(models)
    corners = np.eye(number)
    if number == 1:
        return np.ones(1)

    def loss(weights: np.ndarray) -> float:
        network.load(mixed(models, weights))
        value = validation_error(network, samples)
        return value if np.isfinite(value) else np.inf

    tried = [(loss(start), start) for start in [*corners, *_by_outputs(network, models, samples)]]
    least, best = min(tried, key=lambda pair: pair[0])
    for _ in range(PASSES):
        before = least
        for corner in corners:
            for step in STEPS:
                weights = (1 - step) * best + step * corner
                if (value := loss(weights)) < least:
                    least, best = value, weights
        if least == before:
            break
    weights = np.maximum(best, 0.0)
    return np.asarray(weights / weights.sum())


def mixed(models: Sequence[Parts], weights: np.ndarray) -> Parts:
    """The model with these shares of all of them, on the simplex: running variances stay variances."""
    return {part: weighted_sum([model[part] for model in models], weights) for part in models[0]}


def _by_outputs(network: Network, models: Sequence[Parts], samples: Samples) -> list[np.ndarray]:
    """The weights for which mixed outputs have the least squared error; none where outputs are not finite."""
    answers = []
    for model in models:
        network.load(model)
        answer = outputs(network, samples.x)
        answers.append((answer.squeeze(1) if samples.regression else answer.softmax(dim=1)).double().cpu().numpy())
    predicted = np.stack(answers)
    if not np.isfinite(predicted).all():
        return []
    if samples.regression:
        return [mixing_weights_from_outputs(predicted, samples.y.cpu().numpy())]
    labels = torch.nn.functional.one_hot(samples.y, predicted.shape[2]).cpu().numpy()
    return [mixing_weights_from_outputs(predicted, labels)]
