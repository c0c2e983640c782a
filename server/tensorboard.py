"""A run in TensorBoard: `--observers tensorboard`, then `tensorboard --logdir runs`. Its files are in the run directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from coterie.server.observers import numbers_of
from coterie.strategies.observer import Observer
from coterie.wire.config import Value


class TensorBoard(Observer):
    def __init__(self, run_dir: Path, config: Mapping[str, Value]) -> None:
        self.writer = SummaryWriter(str(run_dir / "tensorboard"))
        rows = "".join(f"| {key} | {value} |\n" for key, value in config.items())
        self.writer.add_text("config", f"| key | value |\n|---|---|\n{rows}")

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        for name, value in numbers_of(event).items():
            self.writer.add_scalar(name, value, event["round"])
        self.writer.flush()

    def ended(self, result: Mapping[str, Any]) -> None:
        self.writer.close()

    def failed(self, error: BaseException) -> None:
        self.writer.add_text("failed", f"{type(error).__name__}: {error}")
        self.writer.close()
