"""Who wants to know how a run goes: the run directory, a progress bar, a log, a tracker (server/observers.py)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from coterie.wire.messages import Hello

NAMES_SHOWN = 3
Seconds = Annotated[float, Field(ge=0, le=1e11)]  # also where it is read from a file


@dataclass(frozen=True)
class Waiting:
    """The run cannot go on before these clients answer, or the time is up."""

    clients: tuple[str, ...]  # those known by name
    others: int  # how many more, not connected yet
    what: str  # they are waited for to do
    since: Seconds  # 1970
    until: Seconds  # at the latest
    BEGINS: ClassVar[str] = "waiting for "  # in words

    def __str__(self) -> str:
        names = list(self.clients[:NAMES_SHOWN])
        if more := len(self.clients) - len(names) + self.others:
            names.append(f"{more} more")
        since, until = (time.strftime("%H:%M:%S", time.localtime(when)) for when in (self.since, self.until))
        return f"{self.BEGINS}{', '.join(names)} ({self.what}) since {since}, until {until} at the latest"


class Observer:
    """Does nothing; override what you need."""

    def started(self, clients: Mapping[str, Hello]) -> None:
        """All clients are there."""

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        """`done` of `total` clients answered in this phase, `train` or `evaluate`."""

    def waiting(self, waiting: Waiting) -> None:
        """Told again and again while clients are waited for."""

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """The event line of the round, and the method's state after it."""

    def ended(self, result: Mapping[str, Any]) -> None:
        """The run came to its end; its result, and all of its directory, are there."""

    def failed(self, error: BaseException) -> None:
        """The run ended before that."""
