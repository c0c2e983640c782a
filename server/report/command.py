"""The command that runs a run again."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.strategies.registry import built_in_sections
from coterie.wire.config import RunConfig

OWN = ("run-dir", "run-id", "strategy-file")  # each run has its own
FIRST = ("strategy", "task", "seed")


def command_of(config: Mapping[str, Any]) -> str:
    """With every setting that is not as usual."""
    usual = {**RunConfig().as_config(), "data-root": str(Path("data").absolute())}
    for name, settings in built_in_sections().items():
        usual |= settings().as_config(prefix=f"{name}.")
    given = {
        key: value
        for key, value in config.items()
        if key in FIRST or (key not in OWN and not _same(key, value, usual.get(key)))
    }
    words = ["coterie", "run"]
    for key in sorted(given, key=lambda key: (key not in FIRST, "." in key, key)):
        value = str(given[key]).lower() if isinstance(given[key], bool) else str(given[key])
        words += ["--set", f"{key}={value}"] if "." in key else [f"--{key}", value]
    return shlex.join(words)


def _same(key: str, value: Any, usual: Any) -> bool:
    return bool(value == usual) or (key == "data-root" and Path(str(value)).name == "data")
