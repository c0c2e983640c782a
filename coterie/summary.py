"""What runs of several methods came to: a row for each method, and a table of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.papers import Figure
from coterie.preset import Methods
from coterie.rows import Table
from coterie.tasks.metrics import LOWER_IS_BETTER, UNBOUNDED
from coterie.wire.config import Value

SHOWN_FACTS = {  # of findings, beside the truth, and how their columns end
    "correlation-with-label-overlap": "overlap-correlation",
    "precision": "precision",
    "recall": "recall",
}


def summarise(
    names: Sequence[str], results: Sequence[Mapping[str, Any]], called: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds that came to an end, a row for each method; and why the others did not.
    Clients that are called by a name have figures of their own."""
    rows = []
    for name in names:
        every = [result for result in results if result["strategy"] == name]
        mine = [result for result in every if "failed" not in result]
        row: dict[str, Any] = {"strategy": name}
        if len(mine) < len(every):
            row["failed"] = {str(result["seed"]): result["failed"] for result in every if "failed" in result}
        rows.append(row)
        if not mine:
            continue
        for cost in ("seconds", "bytes", "cpu-seconds"):
            row[cost] = float(np.mean([result[cost] for result in mine]))
        for kind, metrics in mine[0]["models"].items():
            for metric in metrics["mean"]:
                known = [result for result in mine if metric in result["models"].get(kind, {}).get("mean", {})]
                row[f"{kind}.{metric}"] = _spread([result["models"][kind]["mean"][metric] for result in known])
                pick = max if metric.removesuffix("-weighted") in LOWER_IS_BETTER else min
                if not metric.endswith("-weighted"):
                    row[f"{kind}.worst-{metric}"] = _spread(
                        [pick(_values_of(result, kind, metric)) for result in known]
                    )
                for client, owner in called.items():
                    if own := [v[metric] for result in mine if metric in (v := _client(result, kind, client))]:
                        row[f"{kind}.{metric}.{owner}"] = _spread(own)
        for finding in mine[0]["findings"]:
            told = [result["findings"][finding].facts for result in mine if finding in result["findings"]]
            for fact, column in SHOWN_FACTS.items():
                if seen := [facts[fact] for facts in told if facts.get(fact) is not None]:
                    row[f"{finding}-{column}"] = _spread(seen)
    return rows


def _client(result: Mapping[str, Any], kind: str, client: str) -> Mapping[str, float]:
    found: Mapping[str, float] = result["models"][kind]["clients"].get(client, {})
    return found


def _values_of(result: Mapping[str, Any], kind: str, metric: str) -> list[float]:
    return [client[metric] for client in result["models"][kind]["clients"].values() if metric in client]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


def place(row: Mapping[str, Any], metric: str, config: Mapping[str, Value]) -> float:
    """Where a row stands: the best first, if the user names a metric; else all stay in their order."""
    told = row.get(f"personal.{metric}")
    if config["metric"] == "auto":
        return 0.0
    return float("inf") if told is None else told["mean"] * (1 if metric in LOWER_IS_BETTER else -1)


def metric_of(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Value], preset: Methods) -> str:
    """What methods are compared by: the run's metric, else the kind of accuracy that the server's game was told to go by, else
    the preset's."""
    of_game = str(config["shapleyfl.metric"])
    wanted = of_game if of_game.endswith("accuracy") else preset.metric.removesuffix("-weighted")
    wanted = wanted if config["metric"] == "auto" else str(config["metric"])
    return wanted if any(f"personal.{wanted}" in row for row in rows) else "loss"


