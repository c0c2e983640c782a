"""Networks and tasks from outside: entry points of the groups `coterie.models` and `coterie.data`.

coterie.models   a function build(input_shape, num_outputs) that returns (extractor, classifier), as in a file of one's own
coterie.data     an object with `spec`, the TaskSpec of that name, and load(data_root), which returns a mapping with x and y,
                 and perhaps owner, mean and std, as in a file of one's own
"""

from coterie.tasks.samples import DataError
from coterie.tasks.spec import TASKS, TaskSpec
from coterie.wire.installed import load, names

MODELS, DATA = "coterie.models", "coterie.data"


def task_names() -> list[str]:
    """All tasks that are installed here, beside the user's own data."""
    return [name for name in names(DATA, tuple(TASKS)) if name != "own"]


def spec_named(task: str) -> TaskSpec:
    if task in TASKS:
        return TASKS[task]
    spec = getattr(load(DATA, task), "spec", None)
    if not isinstance(spec, TaskSpec) or spec.name != task:
        raise DataError(f"task = {task!r}: the entry point has no `spec`, a TaskSpec with the name {task!r}.")
    return spec
