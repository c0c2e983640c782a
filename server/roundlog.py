"""How a run goes, in the log: a line when all clients are there, one for each round, and one for a long wait.

The log is all that a server tells of a run to those who ask from elsewhere, so it is read again here.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from coterie.server.status import ROUNDS_TIMED, Status
from coterie.strategies.observer import Observer, Waiting
from coterie.wire.messages import Hello

log = logging.getLogger(__name__)

SHOWN = ("global.accuracy", "personal.accuracy", "personal.auroc", "personal.auprc", "personal.f1", "personal.loss")
QUIET_SECONDS = 10.0  # without an answer, until a wait is worth a word
CLIENTS = re.compile(r"(\d+) clients, \d+ training samples$")
ROUND = re.compile(r"round (\d+)/(\d+): (?:(.*), )?([\d.]+) s$")


class Patience:
    """Whether a wait is worth a word: once when nobody answered for a while, and again when it is for others."""

    def __init__(self) -> None:
        self.waiting: Waiting | None = None
        self.began = 0.0

    def is_over(self, waiting: Waiting) -> bool:
        now = time.monotonic()
        if waiting != self.waiting:
            self.waiting, self.began = waiting, now
        if now - self.began < QUIET_SECONDS:
            return False
        self.began = float("inf")
        return True


class RoundLog(Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.patience = Patience()

    def started(self, clients: Mapping[str, Hello]) -> None:
        log.info("%d clients, %d training samples", len(clients), sum(hello.num_train for hello in clients.values()))

    def waiting(self, waiting: Waiting) -> None:
        if self.patience.is_over(waiting):
            log.info("%s", waiting)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        mean = event.get("mean", {})
        shown = "".join(f"{name} {mean[name]:.4f}, " for name in SHOWN if name in mean)
        seconds = event["seconds"] + event.get("evaluate-seconds", 0.0)
        log.info("round %d/%d: %s%.1f s", event["round"], self.rounds, shown, seconds)


def round_in(line: str) -> dict[str, Any] | None:
    """The round that ended, if this line of the log says so: what it has of the event."""
    match = ROUND.match(line)
    if not match:
        return None
    figures = (text.split(" ") for text in (match[3] or "").split(", ") if text)
    mean = {name: float(value) for name, value in figures if name in SHOWN}
    return {"round": int(match[1]), "seconds": float(match[4]), "mean": mean}


def status_in(lines: Iterable[str]) -> Status:
    """How far a run is, by its log so far."""
    status, seconds = Status(state="running"), []
    for line in lines:
        if match := CLIENTS.match(line):
            status.clients, status.round = int(match[1]), max(1, status.round)
        elif match := ROUND.match(line):
            status.round, status.rounds = int(match[1]) + 1, int(match[2])
            seconds.append(float(match[4]))
            status.why = ""
        elif line.startswith(Waiting.BEGINS):
            status.why = line
    if seconds:
        status.seconds_per_round = sum(seconds[-ROUNDS_TIMED:]) / len(seconds[-ROUNDS_TIMED:])
    return status
