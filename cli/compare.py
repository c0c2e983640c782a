"""`coterie compare`: several methods and seeds on the same data, one table."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cli.run import default_workers, prepare, simulate
from cli.simulation import Workers
from server.rundir import new_run_dir, write_json
from strategies.registry import METHODS
from wire.config import ConfigError, Value, choose


def parse_list(key: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ConfigError(f"{key} = {text!r}: name at least one, separated by commas")
    return list(dict.fromkeys(items))


def compare_command(values: Mapping[str, Value], strategies: str, seeds: str, workers: int | None) -> None:
    names = [choose("strategies", name, list(METHODS)) for name in parse_list("strategies", strategies)]
    numbers = []
    for seed in parse_list("seeds", seeds):
        if not seed.isdecimal():
            raise ConfigError(f"seeds = {seeds!r}: write whole numbers separated by commas, for example 1,2,3")
        numbers.append(int(seed))
    runs = [(name, seed, prepare({**values, "strategy": name, "seed": seed})) for name in names for seed in numbers]
    console = Console(stderr=True)
    pool = Workers(default_workers() if workers is None else workers)
    try:
        base = new_run_dir({**runs[0][2], "strategy": "compare"})
        results = [_one(base, name, seed, config, pool, console) for name, seed, config in runs]
    finally:
        pool.close()
    rows = summarise(names, results)
    write_json(base / "comparison.json", {"task": runs[0][2]["task"], "seeds": numbers, "rows": rows})
    Console().print(comparison_table(rows, str(runs[0][2]["task"]), numbers))
    console.print(f"run directory: {base}", highlight=False, soft_wrap=True)


def _one(base: Path, name: str, seed: int, config: Mapping[str, Value], pool: Workers, console: Console) -> dict[str, Any]:
    run_dir = new_run_dir({**config, "run-dir": str(base / f"{name}-seed{seed}")})
    return simulate({**config, "run-dir": str(run_dir)}, run_dir, pool, console, f"{name}, seed {seed}")


def summarise(names: Sequence[str], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds, a row for each method."""
    rows = []
    for name in names:
        mine = [result for result in results if result["strategy"] == name]
        row: dict[str, Any] = {"strategy": name, "seconds": float(np.mean([result["seconds"] for result in mine]))}
        for kind, metrics in mine[0]["models"].items():
            for metric in metrics["mean"]:
                row[f"{kind}.{metric}"] = _spread([result["models"][kind]["mean"][metric] for result in mine])
            worst = "accuracy" if "accuracy" in metrics["mean"] else "loss"
            pick = min if worst == "accuracy" else max
            row[f"{kind}.worst-{worst}"] = _spread(
                [pick(client[worst] for client in result["models"][kind]["clients"].values() if worst in client) for result in mine]
            )
        rows.append(row)
    return rows


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


def comparison_table(rows: Sequence[Mapping[str, Any]], task: str, seeds: Sequence[int]) -> Table:
    metric = "accuracy" if any("personal.accuracy" in row for row in rows) else "loss"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± std over seeds {', '.join(map(str, seeds))}"
    table = Table(title=f"Test {metric} on {task}, {seed_text}")
    table.add_column("strategy")
    columns = {
        f"personal.{metric}": "personal",
        f"personal.{metric}-weighted": "by samples",
        f"personal.worst-{metric}": "worst client",
        f"global.{metric}": "global",
    }
    for title in columns.values():
        table.add_column(title, justify="right")
    table.add_column("seconds", justify="right")
    for row in rows:
        table.add_row(row["strategy"], *[_cell(row.get(key), metric, len(seeds)) for key in columns], f"{row['seconds']:.1f}")
    return table


def _cell(value: Mapping[str, float] | None, metric: str, seeds: int) -> str:
    if value is None:
        return "-"
    scale = 100 if metric == "accuracy" else 1
    text = f"{value['mean'] * scale:.2f}"
    return f"{text} ± {value['std'] * scale:.2f}" if seeds > 1 else text
