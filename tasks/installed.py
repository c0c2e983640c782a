"""Networks and tasks from outside: entry points of the groups `coterie.models` and `coterie.data`.

coterie.models   a function build(input_shape, num_outputs) that returns (extractor, classifier), as in a file of one's own
coterie.data     an object with `spec`, the TaskSpec of that name, and load(data_root), which returns a mapping with x and y,
                 and perhaps owner, mean and std, as in a file of one's own
"""

import functools
from importlib import metadata
from typing import Any

from coterie.tasks.samples import DataError
from coterie.tasks.spec import TASKS, TaskSpec
from coterie.wire.errors import ConfigError

MODELS, DATA = "coterie.models", "coterie.data"


@functools.cache
def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=group)}


@functools.cache
def load(group: str, name: str) -> Any:
    entry = entry_points(group)[name]
    try:
        return entry.load()
    except Exception as error:  # another's code can raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{name!r}: the entry point {entry.value!r} of {group} cannot be loaded ({what})") from error


def task_names() -> list[str]:
    """All tasks that are installed here, beside the user's own data."""
    return [*TASKS, *(name for name in sorted(entry_points(DATA)) if name not in (*TASKS, "own"))]


def spec_named(task: str) -> TaskSpec:
    if task in TASKS:
        return TASKS[task]
    spec = getattr(load(DATA, task), "spec", None)
    if not isinstance(spec, TaskSpec) or spec.name != task:
        raise DataError(f"task = {task!r}: the entry point has no `spec`, a TaskSpec with the name {task!r}.")
    return spec
