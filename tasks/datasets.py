"""Data sets by name.

`load_dataset` finds a task's data and returns it pooled, train part first; who gets which samples is the partition's
business.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie.tasks.images import PUBLISHED, load_digits, load_images, load_kinds
from coterie.tasks.installed import DATA, spec_named, task_names
from coterie.tasks.linear import LinearRecipe, load_linear
from coterie.tasks.samples import DataError, Dataset, did_you_mean
from coterie.tasks.sources import several
from coterie.tasks.spec import TASKS
from coterie.tasks.tabular import load_adult, load_heart, load_synthetic
from coterie.wire.installed import load

__all__ = ["DataError", "Dataset", "load_dataset"]


def load_dataset(
    task: str,
    data_root: str | Path,
    *,
    data: str = "",
    download: bool = True,
    classes: str = "",
    input_shape: str = "",
    bad_files: str = "leave-out",
) -> Dataset:
    """The data of a task, read once per process.

    `data_root` is where files are looked for; with `download`, image sets that are not there come from the internet.
    The task "own" reads the user's `data` (see tasks/own.py) with the given `classes` and `input_shape`.
    """
    if task != "own" and task not in task_names():
        raise DataError(f"unknown task {task!r}. {did_you_mean(task, [*task_names(), 'own'])}")
    if task == "own" and not data:
        raise DataError("task 'own' needs data=PATH: an .npz, a .csv, a .py file or a folder of images.")
    if task != "own" and data:
        raise DataError(
            f"data={data!r} is for task 'own', not for task {task!r}. Set task to 'own', or leave data out."
        )
    where = data if several(data) else str(Path(data or data_root).expanduser().resolve())
    return _load(task, where, download, classes, input_shape, bad_files)


@lru_cache(maxsize=4)
def _load(task: str, where: str, download: bool, classes: str, input_shape: str, bad_files: str) -> Dataset:
    path = Path(where)
    if task == "own":
        from coterie.tasks.own import load_own, load_several

        told: dict[str, Any] = {"classes": classes, "input_shape": input_shape, "refuse": bad_files == "refuse"}
        places = several(where)
        return load_several(places, **told) if places else load_own(path, **told)
    if task not in TASKS:
        return _load_installed(task, path)
    if task == "digits":
        return load_digits()
    if task == "kinds":
        return load_kinds()
    if task == "synthetic-linear":
        return load_synthetic()
    if task == "linear":
        return load_linear(LinearRecipe())
    if task in PUBLISHED:
        return load_images(task, path, download)
    return load_adult(path) if task == "adult" else load_heart(path)


def _load_installed(task: str, data_root: Path) -> Dataset:
    """The data of a task from outside, checked as a user's own."""
    from coterie.tasks.own import make_dataset

    spec = spec_named(task)
    try:
        fields = load(DATA, task).load(data_root)
    except Exception as error:  # another's code can raise anything
        raise DataError(f"task = {task!r}: load() failed with {type(error).__name__}: {error}") from error
    if not isinstance(fields, Mapping):
        raise DataError(f"task = {task!r}: load() must return a mapping with x and y.")
    classes = "regression" if spec.kind == "regression" else str(spec.num_outputs)
    return make_dataset(fields, f"task {task}", classes, spec.input_shape)
