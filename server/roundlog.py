"""How a run goes, in the log: a line when all clients are there, and one for each round."""

import logging
from collections.abc import Mapping
from typing import Any

from coterie.strategies.observer import Observer
from coterie.wire.messages import Hello

log = logging.getLogger(__name__)

SHOWN = ("global.accuracy", "personal.accuracy", "personal.loss")


class RoundLog(Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def started(self, clients: Mapping[str, Hello]) -> None:
        log.info("%d clients, %d training samples", len(clients), sum(hello.num_train for hello in clients.values()))

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        mean = event.get("mean", {})
        shown = "".join(f"{name} {mean[name]:.4f}, " for name in SHOWN if name in mean)
        seconds = event["seconds"] + event.get("evaluate-seconds", 0.0)
        log.info("round %d/%d: %s%.1f s", event["round"], self.rounds, shown, seconds)
