"""Every client trains alone: what collaboration has to beat."""

from collections.abc import Mapping

from coterie.strategies.fedavg import FedAvg
from coterie.strategies.rounds import Round
from coterie.tasks.models import PARTS
from coterie.wire.checks import Update


class Local(FedAvg):
    name = "local"
    personal = PARTS
    kinds = ("personal",)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        """Nothing is shared."""
