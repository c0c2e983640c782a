"""Figures of small sites: the run once more for each fold of every client's samples, so that each sample is tested once.

A client of 50 rows tests with ten of them, which says little. With `folds=5` five more runs, in `folds/1`, `folds/2`, ... of the
run directory, test with another fifth each, by models that did not see it. A figure of a client is then the mean over its folds,
weighted by their samples, with the standard error of the folds; `folds.json` has them.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coterie.rows import Rows, Table
from coterie.runs import Run, gain_in_words
from coterie.server import agreement
from coterie.server.checkpoints import write_json
from coterie.tasks.metrics import verdict
from coterie.wire.config import Value
from coterie.wire.errors import ConfigError

FILE = "folds.json"
ENOUGH_ROWS = 200  # of a client, from which on one test share is enough


def run_folds(config: Mapping[str, Value], run_dir: Path, one_run: Callable[[dict[str, Value], Path], Run]) -> None:
    """One run for each fold, and what they came to together."""
    runs = []
    with _said_already():
        for fold in range(1, int(config["folds"]) + 1):
            place = run_dir / "folds" / str(fold)
            place.mkdir(parents=True)
            runs.append(one_run({**config, "fold": fold, "run-dir": str(place)}, place))
    write_json(run_dir / FILE, pooled([run.clients for run in runs]))


@contextmanager
def _said_already() -> Iterator[None]:
    """Every fold agrees on columns once more, and would warn of the same columns and clients as the run before them."""
    logger = logging.getLogger(agreement.__name__)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def pooled(folds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each client, from its rows in every fold."""
    by_client: dict[str, list[Mapping[str, Any]]] = {}
    for row in (row for fold in folds for row in fold if row["test-samples"]):
        by_client.setdefault(row["client"], []).append(row)
    found = []
    for client, rows in by_client.items():
        weights = [row["test-samples"] for row in rows]
        figures: dict[str, Any] = {"client": client, "test-samples": sum(weights), "folds": len(rows)}
        for name in [name for name in rows[0] if "." in name and all(row.get(name) is not None for row in rows)]:
            values = [row[name] for row in rows]
            error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
            figures[name] = {"mean": float(np.average(values, weights=weights)), "standard-error": error}
        found.append(figures | _gain(rows, np.array(weights) / sum(weights)))
    return found


def _gain(rows: Sequence[Mapping[str, Any]], shares: np.ndarray) -> dict[str, Any]:
    """What a client gains over training alone, over all its folds. Their test samples are different ones, so half the length
    of the interval is that of a mean of independent figures; that their models share samples to train with is left out."""
    if any(row.get("gain") is None for row in rows):
        return {}
    told = {name: float(shares @ [row[name] for row in rows]) for name in ("local", "gain")}
    if any(row["gain-low"] is None for row in rows):
        return {**told, "gain-low": None, "gain-high": None, "verdict": verdict(None, None)}
    ends = np.array([[row["gain-low"], row["gain-high"]] for row in rows])
    middle, half = float(shares @ ends.mean(axis=1)), float(np.linalg.norm(shares * np.diff(ends)[:, 0] / 2))
    low, high = middle - half, middle + half
    return {**told, "gain-low": low, "gain-high": high, "verdict": verdict(low, high)}


def folds_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Figures of the personal models; `folds.json` has the others."""
    names = [name for name in rows[0] if name.startswith("personal.")]
    head = ["client", "tested", *(name.removeprefix("personal.").replace("-", " ") for name in names)]
    shown = [[row["client"], str(row["test-samples"]), *(_in_words(row.get(name)) for name in names)] for row in rows]
    if any("gain" in row for row in rows):
        head += ["gain", "95 % interval", "verdict"]
        for line, row in zip(shown, rows, strict=True):
            line += gain_in_words(row) if "gain" in row else [""] * 3
    return Table(f"Every sample tested once, in {rows[0]['folds']} folds", head, shown)


def _in_words(figure: Mapping[str, float | None] | None) -> str:
    if not figure:
        return ""
    error = figure["standard-error"]
    return f"{figure['mean']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def advice(run: Run) -> str:
    """What to do about clients that test with few rows; empty if there are none."""
    few = [
        f"{row['client']} ({row['test-samples']})"
        for row in run.clients
        if row["test-samples"] and row["train-samples"] and row["test-samples"] + row["train-samples"] < ENOUGH_ROWS
    ]
    if not few:
        return ""
    names = ", ".join(few[:3]) + (f" and {len(few) - 3} more" if len(few) > 3 else "")
    return f"few test samples: {names}; --folds 5 tests with all that a client has"


def read_folds(run_dir: Path) -> Rows:
    if not (run_dir / FILE).exists():
        raise ConfigError(f"{run_dir}: was run without folds; give folds=5 to a new run")
    return Rows(json.loads((run_dir / FILE).read_text()))
