"""pFedSim (Tan et al. 2023, arXiv:2305.15706): every client gets a feature extractor averaged over clients like itself.

Rounds 1 .. floor(rho T) are FedAvg. From then on every client has a model of its own, and the server keeps the last one of each:

    omega_i <- sum_j Phi_ij omega_j / sum_j Phi_ij          phi_i: its own classifier, never mixed

Phi is the similarity of the classifiers (games/similarity.py). The server has everybody's last classifier, so all of the rows
of the clients that just trained are refreshed, not only pairs that trained together. All new extractors of a round are one
matrix product.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.games.similarity import SELF_WEIGHT, aggregation_weights, similarity_rows
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.strategies.method import MethodSettings, setting
from coterie.strategies.pool import ModelPool
from coterie.strategies.rounds import Round, exactly
from coterie.wire.arrays import Parts
from coterie.wire.messages import Sent

LARGEST_SHOWN = 200  # clients up to which the event line has the refreshed rows


class PFedSim(FedAvg):
    name = "pfedsim"
    saved = ("pool", "similarity")

    class Settings(MethodSettings):
        warmup: float = setting(0.5, "Share of the rounds that are FedAvg (the paper's rho).", ge=0.0, le=1.0)
        self_weight: float = setting(
            round(SELF_WEIGHT, 2), "Similarity of a client to itself; the paper has 1.", gt=0.0
        )
        hand_over: Literal["last-trained", "global"] = setting(
            "last-trained",
            "The classifier with which a client leaves the warm-up: the one it trained last; paper: global.",
        )
        variant: Literal["paper", "authors"] = setting(
            "paper", "paper: mean of the classes' logarithms; authors: the logarithm of the mean cosine."
        )
        store: Literal["auto", "memory", "disk"] = setting(
            "auto", "Where the server keeps the clients' models; auto: in memory up to 2 GB."
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warmup_rounds: int = math.floor(exactly(self.settings.warmup) * self.config.num_server_rounds)
        shared = {part: self.layout.parts[part] for part in self.uploads()}  # the others stay with their clients
        self.pool = ModelPool(shared, Path(self.config.run_dir) / "pool", self.settings.store)
        self.similarity = np.zeros((0, 0))  # in the order of the pool's clients

    def begin(self) -> None:
        self.pool.expect(len(self.federation.clients))

    def round(self, round: Round) -> None:
        if round.number <= self.warmup_rounds:
            return self.warm_up(round)
        order = self.train_order(round.number)
        updates = round.train(lambda clients: (Sent(order, model) for model in self.mixed(clients)))
        for client, update in updates.items():
            self.pool.put(client, update.parts)
        self.refresh([self.pool.index(client) for client in updates])
        round.tell(phase="personal")
        if len(self.pool) <= LARGEST_SHOWN:
            rows = {client: np.round(self.similarity[self.pool.index(client)], 4).tolist() for client in updates}
            round.tell(similarity=rows, similarity_order=list(self.pool.clients))

    def warm_up(self, round: Round) -> None:
        """A round of FedAvg. After the last, everybody goes on from the global extractor, with the classifier trained last, or
        (`global`) from the global model, as anybody does who is not in the pool."""
        order = self.train_order(round.number)
        updates = round.train(lambda clients: self.with_shared_parts(order, clients))
        for client, update in updates.items() if self.settings.hand_over == "last-trained" else ():
            self.pool.put(client, update.parts)
        self.aggregate(round, updates)
        round.tell(phase="warm-up")
        if round.number == self.warmup_rounds and len(self.pool):
            extractor = {part: self.model[part] for part in self.uploads() if part != "classifier"}
            for client in self.pool.clients:
                self.pool.put(client, extractor)
            self.refresh(list(range(len(self.pool))))

    def mixed(self, clients: list[str]) -> list[Parts]:
        """The models of all these clients, in one product. Who never trained has the last global model."""
        shared = {part: self.model[part] for part in self.uploads()}
        models = {client: dict(shared) for client in clients}
        known = [client for client in clients if client in self.pool]
        if known:
            weights = aggregation_weights(self.similarity[[self.pool.index(c) for c in known]])  # (known, pool)
            for part in shared:
                own = part == "classifier"
                rows = [self.pool.get(c, part) for c in known] if own else self.pool.mixed(weights, part)
                for client, row in zip(known, rows, strict=True):
                    models[client][part] = row
        return list(models.values())

    def refresh(self, rows: list[int]) -> None:
        """New similarities of these clients with all clients, in rows and in columns."""
        number = len(self.pool)
        old = len(self.similarity)
        if old < number:
            self.similarity = np.pad(self.similarity, (0, number - old))
        classes, features = self.layout.classifier_shape
        classifiers = self.pool.part("classifier")[:, : classes * features].reshape(number, classes, features)
        new = similarity_rows(classifiers, rows, self_weight=self.settings.self_weight, variant=self.settings.variant)
        self.similarity[rows] = new
        self.similarity[:, rows] = new.T

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        if round.number <= self.warmup_rounds:
            return super().test_orders(round, clients)
        self.kinds = ("personal",)
        order = self.test_order(round.number)
        return (Sent(order, model) for model in self.mixed(clients))

    def findings(self) -> list[Finding]:
        clients = sorted(self.pool.clients, key=name_order)
        rows = [self.pool.index(client) for client in clients]
        if not len(self.similarity):
            return []
        return [Finding.pairs("similarity", clients, self.similarity[np.ix_(rows, rows)])]
