"""Which data sets there are, and who would get what of them."""

from collections.abc import Mapping
from pathlib import Path

from coterie.client.data import partitioned
from coterie.rows import Table
from coterie.simulate import names_of_clients, prepare
from coterie.tasks.chart import bubble_chart, label_table, summary_rows
from coterie.tasks.datasets import load_dataset
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.tasks.samples import DataError
from coterie.tasks.spec import TASKS
from coterie.wire.config import RunConfig, Value, split_sections


def who_gets_what(values: Mapping[str, Value], plot: str | Path = "") -> Table:
    """The labels of every client of a run; `plot` draws them as a bubble chart, too."""
    config = RunConfig.parse(split_sections(prepare(values))[0])
    dataset, parts = partitioned(config, config.num_clients)
    kind = partition_kind(spec_of(config), config.partition)
    clients = [str(i) for i in range(len(parts))]
    if kind == "natural":
        names = names_of_clients(config)
        clients = [
            name if name == owner else f"{name} ({owner})" for name, owner in zip(names, dataset.owners, strict=True)
        ]
    labels = [str(i) for i in range(dataset.num_classes)] or ["samples"]
    counts = label_table(dataset, parts)
    title = f"{config.task}, {kind} partition, seed {config.seed}"
    if plot:
        bubble_chart(counts, str(plot), title, clients, labels)
    return Table(title, ["client", "samples", "labels: how many of each"], summary_rows(counts, clients, labels))


def data_sets(data_root: str) -> Table:
    """All tasks, and whether their data are here; nothing is downloaded."""
    rows = []
    for name, spec in TASKS.items():
        try:
            here = f"{len(load_dataset(name, data_root, download=False))} samples"
        except DataError:
            here = "no"
        shape = "x".join(str(size) for size in spec.input_shape)
        classes = str(spec.num_outputs) if spec.kind == "classification" else "regression"
        rows.append([name, spec.title, shape, classes, here])
    return Table(f"Data sets (data-root: {data_root})", ["task", "what it is", "input", "classes", "here?"], rows)
