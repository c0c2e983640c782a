"""FedAMP (Huang et al. 2021, arXiv:2007.03797): every client is drawn towards a mean of the models that are like its own.

    u_i = xi w_i + (1 - xi) sum_{j != i} a_ij w_j,      a_ij ~ exp(sigma cos(w_i, w_j))
    w_i <- argmin  f_i(w) + pull/2 |w - u_i|^2

These are the weights of HeurFedAMP, the paper's form for deep networks. The server keeps the last model of every client; a
client's own is the one that it trained last, and it goes on from there.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.training import train_from
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.feddyn import on
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.strategies.pool import ModelPool
from coterie.strategies.rounds import Round
from coterie.tasks.models import WEIGHTS
from coterie.tasks.steps import Held
from coterie.wire.arrays import Parts
from coterie.wire.messages import EvaluateOrder, Sent, TrainOrder


@dataclass(frozen=True)
class DrawnOrder(TrainOrder):
    """Train the own model, drawn towards the one that was sent."""

    kind = "train.drawn"
    pull: float = 0.0


class FedAMP(FedAvg):
    name = "fedamp"
    private = ("weights",)
    not_private = "is drawn towards models while it trains, for which no epsilon is counted here"
    kinds = ("personal",)
    saved = ("pool",)

    class Settings(MethodSettings):
        pull: float = setting(1.0, "Strength of the pull towards the mean of like models.", ge=0.0)
        sigma: float = setting(10.0, "How much more models count that are more alike.", ge=0.0)
        own: float = setting(0.5, "Share xi of the own model in that mean.", ge=0.0, le=1.0)
        store: Literal["auto", "memory", "disk"] = setting(
            "auto", "Where the server keeps the clients' models; auto: in memory up to 2 GB."
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shared = {part: self.layout.parts[part] for part in self.uploads()}
        self.pool = ModelPool(shared, Path(self.config.run_dir) / "pool", self.settings.store)

    def begin(self) -> None:
        self.pool.expect(len(self.federation.clients))

    def round(self, round: Round) -> None:
        plain = asdict(self.train_order(round.number)) | {"keep": tuple(self.layout.parts)}
        order = DrawnOrder(**plain, pull=self.settings.pull)
        updates = round.train(lambda clients: (Sent(order, model) for model in self.means(clients)))
        for client, update in updates.items():
            self.pool.put(client, update.parts)

    def means(self, clients: list[str]) -> list[Parts]:
        """u_i of these clients; who never trained gets the initial model."""
        shared = {part: self.model[part] for part in self.uploads()}
        models = {client: dict(shared) for client in clients}
        known = [client for client in clients if client in self.pool]
        if known:
            weights = self.attention()[[self.pool.index(client) for client in known]]
            for part in shared:
                for client, row in zip(known, self.pool.mixed(weights, part), strict=True):
                    models[client][part] = row
        return list(models.values())

    def attention(self) -> np.ndarray:
        """What of each model is in each mean, (pool, pool)."""
        number, own = len(self.pool), self.settings.own
        if number < 2:
            return np.ones((number, number))
        inner = np.zeros((number, number))
        for part in [part for part in self.pool.layout if part in WEIGHTS]:
            rows = self.pool.part(part).astype(np.float64)
            inner += rows @ rows.T
        lengths = np.maximum(np.sqrt(np.diag(inner)), np.finfo(float).tiny)
        like = self.settings.sigma * inner / np.outer(lengths, lengths)
        np.fill_diagonal(like, -np.inf)
        shares = np.exp(like - like.max(axis=1, keepdims=True))
        shares *= (1 - own) / shares.sum(axis=1, keepdims=True)
        return np.asarray(shares + own * np.eye(number))

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        order = EvaluateOrder(round.number, self.kinds, own=True)
        return (Sent(order, None if client in self.pool else self.model) for client in clients)

    def findings(self) -> list[Finding]:
        clients = sorted(self.pool.clients, key=name_order)
        rows = [self.pool.index(client) for client in clients]
        return [Finding.pairs("similarity", clients, self.attention()[np.ix_(rows, rows)])] if len(rows) > 1 else []

    @staticmethod
    @answers(DrawnOrder)
    def train(me: Participant, order: DrawnOrder, records: RecordDict) -> RecordDict:
        network = me.network()
        towards = received_parts(records, network)
        network.fill({**towards, **me.store.own_parts(order.round)})  # before its first training it is the mean
        return train_from(me, order, network, Held(on(me, towards), order.pull))
