"""`coterie run`: one method, simulated on this machine."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from coterie.cli.progress import RunProgress, quiet_flower
from coterie.client.data import partitioned
from coterie.client.participant import pick_device
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import checked_config, run
from coterie.server.findings import found, suspects_in_words
from coterie.server.rundir import new_run_dir
from coterie.strategies.registry import parse_config
from coterie.strategies.server_game import server_samples
from coterie.tasks.chart import label_overlap, label_table
from coterie.tasks.datasets import load_dataset
from coterie.tasks.own import describe
from coterie.tasks.resolve import number_of_clients, spec_of
from coterie.tasks.server_data import is_amount
from coterie.wire.attack import AttackSettings, bad_clients
from coterie.wire.config import RunConfig, Value, split_sections
from coterie.wire.errors import ConfigError
from rich.console import Console
from rich.table import Table


def prepare(values: Mapping[str, Value]) -> dict[str, Value]:
    """The whole configuration of a simulation, checked, with its data loaded and dealt: all mistakes show up here."""
    config = checked_config(_describe_own_data(values))
    settings = RunConfig.parse(split_sections(config)[0])
    spec = spec_of(settings)
    number = number_of_clients(spec, settings.partition, settings.num_clients)
    config["num-clients"] = number
    config["data-root"] = str(Path(settings.data_root).absolute())
    if settings.model.endswith(".py"):
        config["model"] = str(Path(settings.model).absolute())
    if settings.server_data and not is_amount(settings.server_data):
        config["server-data"] = str(Path(settings.server_data).expanduser().absolute())
    settings, sections = parse_config(config)
    bad_clients(cast(AttackSettings, sections["attack"]), [str(i) for i in range(number)], settings.seed)
    partitioned(settings, number)
    if settings.server_data:
        server_samples(settings, "cpu")
    return config


def _describe_own_data(values: Mapping[str, Value]) -> dict[str, Value]:
    """For data of the user's own, fill in what the server must know of them."""
    values = dict(values)
    if values.get("task") == "own":
        if not values.get("data"):
            raise ConfigError("task = 'own': say where your data are, for example --data measurements.csv")
        data = str(Path(str(values["data"])).absolute())
        told, shape = str(values.get("classes", "")), str(values.get("input-shape", ""))
        spec = describe(load_dataset("own", "", data=data, classes=told, input_shape=shape))
        classes = "regression" if spec.kind == "regression" else told or str(spec.num_outputs)
        values |= {"data": data, "classes": classes, "input-shape": ",".join(str(size) for size in spec.input_shape)}
        if spec.natural_clients and values.get("partition", "auto") in ("auto", "natural"):
            values |= {"partition": "natural", "num-clients": len(spec.natural_clients)}
    elif values.get("data"):
        raise ConfigError(f"data = {values['data']!r}: is for your own data; add --task own")
    return values


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def simulate(
    config: Mapping[str, Value], run_dir: Path, workers: Workers, console: Console, title: str
) -> dict[str, Any]:
    """All rounds, with progress; the result, and beside it the seconds it took."""
    quiet_flower(console)
    grid = SimulationGrid(workers, int(config["num-clients"]), config, str(run_dir))
    dataset, parts = partitioned(RunConfig.parse(split_sections(config)[0]), int(config["num-clients"]))
    overlap = None
    if dataset.num_classes:
        overlap = ([str(i) for i in range(len(parts))], label_overlap(label_table(dataset, parts)))
    started = time.monotonic()
    with RunProgress(console, title, int(config["num-server-rounds"])) as progress:
        result = run(grid, config, run_dir, [progress], overlap)
    return result | {"seconds": time.monotonic() - started}


def run_command(values: Mapping[str, Value], workers: int | None) -> None:
    console = Console(stderr=True)
    config = prepare(values)
    pick_device(str(config["device"]))
    pool = Workers(default_workers() if workers is None else workers)
    try:
        run_dir = new_run_dir(config)
        result = simulate(config, run_dir, pool, console, f"{config['strategy']} on {config['task']}")
    finally:
        pool.close()
    Console().print(result_table(result))
    if "suspects" in (findings := found(run_dir)):
        Console().print(suspects_in_words(findings["suspects"]), highlight=False, soft_wrap=True)
    console.print(f"run directory: {run_dir}", highlight=False, soft_wrap=True)


def result_table(result: Mapping[str, Any]) -> Table:
    """Two rows for each kind of model: the plain mean over clients, and the mean weighted by test samples."""
    table = Table(title=f"{result['strategy']} on {result['task']}, {result['rounds']} rounds, seed {result['seed']}")
    names = [name for name in next(iter(result["models"].values()))["mean"] if not name.endswith("-weighted")]
    table.add_column("model")
    table.add_column("mean")
    for name in names:
        table.add_column(name.replace("-", " "), justify="right")
    for kind, values in result["models"].items():
        mean = values["mean"]
        table.add_row(kind, "over clients", *[f"{mean[name]:.4f}" for name in names])
        table.add_row("", "by samples", *[f"{mean[name + '-weighted']:.4f}" for name in names])
    return table
