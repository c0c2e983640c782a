"""FedFomo (Zhang et al. 2021, arXiv:2012.08565): each client weighs the models of others by what they do for its own loss.

The server keeps every client's last model and sends each client M of them, without names. The client moves its own model
towards those that have a lower loss L on its validation data, trains, uploads, and tells the weights by position:

    w_j = max(0, L(theta_i) - L(theta_j)) / |theta_j - theta_i|,  normalised
    theta_i <- theta_i + sum_j w_j (theta_j - theta_i)

The server prefers, for each client, the models that helped it before, and explores with probability epsilon:

    P_ij <- P_ij + w_ij
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from coterie.client.participant import Participant
from coterie.client.training import train_from
from coterie.strategies.method import Method, MethodSettings, answers, setting
from coterie.strategies.rounds import Round
from coterie.tasks.judging import validation_error
from coterie.tasks.models import STATISTICS, Network
from coterie.tasks.parts import as_dtype, distance, stacked
from coterie.tasks.training import Samples
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update, checked_parts, part_places
from coterie.wire.messages import OTHERS, EvaluateOrder, Sent, TrainOrder
from coterie.wire.randomness import generator


@dataclass(frozen=True)
class FomoOrder(TrainOrder):
    """Move the own model towards better ones among those that came along, then train."""

    kind = "train.fomo"


class FedFomo(Method):
    name = "fedfomo"
    private = ("dp-sgd", "weights")
    kinds = ("personal",)
    saved = ("models", "preference")

    class Settings(MethodSettings):
        models: int = setting(5, "How many models of others a client receives in a round.", ge=1)
        epsilon: float = setting(
            0.3, "Probability of a random model in place of a preferred one, in round 1.", ge=0.0, le=1.0
        )
        epsilon_decay: float = setting(0.95, "Factor on epsilon after each round.", gt=0.0, le=1.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.models: dict[str, Parts] = {}  # the last model of every client
        self.preference: dict[str, dict[str, float]] = {}  # client -> other -> P

    def round(self, round: Round) -> None:
        chosen: dict[str, list[str]] = {}  # who stands behind the rows sent to a client

        def orders(clients: list[str]) -> Iterable[Sent]:
            order = FomoOrder(round.number, upload=self.uploads(), keep=tuple(self.layout.parts))
            for client in clients:
                chosen[client] = self.choose(client, round.number)
                rows = [self.models[other] for other in chosen[client]]
                yield Sent(order, others=stacked(rows) if rows else None)

        updates = round.train(orders)
        round.tell(weights=self.learn(chosen, updates))

    def uploads(self) -> tuple[str, ...]:
        stays = STATISTICS if self.config.buffers == "local" else ()
        return tuple(part for part in self.layout.parts if part not in stays)

    def learn(self, chosen: Mapping[str, list[str]], updates: Mapping[str, Update]) -> dict[str, dict[str, float]]:
        """Keep the models and what they were worth to others; the weights that can be."""
        weights: dict[str, dict[str, float]] = {}
        for name, update in updates.items():
            self.models[name] = update.parts
            told = update.vectors.get("weights", np.zeros(0))
            if len(told) == len(chosen[name]) and (told >= 0).all() and told.sum() <= 1 + 1e-6:
                weights[name] = dict(zip(chosen[name], told.tolist(), strict=True))
                known = self.preference.setdefault(name, {})
                for other, weight in weights[name].items():
                    known[other] = known.get(other, 0.0) + weight
        return weights

    def choose(self, client: str, server_round: int) -> list[str]:
        """M others whose models are here: the preferred ones, each replaced by a random one with probability epsilon."""
        candidates = [name for name in self.models if name != client]
        number = min(self.settings.models, len(candidates))
        rng = generator(self.config.seed, "fomo", server_round, client)
        candidates = [candidates[i] for i in rng.permutation(len(candidates))]  # equal preferences: in random order
        ranked = sorted(candidates, key=lambda other: -self.preference.get(client, {}).get(other, 0.0))
        epsilon = self.settings.epsilon * self.settings.epsilon_decay ** (server_round - 1)
        chosen: list[str] = []
        for _ in range(number):
            left = [other for other in ranked if other not in chosen]
            chosen.append(left[rng.integers(len(left))] if rng.random() < epsilon else left[0])
        return chosen

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        return [Sent(EvaluateOrder(round.number, self.kinds))] * len(clients)

    @staticmethod
    @answers(FomoOrder)
    def train(me: Participant, order: FomoOrder, records: RecordDict) -> RecordDict:
        network = me.network()
        network.load(me.store.own_parts(order.round))
        weights = np.zeros(0)
        if OTHERS in records.array_records:
            weights = move(network, records.array_records[OTHERS], me.validation_samples(), order.upload)
        return train_from(me, order, network, more={"weights": weights.tolist()})


def move(network: Network, others: ArrayRecord, validation: Samples, shared: Sequence[str] | None = None) -> np.ndarray:
    """Change the parts of `network` (theta_i) that are shared (None: all) in place; the weights of the others, by position.
    Without validation data nothing moves."""
    own = network.dump(shared)
    count = next((place.array.shape[0] for place in part_places(others).values() if len(place.array.shape) == 2), 0)
    rows = checked_parts(others, network.like(shared, rows=count))
    if not len(validation):
        return np.zeros(count)
    own_loss = validation_error(network, validation)
    gains = np.zeros(count)
    for j in range(count):
        other = {part: rows[part][j] for part in rows}
        network.load(other)
        away = distance(own, other)
        gains[j] = max(0.0, own_loss - validation_error(network, validation)) / away if away > 0 else 0.0
    weights = gains / gains.sum() if gains.sum() > 0 else np.zeros(count)
    network.load(_moved(own, rows, weights))
    return weights


def _moved(own: Parts, rows: Parts, weights: np.ndarray) -> Parts:
    """(1 - sum w) own + sum w_j row_j: a convex mixture, so running variances stay variances."""
    left = max(0.0, 1 - weights.sum())
    return {
        part: as_dtype(left * value + weights @ rows[part].astype(np.float64), value.dtype)
        for part, value in own.items()
    }
