"""The games that a pFedSV client plays: what is each model worth to me?

    gain     players are the models of others: v(X) = loss of the own model - loss of the uniform average of it and X
    paper    players are all models: v(X) = accuracy of the uniform average of the models in X,   v({}) = 0

Both on the own validation samples. A `metric` of the run takes the place of loss and accuracy (tasks/judging.py). For targets
that are numbers the loss is the squared error, and R squared takes the place of accuracy. Where the models differ in the linear
classifier only, the outputs of an average are the average of the outputs: one pass through the shared extractor gives every
coalition at once. Else each coalition is averaged and tested once, exactly as long as that takes no more tests than the paper's
sampling.

Models may be in memory or in files (tasks/tensors.py). They are read piece by piece, and averages and the mixture are made inside
the network: there is no model in memory but its own.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from coterie.games.coalitions import coalition_averages, coalition_scores
from coterie.games.shapley import estimate, shapley_from_table
from coterie.tasks.judging import by_loss, metric_error, validation_error
from coterie.tasks.models import Network, as_tensor
from coterie.tasks.parts import weighted_sum
from coterie.tasks.tensors import Vector, pieces
from coterie.tasks.training import Samples, evaluate, features, outputs

Model = Mapping[str, Vector]
WORST = 1e6  # the loss of a model whose outputs are not finite: an attacker's must not end the game


def loss_of(network: Network, samples: Samples) -> float:
    loss = validation_error(network, samples)
    return min(loss, WORST) if np.isfinite(loss) else WORST


def gains(
    network: Network, models: Sequence[Model], samples: Samples, own_loss: float, rng: np.random.Generator
) -> np.ndarray:
    """The Shapley values of all models but the first, the own one, in the game of gain; `network` is changed."""
    others = len(models) - 1
    if set(models[0]) == {"classifier"}:
        answers = _answers(network, models, samples)
        losses = np.minimum(_loss_table(answers, samples)[1::2], WORST)  # the coalitions with the own model
        return _exact(losses[0] - losses)

    def gain(coalition: frozenset[int]) -> float:
        _average(network, [models[0], *(models[1 + i] for i in sorted(coalition))])
        return own_loss - loss_of(network, samples)

    if others < 2:
        return np.array([gain(frozenset([i])) for i in range(others)])
    budget = 3 * len(models) ** 2
    return estimate(gain, others, method="auto", budget=budget, known={frozenset(): 0.0}, rng=rng).values


def coalition_values(
    network: Network, models: Sequence[Model], samples: Samples, rng: np.random.Generator
) -> np.ndarray:
    """The Shapley value of every model in the paper's game; parts that models do not have are those of `network`, which
    is changed."""
    if set(models[0]) == {"classifier"}:
        return _exact(_score_table(_answers(network, models, samples), samples))
    if len(models) == 1:
        return np.array([_score_of_average(network, models, samples)])
    number = len(models)
    return estimate(
        lambda coalition: _score_of_average(network, [models[i] for i in sorted(coalition)], samples),
        number,
        method="auto",
        budget=3 * number**2,  # 3n orders of n models
        known={frozenset(): 0.0},
        rng=rng,
    ).values


def _score_of_average(network: Network, models: Sequence[Model], samples: Samples) -> float:
    _average(network, models)
    if not by_loss(samples):
        return 1 - loss_of(network, samples)
    if samples.regression:
        return evaluate(network, samples)["r2"]
    return float((outputs(network, samples.x).argmax(dim=1) == samples.y).double().mean())


def _average(network: Network, models: Sequence[Model]) -> None:
    with torch.no_grad():
        for part, target in network.parts.items():
            if part in models[0] and target.is_floating_point():  # counters do not matter here
                for piece in pieces(target.numel()):
                    mean = target[piece]
                    mean.copy_(as_tensor(models[0][part][piece]))
                    for model in models[1:]:
                        mean.add_(as_tensor(model[part][piece]).to(target.device))
                    mean.div_(len(models))


def _answers(network: Network, models: Sequence[Model], samples: Samples) -> np.ndarray:
    """The outputs of every classifier behind the network's extractor, (models, samples, outputs)."""
    outs, size = network.classifier.weight.shape
    seen = features(network, samples.x).cpu().numpy()  # (samples, size)
    rows = np.stack([model["classifier"][...] for model in models])
    weights, biases = rows[:, : outs * size].reshape(-1, outs, size), rows[:, outs * size :]
    answers = np.einsum("sf,mof->mso", seen, weights, optimize=True)
    if biases.size:
        answers += biases[:, None, :]
    finite: np.ndarray = np.nan_to_num(answers)
    return finite


def _loss_table(answers: np.ndarray, samples: Samples) -> np.ndarray:
    truth = samples.y.cpu().numpy()
    if not by_loss(samples):
        return _error_table(answers, samples)
    if samples.regression:
        table: np.ndarray = ((coalition_averages(answers[:, :, 0]) - truth) ** 2).mean(axis=1)
        return table
    return coalition_scores(answers, truth).loss


def _error_table(answers: np.ndarray, samples: Samples) -> np.ndarray:
    """By the run's metric."""
    means = [torch.from_numpy(mean) for mean in coalition_averages(answers)]
    return np.array([metric_error(mean, samples) for mean in means], np.float64)


def _score_table(answers: np.ndarray, samples: Samples) -> np.ndarray:
    truth = samples.y.cpu().numpy()
    if not by_loss(samples):
        return np.append(0.0, 1 - _error_table(answers, samples)[1:])
    if samples.regression:
        return _r2_table(coalition_averages(answers[:, :, 0]), truth)
    return coalition_scores(answers, truth).accuracy


def _exact(table: np.ndarray) -> np.ndarray:
    return shapley_from_table(table) if len(table) > 2 else table[1:]


def _r2_table(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """R squared of every coalition's prediction, (coalitions, samples); 0 for the empty one and where targets do not vary."""
    spread = truth.astype(np.float64).var()
    if spread == 0:
        return np.zeros(len(predicted))
    table: np.ndarray = 1 - ((predicted - truth) ** 2).mean(axis=1) / spread
    table[0] = 0.0
    return table


def mix(network: Network, models: Sequence[Model], weights: np.ndarray) -> None:
    """Make the network the weighted mean of the models."""
    for part, first in models[0].items():
        for piece in pieces(first.size):
            mean = weighted_sum([model[part][piece] for model in models], weights)
            network.parts[part][piece] = torch.from_numpy(mean)
