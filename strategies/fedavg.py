"""FedAvg (McMahan et al. 2017, arXiv:1602.05629): the server averages the clients' models, weighted by their samples.

    theta <- sum_i n_i / n  theta_i

Methods that share only some parts of the model, or train in other phases, differ from it in a few words.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from coterie.strategies.base import Method
from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update
from coterie.wire.messages import EvaluateOrder, TrainOrder, content
from flwr.app import RecordDict


class FedAvg(Method):
    name = "fedavg"
    personal: ClassVar[tuple[str, ...]] = ()  # parts that stay with their client

    def kept(self) -> tuple[str, ...]:
        stay = self.personal + (STATISTICS if self.config.buffers == "local" else ())
        return tuple(part for part in self.layout.parts if part in stay)

    def uploads(self) -> tuple[str, ...]:
        return tuple(part for part in self.layout.parts if part not in self.kept())

    def phases(self) -> list[tuple[tuple[str, ...], int]]:
        """What is trained for how many epochs, one after the other."""
        return [(WEIGHTS, self.config.local_epochs)]

    def proximal_mu(self) -> float:
        return 0.0

    def fine_tune_epochs(self) -> int:
        return 0

    def train_content(self, client: str, server_round: int) -> RecordDict:
        return content(self.train_order(server_round), self.packed(self.uploads()))

    def train_order(self, server_round: int) -> TrainOrder:
        phases = self.phases()
        return TrainOrder(
            round=server_round,
            phase_parts=tuple("+".join(parts) for parts, _ in phases),
            phase_epochs=tuple(epochs for _, epochs in phases),
            upload=self.uploads(),
            keep=self.kept(),
            proximal_mu=self.proximal_mu(),
        )

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        weights = sample_weights(updates.values())
        self.model = self.model | average([update.parts for update in updates.values()], weights)
        return {"weights": dict(zip(updates, weights.tolist(), strict=True))}

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        order = EvaluateOrder(server_round, self.kinds, self.fine_tune_epochs())
        return content(order, self.packed(self.uploads()))


def sample_weights(updates: Iterable[Update]) -> np.ndarray:
    """Proportional to the samples; equal if no client has any."""
    counts = np.array([update.num_samples for update in updates], dtype=np.float64)
    return counts / counts.sum() if counts.sum() > 0 else np.full(len(counts), 1 / len(counts))


def average(models: Sequence[Parts], weights: np.ndarray) -> Parts:
    """The weighted mean of every part, in float64. Weights are normalised first, so that running variances stay variances
    and counters stay counts, whatever they sum to; counters are rounded back to integers."""
    weights = weights / weights.sum()
    result: Parts = {}
    for name, first in models[0].items():
        total = np.zeros(first.shape, dtype=np.float64)
        for weight, model in zip(weights, models, strict=True):
            total += weight * model[name]
        result[name] = (np.rint(total) if np.issubdtype(first.dtype, np.integer) else total).astype(first.dtype)
    return result
