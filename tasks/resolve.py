"""What the words of a run configuration mean: which task, which partition, how many clients, which model."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from coterie.tasks.installed import spec_named, task_names
from coterie.tasks.models import ModelError, Network, build_network, default_model, model_names
from coterie.tasks.own import parse_shape
from coterie.tasks.samples import DataError, did_you_mean
from coterie.tasks.spec import TASKS, TaskSpec
from coterie.wire.randomness import derive_seed

if TYPE_CHECKING:
    from coterie.wire.config import RunConfig

SIMULATED_CLIENTS = 10


def spec_of(config: "RunConfig") -> TaskSpec:
    """The task of a run."""
    return task_spec(config.task, config.classes, config.input_shape)


def network_of(config: "RunConfig", *, group_norm: bool = False, device: str = "cpu") -> Network:
    """The network of a run with its initial weights, which depend on the seed alone, or are those of `pretrained`."""
    spec = spec_of(config)
    network = build_network(
        model_name(spec, config.model),
        spec.input_shape,
        spec.num_outputs,
        seed=derive_seed(config.seed, "model"),
        buffers=config.buffers,
        group_norm=group_norm,
        device=device,
        dropout=config.dropout,
    )
    if config.pretrained:
        from coterie.tasks.pretrained import load_pretrained

        load_pretrained(network, config.pretrained)
    return network


def task_spec(task: str, classes: str = "", input_shape: str = "") -> TaskSpec:
    """The task by its name; for `own` data from what the user says of them."""
    if task in TASKS and TASKS[task].generated and input_shape:
        shape = parse_shape(input_shape)
        if len(shape) != 1:
            raise DataError(
                f"input-shape = {input_shape!r}: task {task!r} has features, not images; give their number."
            )
        return replace(TASKS[task], input_shape=shape)
    if task in task_names():
        return spec_named(task)
    if task != "own":
        raise DataError(f"task = {task!r}: unknown. {did_you_mean(task, [*task_names(), 'own'])}")
    shape = parse_shape(input_shape)
    if not shape:  # a table: its clients will agree on columns and classes
        return TaskSpec("own", "Your own table", "regression" if classes == "regression" else "classification", (0,), 2)
    if not classes:
        raise DataError(
            "task = 'own': a server that must not see data needs classes beside input-shape (10, or cat,dog, or regression)."
        )
    if classes == "regression":
        return TaskSpec("own", "Your own data", "regression", shape, 1)
    number = int(classes) if classes.isdecimal() else len(classes.split(","))
    if number < 2:
        raise DataError(
            f"classes = {classes!r}: name two or more, or their number; for real numbers write 'regression'."
        )
    return TaskSpec("own", "Your own data", "classification", shape, number)


def with_method(config: "RunConfig") -> "RunConfig":
    """`strategy` by its name, if it is left to the kind of the task."""
    if config.strategy != "auto" or config.strategy_file:
        return config
    name = "fedavg" if spec_of(config).kind == "regression" else "coterie"
    return config.model_copy(update={"strategy": name})


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


def dealt_names(config: "RunConfig", number: int) -> list[str]:
    """What clients of a data set that is dealt are called: as its natural clients, else 0, 1, ..."""
    spec = spec_of(config)
    natural = partition_kind(spec, config.partition) == "natural" and number == len(spec.natural_clients)
    return list(spec.natural_clients) if natural else [str(i) for i in range(number)]


def model_name(spec: TaskSpec, model: str) -> str:
    if model == "auto":
        return default_model(spec.input_shape, regression=spec.kind == "regression")
    if model not in model_names() and not model.endswith(".py"):
        raise ModelError(f"model = {model!r}: unknown. {did_you_mean(model, model_names())} Or name a .py file.")
    return model


def server_device(device: str) -> str:
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
