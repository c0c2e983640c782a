"""`coterie data`: what there is, and who would get what."""

from collections.abc import Mapping
from pathlib import Path

from coterie.cli.run import prepare
from coterie.client.data import partitioned
from coterie.tasks.chart import bubble_chart, label_table, summary_rows
from coterie.tasks.datasets import load_dataset
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.tasks.samples import DataError
from coterie.tasks.spec import TASKS
from coterie.wire.config import RunConfig, Value, split_sections
from rich.console import Console
from rich.table import Table


def data_command(values: Mapping[str, Value], plot: str) -> None:
    if "task" not in values and not plot:
        Console().print(data_sets_table(str(values.get("data-root", "data"))))
        return
    config = RunConfig.parse(split_sections(prepare(values))[0])
    dataset, parts = partitioned(config, config.num_clients)
    kind = partition_kind(spec_of(config), config.partition)
    clients = [str(i) for i in range(len(parts))]
    if kind == "natural":
        clients = [f"{i} ({name})" for i, name in enumerate(dataset.owners)]
    labels = [str(i) for i in range(dataset.num_classes)] or ["samples"]
    counts = label_table(dataset, parts)
    title = f"{config.task}, {kind} partition, seed {config.seed}"
    table = Table("client", "samples", "labels: how many of each", title=title)
    for row in summary_rows(counts, clients, labels):
        table.add_row(*row)
    Console().print(table)
    if plot:
        bubble_chart(counts, plot, title, clients, labels)
        Console(stderr=True).print(f"drawn: {Path(plot).absolute()}", highlight=False, soft_wrap=True)


def data_sets_table(data_root: str) -> Table:
    """All tasks, and whether their data are here; nothing is downloaded."""
    table = Table("task", "what it is", "input", "classes", "here?", title=f"Data sets (data-root: {data_root})")
    for name, spec in TASKS.items():
        try:
            here = f"{len(load_dataset(name, data_root, download=False))} samples"
        except DataError:
            here = "no"
        shape = "x".join(str(size) for size in spec.input_shape)
        classes = str(spec.num_outputs) if spec.kind == "classification" else "regression"
        table.add_row(name, spec.title, shape, classes, here)
    return table
