"""What AFL and q-FFL have in common: clients tell the loss of the model that they got, and are weighed by it.

It is the loss on all training samples before training: the mean over training is of other models.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.strategies.fedavg import FedAvg
from coterie.wire.checks import Update, check_start_loss
from coterie.wire.messages import TrainOrder
from flwr.app import Message


class Fair(FedAvg):
    private = ("weights",)
    not_private = "weighs clients by losses on their training samples, which no noise hides"

    def train_order(self, server_round: int) -> TrainOrder:
        return replace(super().train_order(server_round), start_loss=True)

    def check_update(self, client: str, reply: Message) -> Update:
        update = super().check_update(client, reply)
        check_start_loss(update)
        return update

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        """Who has no sample has no loss and does not count; if nobody has any, the model stays."""
        counted = {name: update for name, update in updates.items() if update.num_samples}
        return {"weights": self.weigh(counted) if counted else {}}

    @abstractmethod
    def weigh(self, updates: Mapping[str, Update]) -> dict[str, float]:
        """Make the new model from the updates, at least one; how much each counted."""
