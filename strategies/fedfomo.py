"""FedFomo (Zhang et al. 2021, arXiv:2012.08565): each client weighs the models of others by what they do for its own loss.

The server keeps every client's last model and sends each client M of them, without names. The client moves its own model
towards those that have a lower loss on its validation data (client/fomo.py), trains, uploads, and tells the weights by
position. The server prefers, for each client, the models that helped it before, and explores with probability epsilon:

    P_ij <- P_ij + w_ij
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from coterie.strategies.base import Method
from coterie.tasks.models import WEIGHTS
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update
from coterie.wire.config import Settings
from coterie.wire.messages import OTHERS, TRAIN_FOMO, EvaluateOrder, TrainOrder, content
from coterie.wire.randomness import generator
from flwr.app import ArrayRecord, RecordDict
from pydantic import Field


class FedFomoSettings(Settings):
    models: int = Field(5, ge=1, description="How many models of others a client receives in a round.")
    epsilon: float = Field(
        0.3, ge=0.0, le=1.0, description="Probability of a random model in place of a preferred one, in round 1."
    )
    epsilon_decay: float = Field(0.95, gt=0.0, le=1.0, description="Factor on epsilon after each round.")


class FedFomo(Method):
    name = "fedfomo"
    settings_class = FedFomoSettings
    train_type = TRAIN_FOMO
    kinds = ("personal",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.models: dict[str, Parts] = {}  # the last model of every client
        self.preference: dict[str, dict[str, float]] = {}  # client -> other -> P
        self.sent: dict[str, list[str]] = {}  # who stands behind the rows sent to a client in this round

    def uploads(self) -> tuple[str, ...]:
        return tuple(self.layout.parts)

    def train_content(self, client: str, server_round: int) -> RecordDict:
        parts = self.uploads()
        order = TrainOrder(server_round, ("+".join(WEIGHTS),), (self.config.local_epochs,), upload=parts, keep=parts)
        self.sent[client] = others = self.choose(client, server_round)
        if not others:
            return content(order)
        rows = pack({part: np.stack([self.models[other][part] for other in others]) for part in parts})
        return content(order, ArrayRecord(), **{OTHERS: rows})

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

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        weights: dict[str, dict[str, float]] = {}
        for name, update in updates.items():
            self.models[name] = update.parts
            others = self.sent.get(name, [])
            told = update.vectors.get("weights", np.zeros(0))
            if len(told) == len(others) and (told >= 0).all() and told.sum() <= 1 + 1e-6:
                weights[name] = dict(zip(others, told.tolist(), strict=True))
                known = self.preference.setdefault(name, {})
                for other, weight in weights[name].items():
                    known[other] = known.get(other, 0.0) + weight
        return {"weights": weights}

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        return content(EvaluateOrder(server_round, self.kinds))

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["values"] = {"preference": self.preference, "clients": list(self.models)}
        for i, model in enumerate(self.models.values()):
            state["arrays"] |= {f"{i}.{part}": value for part, value in model.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.preference = state["values"]["preference"]
        for i, name in enumerate(state["values"]["clients"]):
            self.models[name] = {part: np.asarray(state["arrays"][f"{i}.{part}"]) for part in self.layout.parts}
