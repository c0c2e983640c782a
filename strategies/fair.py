"""What AFL and q-FFL have in common: clients tell the loss of the model that they got, and are weighed by it.

It is the loss on all training samples before training: the mean over training is of other models.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from flwr.app import Message

from coterie.strategies.fedavg import FedAvg
from coterie.strategies.rounds import Round
from coterie.wire.checks import Update
from coterie.wire.errors import Refused
from coterie.wire.messages import TrainOrder


class Fair(FedAvg):
    private = ("weights",)
    not_private = "weighs clients by losses on their training samples, which no noise hides"

    def train_order(self, number: int) -> TrainOrder:
        return replace(super().train_order(number), start_loss=True)

    def check_update(self, client: str, reply: Message) -> Update:
        update = super().check_update(client, reply)
        loss = update.metrics.get("start-loss")
        if loss is None or loss < 0:
            raise Refused(f"start-loss: expected a number that is not negative, got {loss!r}")
        return update

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        """Who has no sample has no loss and does not count; if nobody has any, the model stays."""
        counted = {name: update for name, update in updates.items() if update.num_samples}
        round.tell(weights=self.weigh(counted) if counted else {})

    @abstractmethod
    def weigh(self, updates: Mapping[str, Update]) -> dict[str, float]:
        """Make the new model from the updates, at least one; how much each counted."""
