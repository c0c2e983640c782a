"""FedAvg (McMahan et al. 2017, arXiv:1602.05629): the server averages the clients' models, weighted by their samples.

    theta <- sum_i n_i / n  theta_i

Methods that share only some parts of the model, train otherwise or average otherwise differ from it in a few words. What its
clients do is in client/training.py and client/testing.py: every client can do that.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from coterie.strategies.method import Method
from coterie.strategies.rounds import Round, by_name
from coterie.tasks.models import STATISTICS
from coterie.tasks.parts import average
from coterie.wire.arrays import pack
from coterie.wire.checks import Update
from coterie.wire.messages import EvaluateOrder, Order, Sent, TrainOrder


class FedAvg(Method):
    name = "fedavg"
    private: ClassVar[tuple[str, ...]] = ("dp-sgd", "weights")
    personal: ClassVar[tuple[str, ...]] = ()  # parts that stay with their client

    def round(self, round: Round) -> None:
        updates = round.train(lambda clients: self.with_shared_parts(self.train_order(round.number), clients))
        self.aggregate(round, updates)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        weights = sample_weights(updates.values())
        self.model = self.model | average([update.parts for update in updates.values()], weights)
        round.tell(weights=by_name(updates, weights))

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        return self.with_shared_parts(self.test_order(round.number), clients)

    def train_order(self, number: int) -> TrainOrder:
        return TrainOrder(number, upload=self.uploads(), keep=self.kept())

    def test_order(self, number: int) -> EvaluateOrder:
        return EvaluateOrder(number, self.kinds)

    def kept(self) -> tuple[str, ...]:
        stay = self.personal + (STATISTICS if self.config.buffers == "local" else ())
        return tuple(part for part in self.layout.parts if part in stay)

    def uploads(self) -> tuple[str, ...]:
        return tuple(part for part in self.layout.parts if part not in self.kept())

    def with_shared_parts(self, order: Order, clients: list[str]) -> list[Sent]:
        shared = pack({part: self.model[part] for part in self.uploads()})
        return [Sent(order, shared)] * len(clients)


def sample_weights(updates: Iterable[Update]) -> np.ndarray:
    """Proportional to the samples; equal if no client has any."""
    counts = np.array([update.num_samples for update in updates], dtype=np.float64)
    return counts / counts.sum() if counts.sum() > 0 else np.full(len(counts), 1 / len(counts))
