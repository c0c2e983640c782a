"""FedFomo's step on the client: move towards the models of others that do better on the own validation data.

w_j = max(0, L(theta_i) - L(theta_j)) / |theta_j - theta_i|,  normalised;   theta_i <- theta_i + sum_j w_j (theta_j - theta_i)
"""

import numpy as np
from coterie.tasks.models import STATISTICS, Network
from coterie.tasks.training import Samples, evaluate
from coterie.wire.arrays import Parts
from coterie.wire.checks import checked_parts, part_places
from flwr.app import ArrayRecord


def mix(network: Network, others: ArrayRecord, validation: Samples) -> np.ndarray:
    """Change `network` (theta_i) in place; the weights of the others, by position. Without validation data nothing moves."""
    own = network.dump()
    count = next((place.array.shape[0] for place in part_places(others).values() if len(place.array.shape) == 2), 0)
    rows = checked_parts(others, network.like(rows=count))
    if not len(validation):
        return np.zeros(count)
    own_loss = evaluate(network, validation)["loss"]
    gains = np.zeros(count)
    for j in range(count):
        other = {part: rows[part][j] for part in rows}
        network.load(other)
        distance = _distance(own, other)
        gains[j] = max(0.0, own_loss - evaluate(network, validation)["loss"]) / distance if distance > 0 else 0.0
    weights = gains / gains.sum() if gains.sum() > 0 else np.zeros(count)
    network.load(_moved(own, rows, weights))
    return weights


def _distance(one: Parts, other: Parts) -> float:
    squares = [np.sum((one[part] - other[part]) ** 2, dtype=np.float64) for part in one if part not in STATISTICS]
    return float(np.sqrt(sum(squares)))


def _moved(own: Parts, rows: Parts, weights: np.ndarray) -> Parts:
    """(1 - sum w) own + sum w_j row_j: a convex mixture, so running variances stay variances."""
    moved: Parts = {}
    for part, value in own.items():
        mixed = max(0.0, 1 - weights.sum()) * value + weights @ rows[part].astype(np.float64)
        moved[part] = (np.rint(mixed) if np.issubdtype(value.dtype, np.integer) else mixed).astype(value.dtype)
    return moved
