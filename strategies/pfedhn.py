"""pFedHN (Shamsian et al. 2021, arXiv:2103.04628): a hypernetwork makes each client's model from a vector learned for it.

    theta_i = HN(v_i)               sent to client i, which trains it to theta_i'
    HN, v  <- HN, v - rate Adam( (d theta_i / d (HN, v))^T (theta_i - theta_i') )        for all clients of the round together

v_i is the column for client i of the first layer of the hypernetwork (strategies/hyper.py). A round ends with
`pfedhn.server-steps` steps: the first is the line above, the others go on towards theta_i' and cost no message. The personal
model is HN(v_i) after that.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from coterie.strategies.hyper import STEPS, HypernetworkMethod, HypernetworkSettings
from coterie.tasks.models import WEIGHTS
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update
from coterie.wire.messages import EvaluateOrder, TrainOrder, content
from flwr.app import RecordDict
from pydantic import Field


class PFedHNSettings(HypernetworkSettings):
    server_steps: int = Field(
        5, ge=1, description=STEPS
    )  # more of them, and a model hardly differs from the client's own


class PFedHN(HypernetworkMethod):
    name = "pfedhn"
    settings_class = PFedHNSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made: dict[str, Parts] = {}  # the models of the clients that are spoken to

    def prepare(self, server_round: int, clients: list[str]) -> None:
        rows = self.hyper().models(np.array([self.corner(name) for name in clients]))
        self.made = {name: {part: of_all[i] for part, of_all in rows.items()} for i, name in enumerate(clients)}

    def train_content(self, client: str, server_round: int) -> RecordDict:
        order = TrainOrder(server_round, ("+".join(WEIGHTS),), (self.config.local_epochs,), upload=self.uploads())
        return content(order, pack(self.made[client]))

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        points = np.array([self.corner(name) for name in updates])
        change = {
            part: np.stack([self.made[name][part] - update.parts[part] for name, update in updates.items()])
            for part in self.uploads()
        }
        return {"phase": "hypernetwork", "way-left": self.follow(server_round, points, change, step=1.0)}

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        return content(EvaluateOrder(server_round, self.kinds, measure=True), pack(self.made[client]))