def comparison_table(
    rows: Sequence[Mapping[str, Any]],
    cell: str,
    task: str,
    seeds: Sequence[int],
    metric: str,
    preset: Methods,
    clients: Sequence[str],
) -> Table:
    """The table of one cell, with columns for the clients that have names."""
    paper = {row["strategy"]: row["paper"] for row in rows if "paper" in row}
    scale = 1 if metric in UNBOUNDED else 100
    where = task if cell in ("", task) else f"{task}, {cell}"
    columns = {
        f"personal.{metric}": "personal",
        f"personal.{metric}-weighted": "by samples",
        f"personal.worst-{metric}": "worst client",
        f"global.{metric}": "global",
        **{f"personal.{metric}.{client}": client for client in clients},
    }
    correlations = sorted({key for row in rows for key in row if key.endswith("-overlap-correlation")})
    rates = [key for key in ("suspects-precision", "suspects-recall") if any(key in row for row in rows)]
    gained = any("gain" in row for row in rows)
    head = [
        "strategy",
        *columns.values(),
        *(["over local", "3 below"] if gained else []),
        *[f"{key.split('-')[0]} ~ overlap" for key in correlations],
    ]
    head += [key.split("-")[1] for key in rates]
    if paper:
        head.append("paper (by samples)" if preset.metric.endswith("weighted") else "paper")
    texts = []
    for row in rows:
        cells = [_cell(row.get(key), scale, len(seeds)) for key in columns]
        cells += _gain_cells(row.get("gain"), scale) if gained else []
        cells += [_cell(row.get(key), 1, len(seeds)) for key in [*correlations, *rates]]
        cells += [_paper_cell(paper.get(row["strategy"], "-"), scale)] if paper else []
        if "failed" in row:
            cells[0] = (
                f"{len(row['failed'])} of {len(seeds)} failed"
                if "seconds" not in row
                else f"{cells[0]} ({len(row['failed'])} failed)"
            )
        spent = ("-", "-", "-")
        if "seconds" in row:
            spent = (f"{row['bytes'] / 1e6:.1f}", f"{row['cpu-seconds']:.1f}", f"{row['seconds']:.1f}")
        texts.append([row["strategy"], *cells, *(spent if preset.costs else spent[2:])])
    title, caption = (
        f"Test {metric} on {where}, {_of_seeds(seeds)}",
        f"paper: {preset.source}" if paper else preset.source,
    )
    return Table(title, [*head, *(["MB", "CPU s"] if preset.costs else []), "seconds"], texts, caption)


def sweep_table(
    cells: Mapping[str, Sequence[Mapping[str, Any]]], where: str, seeds: Sequence[int], metric: str, preset: Methods
) -> Table:
    """A row for each method, a column for what was swept."""
    scale = 1 if metric in UNBOUNDED else 100
    column = f"personal.{metric}" + ("-weighted" if preset.metric == f"{metric}-weighted" else "")
    found = {(row["strategy"], cell): row.get(column) for cell, rows in cells.items() for row in rows}
    names = dict.fromkeys(name for name, _ in found)
    rows = [[name, *[_cell(found.get((name, cell)), scale, len(seeds)) for cell in cells]] for name in names]
    title = f"Test {metric} on {where}, personal models, {_of_seeds(seeds)}"
    return Table(title, ["strategy", *cells], rows, preset.source)


def _of_seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± std over seeds {', '.join(map(str, seeds))}"


def in_units(figure: Figure, metric: str) -> dict[str, float] | str:
    """What a paper reports in per cent, as ours is: a share."""
    if isinstance(figure, str):
        return figure
    scale = 1 if metric in UNBOUNDED else 100
    return {"mean": figure[0] / scale, "std": figure[1] / scale}


def _paper_cell(value: Mapping[str, float] | str, scale: int) -> str:
    return value if isinstance(value, str) else _cell(value, scale, seeds=2)


def _gain_cells(gain: Mapping[str, float] | None, scale: int) -> list[str]:
    if gain is None:
        return ["-", "-"]
    error = "" if np.isnan(gain["error"]) else f" ± {gain['error'] * scale:.2f}"
    return [f"{gain['mean'] * scale:+.2f}{error}", f"{100 * gain['harmed']:.0f} %" if scale > 1 else "-"]


def _cell(value: Mapping[str, float] | None, scale: int, seeds: int) -> str:
    if value is None:
        return "-"
    text = f"{value['mean'] * scale:.2f}"
    return f"{text} ± {value['std'] * scale:.2f}" if seeds > 1 else text
