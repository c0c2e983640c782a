"""Who wants to know how a run goes: the run directory, a progress bar, a log."""

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
