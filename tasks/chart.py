"""Who has which labels: a table, a bubble chart, and rows for the terminal."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.samples import DataError, Dataset
from coterie.wire.files import write_atomically

SUFFIXES = (".png", ".svg")
MAX_TICKS = 40
SMALLEST = 3.0  # square points: one sample can still be seen


def label_table(dataset: Dataset, parts: Sequence[np.ndarray]) -> np.ndarray:
    """How many samples of each label every client has, (clients, classes); regression counts as one class."""
    if dataset.num_classes == 0:
        return np.array([[len(part)] for part in parts], dtype=np.int64)
    return np.array([np.bincount(dataset.y[part], minlength=dataset.num_classes) for part in parts])


def label_overlap(table: np.ndarray) -> np.ndarray:
    """How much of their labels two clients share, sum over labels of the smaller share: 0 none, 1 the same mixture."""
    shares = table / table.sum(axis=1, keepdims=True)
    return np.array([np.minimum(own, shares).sum(axis=1) for own in shares])


def summary_rows(
    table: np.ndarray, client_names: Sequence[str], label_names: Sequence[str]
) -> list[tuple[str, str, str]]:
    """For every client: its name, its number of samples, and its labels, the most frequent first."""
    rows = []
    for name, counts in zip(client_names, table, strict=True):
        order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i] > 0]
        shown = ", ".join(f"{label_names[i]}: {counts[i]}" for i in order[:6])
        more = f", {len(order) - 6} more" if len(order) > 6 else ""
        rows.append((name, str(counts.sum()), shown + more))
    return rows


def bubble_chart(
    table: np.ndarray,
    path: str | Path,
    title: str,
    client_names: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
) -> None:
    """Draw the table, a bubble per client and label with an area that goes by the number of samples, as PNG or SVG."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise DataError(f"plot={path}: the name must end in {' or '.join(SUFFIXES)}.")
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    clients, labels = table.shape
    step = float(np.clip(14 / max(clients, 1), 0.13, 0.55))  # inches between two clients
    pitch = float(np.clip(8 / max(labels, 1), 0.13, 0.42))
    figure = Figure(figsize=(max(clients * step, 3.6) + 2.6, max(labels * pitch, 2.2) + 1.7), layout="constrained")
    axes = figure.subplots()
    client, label = np.nonzero(table)
    counts = table[client, label]
    largest = max(int(table.max(initial=0)), 1)
    diameter = min(2.2 * step, pitch) * 72 * 1.05  # points; where clients are dense the largest bubbles overlap
    sizes = np.maximum(diameter**2 * counts / largest, SMALLEST)
    colours = [f"C{i % 10}" for i in label]
    axes.scatter(client, label, s=sizes, c=colours, alpha=0.75, linewidths=0)
    axes.set_xlim(-0.8, clients - 0.2)
    axes.set_ylim(-0.8, labels - 0.2)
    _ticks(axes.xaxis, client_names or [str(i) for i in range(clients)])
    _ticks(axes.yaxis, label_names or [str(i) for i in range(labels)])
    if max((len(name) for name in client_names or ()), default=0) > 3:
        axes.tick_params("x", rotation=90 if clients > 12 else 30)
    axes.set(title=title, xlabel=f"client ({clients})", ylabel="label")
    axes.set_axisbelow(True)
    axes.grid(color="0.92", linewidth=0.6)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    _legend(axes, largest, diameter)
    with matplotlib.rc_context({"svg.hashsalt": "coterie"}):  # same picture, same file
        _save(figure, path)


def _ticks(axis: Any, names: Sequence[str]) -> None:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if len(names) <= MAX_TICKS * step)
    axis.set_ticks(range(0, len(names), every), labels=list(names[::every]))


def _legend(axes: Any, largest: int, diameter: float) -> None:
    """Three bubbles with their numbers of samples."""
    for count in sorted({largest, max(largest // 4, 1), max(largest // 16, 1)}, reverse=True):
        size = max(diameter**2 * count / largest, SMALLEST)
        axes.scatter([], [], s=size, c="0.6", linewidths=0, label=f"{count:,}")
    axes.legend(
        title="samples",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        labelspacing=0.6 + diameter / 16,
        handletextpad=0.5 + diameter / 30,
        borderpad=1,
    )


def _save(figure: Any, path: Path) -> None:
    """Write beside the target and rename: a reader never sees half a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(picture, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_atomically(path, picture.getvalue())
