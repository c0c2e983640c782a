"""Every client trains alone: what collaboration has to beat."""

from collections.abc import Mapping
from typing import Any

from coterie.strategies.fedavg import FedAvg
from coterie.tasks.models import PARTS
from coterie.wire.checks import Update


class Local(FedAvg):
    name = "local"
    personal = PARTS
    kinds = ("personal",)

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        return {}  # nothing is shared
