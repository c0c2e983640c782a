"""How a run goes: a bar in a terminal, a bar in a notebook, elsewhere one line per round, JSON for machines, or nothing."""

import importlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from html import escape
from types import TracebackType
from typing import Any, Literal, Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie.manners import Shared
from coterie.server.roundlog import QUIET_SECONDS, SHOWN, Patience
from coterie.strategies.observer import Observer, Waiting
from coterie.tasks.metrics import LOWER_IS_BETTER
from coterie.wire.messages import Hello

SHARE_OF_TRAINING = 0.8  # of the time of a round with an evaluation, for a bar that moves evenly
REDRAW_SECONDS = 0.1  # drawing a bar costs more than the answer of a small client
LOGGERS = ("flwr", "coterie")
Shown = bool | Literal["json"]  # True: as it fits where this process runs


class RunProgress(Observer):
    """Shows nothing; the others override `show` and `say`."""

    def __init__(self, title: str, rounds: int, metric: str = "auto") -> None:
        self.title = title
        self.rounds = rounds
        self.rounds_done = 0
        self.shown_at = 0.0
        self.patience = Patience()
        self.late = 0
        self.seconds: list[float] = []  # of each round
        self.best = ""
        self.best_value: float | None = None
        self.metric = metric
        self.console = Console(stderr=True, force_jupyter=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The run is over."""

    def show(self, completed: float, doing: str) -> None:
        """So many rounds are done, and this is going on."""

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""

    def started(self, clients: Mapping[str, Hello]) -> None:
        samples = sum(hello.num_train for hello in clients.values())
        self.say(f"{self.title}: {len(clients)} clients, {samples} training samples")

    def submitted(self, number: int) -> None:
        """A server has the run, under this number."""

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.shown_at < REDRAW_SECONDS:
            return
        self.shown_at = now
        begun, share = (0.0, SHARE_OF_TRAINING) if phase == "train" else (SHARE_OF_TRAINING, 1 - SHARE_OF_TRAINING)
        completed = server_round - 1 + begun + share * done / total if server_round else 0.0  # 0: they agree on columns
        completed = max(completed, self.rounds_done)  # models are judged after the last round
        self.late = min(self.late, total - done)
        doing = f"{phase} {done}/{total} clients" + (f", {self.late} late" if self.late else "")
        self.show(round(completed, 2) if completed < self.rounds else self.rounds, doing)

    def waiting(self, waiting: Waiting) -> None:
        """Late are those who take longer than whole rounds did."""
        usual = sum(self.seconds) / len(self.seconds) if self.seconds else 0.0
        is_long = time.time() - waiting.since > max(QUIET_SECONDS, usual)
        self.late = len(waiting.clients) + waiting.others if is_long else 0
        if self.patience.is_over(waiting):
            self.say(f"{self.title}: {waiting}")

    def round_told(self, event: Mapping[str, Any]) -> None:
        """A round ended, and its line was shown already."""
        self.note(event)
        self.finished(event["round"])

    def note(self, event: Mapping[str, Any]) -> None:
        """How long it took, and whether it is the best so far."""
        self.seconds.append(event["seconds"] + event.get("evaluate-seconds", 0.0))
        mean = event.get("mean", {})
        for metric in (self.metric, "accuracy", "loss"):
            value = mean.get(f"personal.{metric}")
            if value is not None:
                better = min if metric in LOWER_IS_BETTER else max
                if self.best_value is None or better(value, self.best_value) != self.best_value:
                    self.best_value = value
                    self.best = f"best {value:.4f} in round {event['round']}"
                return

    def finished(self, server_round: int) -> None:
        self.rounds_done, self.late = server_round, 0
        self.show(server_round, f"round {server_round + 1} now" if server_round < self.rounds else "done")

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.round_told(event)


class LineProgress(RunProgress):
    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.note(event)
        answered, asked = answers(event)
        left = sum(self.seconds) / len(self.seconds) * (self.rounds - event["round"])
        texts = (
            _figures(event),
            f"{answered}/{asked} clients",
            self.best,
            f"about {left:.0f} s left" if event["round"] < self.rounds else "",
        )
        self.say(f"{self.title}: round {event['round']}/{self.rounds} {', '.join(text for text in texts if text)}")


class TerminalProgress(LineProgress):
    """Drawn anew when there is news and not by a thread of its own: workers are forked while the bar is shown."""

    def __enter__(self) -> Self:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds, {task.fields[doing]}"),
            TextColumn("{task.fields[best]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            auto_refresh=False,
        )
        self.task = self.bar.add_task(self.title, total=self.rounds, doing="waiting for clients", best="")
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, completed: float, doing: str) -> None:
        self.bar.update(self.task, completed=completed, doing=doing, best=self.best, refresh=True)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.round_told(event)


class NotebookProgress(RunProgress):
    """A bar of HTML that is changed in place; needs nothing but IPython."""

    def __enter__(self) -> Self:
        display = importlib.import_module("IPython.display")
        self.html, self.figures = display.HTML, ""
        self.lines: list[str] = []
        self.state = 0.0, "waiting for clients"
        self.handle = display.display(self.html(self._drawn()), display_id=True)
        return self

    def show(self, completed: float, doing: str) -> None:
        self.state = completed, doing
        self.handle.update(self.html(self._drawn()))

    def say(self, text: str, style: str = "") -> None:
        self.lines.append(text)
        self.handle.update(self.html(self._drawn()))

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.figures = _figures(event) or self.figures
        self.round_told(event)

    def _drawn(self) -> str:
        completed, doing = self.state
        lines = "".join(f"<div>{escape(line)}</div>" for line in self.lines)
        bar = f'<progress value="{completed}" max="{self.rounds}"></progress>'
        texts = (self.title, f"{completed:g} of {self.rounds} rounds", doing, self.figures, self.best)
        return f"{lines}<div>{bar} {escape(', '.join(text for text in texts if text))}</div>"


class JsonProgress(RunProgress):
    """An object a line on standard output (docs/reference/commands.md has the fields)."""

    def started(self, clients: Mapping[str, Hello]) -> None:
        samples = sum(hello.num_train for hello in clients.values())
        tell("started", run=self.title, rounds=self.rounds, clients=len(clients), samples=samples)

    def submitted(self, number: int) -> None:
        tell("submitted", run=self.title, number=number)

    def waiting(self, waiting: Waiting) -> None:
        if self.patience.is_over(waiting):
            facts = {"for": waiting.what, "since": waiting.since, "until": waiting.until}
            tell("waiting", run=self.title, clients=list(waiting.clients), others=waiting.others, **facts)

    def round_told(self, event: Mapping[str, Any]) -> None:
        self.note(event)
        facts: dict[str, Any] = {"left-out": event["left-out"]} if "left-out" in event else {}
        if "train" in event:
            facts["answered"], facts["asked"] = answers(event)
        tell(
            "round",
            run=self.title,
            round=event["round"],
            rounds=self.rounds,
            seconds=self.seconds[-1],
            mean=event.get("mean", {}),
            best=self.best_value,
            **facts,
        )


def tell(event: str, **facts: Any) -> None:
    """A line for machines."""
    print(json.dumps(_finite({"event": event, **facts})), flush=True)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answers(event: Mapping[str, Any]) -> tuple[int, int]:
    """How many clients trained, and how many were asked to."""
    trained = len(event.get("train", {}))
    return trained, trained + len(event.get("left-out", {}))


def progress_of(shown: Shown, title: str, config: Mapping[str, Any]) -> RunProgress:
    """The progress that fits where this process runs, of a run with this configuration."""
    kind = RunProgress
    if shown == "json":
        kind = JsonProgress
    elif shown and in_notebook():
        kind = NotebookProgress
    elif shown:
        kind = TerminalProgress if Console(stderr=True).is_terminal else LineProgress
    return kind(title, int(config.get("num-server-rounds", 0)), str(config.get("metric", "auto")))


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def _figures(event: Mapping[str, Any]) -> str:
    mean = event.get("mean", {})
    return ", ".join(f"{name} {mean[name]:.4f}" for name in SHOWN if name in mean)


def _log_to(console: Console) -> Callable[[], None]:
    before = [(logger, logger.handlers, logger.level) for logger in map(logging.getLogger, LOGGERS)]
    for logger, *_ in before:
        logger.handlers = [RichHandler(console=console, show_time=False, show_path=False)]
        logger.setLevel(logging.WARNING)

    def undo() -> None:
        for logger, handlers, level in before:
            logger.handlers = handlers
            logger.setLevel(level)

    return undo


log_to = Shared(_log_to)  # warnings only, through our console: Flower's other lines would tear the bar apart
