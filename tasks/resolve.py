"""What the words of a run configuration mean: which task, which partition, how many clients, which model."""

from dataclasses import replace

from tasks.models import MODELS, ModelError, default_model
from tasks.own import parse_shape
from tasks.samples import DataError, did_you_mean
from tasks.spec import TASKS, TaskSpec

SIMULATED_CLIENTS = 10


def task_spec(task: str, classes: str = "", input_shape: str = "") -> TaskSpec:
    """The task by its name; for `own` data from what the user says of them."""
    if task in TASKS and TASKS[task].generated and input_shape:
        shape = parse_shape(input_shape)
        if len(shape) != 1:
            raise DataError(
                f"input-shape = {input_shape!r}: task {task!r} has features, not images; give their number."
            )
        return replace(TASKS[task], input_shape=shape)
    if task in TASKS:
        return TASKS[task]
    if task != "own":
        raise DataError(f"task = {task!r}: unknown. {did_you_mean(task, [*TASKS, 'own'])}")
    shape = parse_shape(input_shape)
    if not shape or not classes:
        raise DataError(
            "task = 'own': a server that must not see data needs input-shape (3,32,32, or 13 for 13 features) and classes "
            "(10, or cat,dog, or regression)."
        )
    if classes == "regression":
        return TaskSpec("own", "Your own data", "regression", shape, 1)
    number = int(classes) if classes.isdecimal() else len(classes.split(","))
    if number < 2:
        raise DataError(
            f"classes = {classes!r}: name two or more, or their number; for real numbers write 'regression'."
        )
    return TaskSpec("own", "Your own data", "classification", shape, number)


def partition_kind(spec: TaskSpec, partition: str) -> str:
    if partition != "auto":
        return partition
    if spec.natural_clients or spec.generated:
        return "natural"
    return "iid" if spec.kind == "regression" else "pathological"


def number_of_clients(spec: TaskSpec, partition: str, num_clients: int) -> int:
    """How many clients a simulation has when the user does not say."""
    if num_clients:
        return num_clients
    natural = partition_kind(spec, partition) == "natural" and spec.natural_clients
    return len(spec.natural_clients) if natural else SIMULATED_CLIENTS


def model_name(spec: TaskSpec, model: str) -> str:
    if model == "auto":
        return default_model(spec.input_shape, regression=spec.kind == "regression")
    if model not in MODELS and not model.endswith(".py"):
        raise ModelError(f"model = {model!r}: unknown. {did_you_mean(model, MODELS)} Or name a .py file.")
    return model
