"""Progress of a run in a terminal: rounds, clients, seconds left. Where there is no terminal, one line per round."""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from coterie.strategies.observer import Observer
from coterie.wire.messages import Hello
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHARE_OF_TRAINING = 0.8  # of the time of a round with an evaluation, for a bar that moves evenly


def quiet_flower(console: Console) -> None:
    """Flower's log through our console, warnings only: its lines would tear the progress bar apart."""
    logger = logging.getLogger("flwr")
    logger.handlers = [RichHandler(console=console, show_time=False, show_path=False)]
    logger.setLevel(logging.WARNING)


class RunProgress(Observer):
    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self.console = console
        self.title = title
        self.rounds = rounds
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds, {task.fields[doing]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task: TaskID

    def __enter__(self) -> Self:
        self.task = self.bar.add_task(self.title, total=self.rounds, doing="waiting for clients")
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def started(self, clients: Mapping[str, Hello]) -> None:
        samples = sum(hello.num_train for hello in clients.values())
        self.console.print(f"{self.title}: {len(clients)} clients, {samples} training samples", highlight=False)

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        share = (
            SHARE_OF_TRAINING * done / total
            if phase == "train"
            else SHARE_OF_TRAINING + (1 - SHARE_OF_TRAINING) * done / total
        )
        doing = f"{phase} {done}/{total} clients"
        self.bar.update(self.task, completed=round(server_round - 1 + share, 2), doing=doing)

    def finished(self, server_round: int) -> None:
        doing = f"round {server_round + 1} now" if server_round < self.rounds else "done"
        self.bar.update(self.task, completed=server_round, doing=doing)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.finished(event["round"])
        if not self.console.is_terminal:
            mean = event.get("mean", {})
            shown = ", ".join(
                f"{name} {mean[name]:.4f}"
                for name in ("global.accuracy", "personal.accuracy", "personal.loss")
                if name in mean
            )
            self.console.print(
                f"{self.title}: round {event['round']}/{self.rounds} {shown}", highlight=False, soft_wrap=True
            )
