"""Who wants to know how a run goes: the run directory, a progress bar, a log, a tracker (server/observers.py)."""

from collections.abc import Mapping
from typing import Any

from coterie.wire.messages import Hello


class Observer:
    """Does nothing; override what you need."""

    def started(self, clients: Mapping[str, Hello]) -> None:
        """All clients are there."""

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        """`done` of `total` clients answered in this phase, `train` or `evaluate`."""

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """The event line of the round, and the method's state after it."""

    def ended(self, result: Mapping[str, Any]) -> None:
        """The run came to its end; its result, and all of its directory, are there."""

    def failed(self, error: BaseException) -> None:
        """The run ended before that."""
