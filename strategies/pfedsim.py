"""pFedSim (Tan et al. 2023, arXiv:2305.15706): every client gets a feature extractor averaged over clients like itself.

Rounds 1 .. floor(rho T) are FedAvg. From then on every client has a model of its own, and the server keeps the last one of each:

    omega_i <- sum_j Phi_ij omega_j / sum_j Phi_ij          phi_i: its own classifier, never mixed

Phi is the similarity of the classifiers (games/similarity.py). The server has everybody's last classifier, so all of the rows
of the clients that just trained are refreshed, not only pairs that trained together. All new extractors of a round are one
matrix product.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from coterie.games.similarity import SELF_WEIGHT, aggregation_weights, similarity_rows
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.federation import name_order
from coterie.strategies.pool import MEMORY_LIMIT, ModelPool
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update
from coterie.wire.config import Settings
from coterie.wire.messages import EvaluateOrder, content
from flwr.app import RecordDict
from pydantic import Field

LARGEST_SHOWN = 200  # clients up to which the event line has the refreshed rows


class PFedSimSettings(Settings):
    warmup: float = Field(0.5, ge=0.0, le=1.0, description="Share of the rounds that are FedAvg (the paper's rho).")
    self_weight: float = Field(
        round(SELF_WEIGHT, 2), gt=0.0, description="Similarity of a client to itself; the paper has 1."
    )
    variant: Literal["paper", "authors"] = Field(
        "paper", description="paper: mean of the classes' logarithms; authors: the logarithm of the mean cosine."
    )
    store: Literal["auto", "memory", "disk"] = Field(
        "auto", description="Where the server keeps the clients' models; auto: in memory up to 2 GB."
    )


class PFedSim(FedAvg):
    name = "pfedsim"
    settings_class = PFedSimSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warmup_rounds: int = math.floor(self.settings.warmup * self.config.num_server_rounds)
        self.pool: ModelPool | None = None
        self.similarity = np.zeros((0, 0))  # in the order of the pool's clients
        self.mixed: dict[str, Parts] = {}  # what the clients of this round receive

    def personal_phase(self, server_round: int) -> bool:
        return server_round > self.warmup_rounds

    # What a client receives.

    def prepare(self, server_round: int, clients: list[str]) -> None:
        """The extractors of all these clients, in one product. Who never trained has the last global model."""
        pool = self.models()
        if not self.personal_phase(server_round):
            return
        self.mixed = {client: dict(self.model) for client in clients}
        known = [client for client in clients if client in pool]
        if not known:
            return
        weights = aggregation_weights(self.similarity[[pool.index(client) for client in known]])  # (known, pool)
        for part in self.layout.parts:
            rows = [pool.get(c, part) for c in known] if part == "classifier" else pool.mixed(weights, part)
            for client, row in zip(known, rows, strict=True):
                self.mixed[client][part] = row

    def train_content(self, client: str, server_round: int) -> RecordDict:
        if not self.personal_phase(server_round):
            return super().train_content(client, server_round)
        return content(self.train_order(server_round), pack(self.mixed.pop(client)))

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        if not self.personal_phase(server_round):
            return super().evaluate_content(client, server_round)
        self.kinds = ("personal",)
        return content(EvaluateOrder(server_round, self.kinds), pack(self.mixed.pop(client)))

    # What becomes of the answers.

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        pool = self.models()
        for client, update in updates.items():
            pool.put(client, update.parts)
        if not self.personal_phase(server_round):
            event = super().aggregate(server_round, updates)
            if server_round == self.warmup_rounds:
                self.hand_over()
            return {"phase": "warm-up", **event}
        self.refresh([pool.index(client) for client in updates])
        event = {"phase": "personal"}
        if len(pool) <= LARGEST_SHOWN:
            rows = {client: np.round(self.similarity[pool.index(client)], 4).tolist() for client in updates}
            event |= {"similarity": rows, "similarity-order": list(pool.clients)}
        return event

    def hand_over(self) -> None:
        """End of the warm-up: everybody goes on from the global extractor, with the classifier trained last."""
        pool = self.models()
        extractor = {part: value for part, value in self.model.items() if part != "classifier"}
        for client in pool.clients:
            pool.put(client, extractor)
        self.refresh(list(range(len(pool))))

    def refresh(self, rows: list[int]) -> None:
        """New similarities of these clients with all clients, in rows and in columns."""
        number = len(self.models())
        old = len(self.similarity)
        if old < number:
            self.similarity = np.pad(self.similarity, (0, number - old))
        classes, features = self.layout.classifier_shape
        classifiers = self.models().part("classifier")[:, : classes * features].reshape(number, classes, features)
        new = similarity_rows(classifiers, rows, self_weight=self.settings.self_weight, variant=self.settings.variant)
        self.similarity[rows] = new
        self.similarity[:, rows] = new.T

    def matrices(self) -> dict[str, tuple[list[str], np.ndarray]]:
        clients = sorted(self.models().clients, key=name_order)
        rows = [self.models().index(client) for client in clients]
        return {"similarity": (clients, self.similarity[np.ix_(rows, rows)])} if len(self.similarity) else {}

    # What the server keeps.

    def models(self, number: int | None = None) -> ModelPool:
        """The last model of every client; made when it is known how many there are."""
        if self.pool is None:
            number = len(self.federation.clients) if number is None else number
            size = number * sum(part.nbytes for part in self.layout.parts.values())
            on_disk = self.settings.store == "disk" or (self.settings.store == "auto" and size > MEMORY_LIMIT)
            self.pool = ModelPool(self.layout.parts, Path(self.config.run_dir) / "pool" if on_disk else None)
        return self.pool

    def state_dict(self) -> dict[str, Any]:
        """In memory the pool is part of the state; on disk its files stay in the run directory and only their order is noted."""
        state = super().state_dict()
        pool = self.models()
        state["values"] = {"clients": list(pool.clients)}
        state["arrays"]["similarity"] = self.similarity
        if not pool.on_disk:
            state["arrays"] |= {f"pool.{part}": pool.part(part) for part in self.layout.parts}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.similarity = np.array(state["arrays"]["similarity"])
        pool = self.models(len(state["values"]["clients"]))
        for i, client in enumerate(state["values"]["clients"]):
            if pool.on_disk:
                pool.adopt(client)
            else:
                pool.put(client, {part: state["arrays"][f"pool.{part}"][i] for part in self.layout.parts})
