"""Observers by the names that users type: trackers of ours, and entry points of the group `coterie.observers`.

An observer of the group is called with the directory of the run and its configuration. What it does wrong is told, and the run
goes on without it.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.strategies.observer import Observer, Waiting
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError
from coterie.wire.installed import load
from coterie.wire.installed import names as all_names
from coterie.wire.messages import Hello

log = logging.getLogger(__name__)

GROUP = "coterie.observers"
OURS = {"tensorboard": "coterie.server.tensorboard:TensorBoard", "mlflow": "coterie.server.mlflow:MLflow"}
Maker = Callable[[Path, Mapping[str, Value]], Observer]


def makers(names: str) -> dict[str, Maker]:
    """What makes the observers of these names, separated by commas."""
    found: dict[str, Maker] = {}
    for name in filter(None, (name.strip() for name in names.split(","))):
        choose("observers", name, all_names(GROUP, tuple(OURS)))
        if name not in OURS:
            found[name] = load(GROUP, name)
            continue
        module, _, maker = OURS[name].partition(":")
        try:
            found[name] = getattr(import_module(module), maker)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"observers = {names!r}: {name} needs {error.name}, which is not here; pip install 'coterie[{name}]'"
            ) from None
    return found


def observers_of(names: str, run_dir: Path, config: Mapping[str, Value]) -> list[Observer]:
    return [Guarded(name, functools.partial(maker, run_dir, config)) for name, maker in makers(names).items()]


class Guarded(Observer):
    """Another observer, until it fails."""

    def __init__(self, name: str, make: Callable[[], Observer]) -> None:
        self.name = name
        self.observer: Observer | None = None
        self._try(lambda: setattr(self, "observer", make()))

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            log.warning("observer %s is told nothing more: %s: %s", self.name, type(error).__name__, error)
            self.observer = None

    def _tell(self, event: str, *facts: Any) -> None:
        if self.observer:
            self._try(lambda: getattr(self.observer, event)(*facts))

    def started(self, clients: Mapping[str, Hello]) -> None:
        self._tell("started", clients)

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        self._tell("progress", server_round, phase, done, total)

    def waiting(self, waiting: Waiting) -> None:
        self._tell("waiting", waiting)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self._tell("round_ended", event, state)

    def ended(self, result: Mapping[str, Any]) -> None:
        self._tell("ended", result)

    def failed(self, error: BaseException) -> None:
        self._tell("failed", error)


def numbers_of(event: Mapping[str, Any]) -> dict[str, float]:
    """What a tracker draws of a round: mean metrics, mean training loss, bytes, seconds, how many clients were left out."""
    losses = [told["loss"] for told in event["train"].values() if "loss" in told]
    return {
        **event.get("mean", {}),
        **({"train.loss": sum(losses) / len(losses)} if losses else {}),
        **{key: float(sum(event.get(key, {}).values())) for key in ("bytes-up", "bytes-down")},
        "seconds": event["seconds"],
        "left-out": float(len(event["left-out"])),
    }
