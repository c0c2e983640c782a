"""The game that a pFedSV client plays: what is each model worth to me?

    v(X) = accuracy on the own validation samples of the uniform average of the models in X,   v({}) = 0

For targets that are numbers, R squared takes the place of accuracy. Where the models differ in the linear classifier only, the
outputs of an average are the average of the outputs: one pass through the shared extractor gives every coalition at once.
Else each coalition is averaged and tested once, exactly as long as that takes no more tests than the paper's sampling.

Models may be in memory or in files (tasks/tensors.py). They are read piece by piece, and averages and the mixture are made inside
the network: there is no model in memory but its own.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from coterie.games.coalitions import coalition_averages, coalition_scores
from coterie.games.shapley import estimate, shapley_from_table
from coterie.tasks.models import STATISTICS, Network, as_tensor
from coterie.tasks.parts import weighted_sum
from coterie.tasks.tensors import Vector, pieces
from coterie.tasks.training import Samples, evaluate, features, outputs

Model = Mapping[str, Vector]


def coalition_values(
    network: Network, models: Sequence[Model], samples: Samples, rng: np.random.Generator
) -> np.ndarray:
    """The Shapley value of every model; parts that models do not have are those of `network`, which is changed."""
    if set(models[0]) == {"classifier"}:
        return _values_of_classifiers(network, models, samples)
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
    with torch.no_grad():
        for part, target in network.parts.items():
            if part in models[0] and target.is_floating_point():  # counters do not matter here
                for piece in pieces(target.numel()):
                    mean = target[piece]
                    mean.copy_(as_tensor(models[0][part][piece]))
                    for model in models[1:]:
                        mean.add_(as_tensor(model[part][piece]).to(target.device))
                    mean.div_(len(models))
    if samples.regression:
        return evaluate(network, samples)["r2"]
    return float((outputs(network, samples.x).argmax(dim=1) == samples.y).double().mean())


def _values_of_classifiers(network: Network, models: Sequence[Model], samples: Samples) -> np.ndarray:
    outs, size = network.classifier.weight.shape
    seen = features(network, samples.x).cpu().numpy()  # (samples, size)
    rows = np.stack([model["classifier"][...] for model in models])
    weights, biases = rows[:, : outs * size].reshape(-1, outs, size), rows[:, outs * size :]
    answers = np.einsum("sf,mof->mso", seen, weights, optimize=True)  # (models, samples, outputs)
    if biases.size:
        answers += biases[:, None, :]
    truth = samples.y.cpu().numpy()
    if samples.regression:
        table = _r2_table(coalition_averages(answers[:, :, 0]), truth)
    else:
        table = coalition_scores(answers, truth).accuracy
    return shapley_from_table(table) if len(models) > 1 else table[1:]


def _r2_table(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """R squared of every coalition's prediction, (coalitions, samples); 0 for the empty one and where targets do not vary."""
    spread = truth.astype(np.float64).var()
    if spread == 0:
        return np.zeros(len(predicted))
    table: np.ndarray = 1 - ((predicted - truth) ** 2).mean(axis=1) / spread
    table[0] = 0.0
    return table


def distance(one: Model, other: Model) -> float:
    """Euclidean, over the weights that both have."""
    squares = 0.0
    for part, vector in one.items():
        if part not in STATISTICS:
            for piece in pieces(vector.size):
                difference = vector[piece] - other[part][piece]
                squares += float(np.dot(difference, difference))
    return float(np.sqrt(squares))


def mix(network: Network, models: Sequence[Model], weights: np.ndarray) -> None:
    """Make the network the weighted mean of the models."""
    for part, first in models[0].items():
        for piece in pieces(first.size):
            mean = weighted_sum([model[part][piece] for model in models], weights)
            network.parts[part][piece] = torch.from_numpy(mean)
