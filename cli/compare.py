"""`coterie compare`: several methods and seeds on the same data, one table; or a preset, one table per cell."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from coterie.cli.communication import communication, communication_table
from coterie.cli.estimators import compare_estimators
from coterie.cli.mechanisms import compare_mechanisms
from coterie.cli.presets import PRESETS, Preset
from coterie.cli.run import default_workers, prepare, simulate
from coterie.client.participant import pick_device
from coterie.runtime.simulation import Workers
from coterie.server.findings import found
from coterie.server.pictures import compared_curves
from coterie.server.report import encoded, read_run, write_page
from coterie.server.rundir import new_run_dir, write_json
from coterie.strategies.registry import names as method_names
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError, RunFailed
from rich.console import Console
from rich.table import Table

DEFAULT_STRATEGIES, DEFAULT_SEEDS = "local,fedavg,fedper", "1"
SHOWN_FACTS = {  # of findings, and what their columns are called
    "correlation-with-label-overlap": "overlap-correlation",
    "precision": "precision",
    "recall": "recall",
}
WIDEST = 200  # columns of a table that goes to a file
Run = tuple[str, str, int, dict[str, Value]]  # cell, strategy, seed, configuration


def compare_command(
    values: Mapping[str, Value],
    strategies: str | None,
    seeds: str | None,
    preset_name: str,
    quick: bool,
    workers: int | None,
) -> None:
    preset = PRESETS[choose("preset", preset_name, list(PRESETS))] if preset_name else None
    if quick and not preset:
        raise ConfigError("--quick: is for presets; add --preset NAME")
    given = values
    if preset:
        values = {**preset.values, **(preset.quick if quick else {})}
        if preset.estimators:
            return compare_estimators({**values, **given})
        if preset.mechanisms:
            seeds = seeds or ("1" if quick else preset.seeds)
            return compare_mechanisms(preset_name, {**values, **given}, parse_seeds(seeds), workers)
        strategies, seeds = strategies or preset.strategies, seeds or ("1" if quick else preset.seeds)
    names = [
        choose("strategies", name, method_names())
        for name in parse_list("strategies", strategies or DEFAULT_STRATEGIES)
    ]
    numbers = parse_seeds(seeds or DEFAULT_SEEDS)
    cells = preset.cells if preset else {"": {}}
    if preset and quick and preset.quick_cells:
        cells = {cell: preset.cells[cell] for cell in preset.quick_cells}
    runs: list[Run] = [
        (cell, name, seed, prepare({**values, **different, **given, "strategy": name, "seed": seed}))
        for cell, different in cells.items()
        for name in names
        for seed in numbers
    ]
    pick_device(str(runs[0][3]["device"]))
    console = Console(stderr=True)
    pool = Workers(default_workers() if workers is None else workers)
    try:
        base = new_run_dir({**runs[0][3], "strategy": preset_name or "compare"})
        rows = {cell: summarise(names, _all_of(cell, runs, base, pool, console)) for cell in cells}
    finally:
        pool.close()
    failures = [row["failed"] for cell in rows.values() for row in cell if "seconds" not in row]
    if len(failures) == len(cells) * len(names):
        raise RunFailed(f"no run came to its end. The first one: {next(iter(failures[0].values()))}")
    tasks = {cell: str(config["task"]) for cell, _, _, config in runs}
    write_json(
        base / "comparison.json",
        {"task": tasks if preset else tasks[""], "seeds": numbers, "rows": rows if preset else rows[""]},
    )
    tables = [
        comparison_table(rows[cell], cell, task, numbers, _paper_column(preset, task, cell) if preset else {}, preset)
        for cell, task in tasks.items()
    ]
    terminal = Console()
    if not terminal.is_terminal:
        terminal.width = WIDEST
    for table in tables:
        terminal.print(printed(table))
    if preset and preset.communication:
        folders = {(cell, name): base / cell / f"{name}-seed{seed}" for cell, name, seed, _ in runs}
        figures = communication({which: path for which, path in folders.items() if _ended(path)})
        write_json(base / "communication.json", figures)
        Console().print(communication_table(figures))
    write_page(
        base,
        title=preset.title if preset else f"{', '.join(names)} on {tasks['']}",
        about=f"{len(runs)} runs: {len(names)} methods, seeds {', '.join(map(str, numbers))}",
        finished=True,
        tables=tables,
        pictures=_curves(base, cells, names, numbers, tables),
        settings=sorted(_common(config for *_, config in runs).items()),
    )
    console.print(f"run directory: {base}", highlight=False, soft_wrap=True)


def _curves(
    base: Path, cells: Iterable[str], names: Sequence[str], seeds: Sequence[int], tables: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """A picture for each cell, of runs that came to an end and were evaluated more than once."""
    pictures = []
    for cell, table in zip(cells, tables, strict=True):
        key = f"personal.{table['metric']}"
        folders = {name: [base / cell / f"{name}-seed{seed}" for seed in seeds] for name in names}
        ended = {name: [path for path in mine if _ended(path)] for name, mine in folders.items()}
        lines = {name: [_means_by_round(path, key) for path in mine] for name, mine in ended.items() if mine}
        if any(len(seed) > 1 for line in lines.values() for seed in line):
            title = "Over the rounds" + (f": {cell}" if cell else "")
            pictures.append((title, encoded(compared_curves(lines, table["metric"]))))
    return pictures


def _ended(run_dir: Path) -> bool:
    """Whether the run came to its end."""
    return (run_dir / "result.json").exists()


def _means_by_round(run_dir: Path, key: str) -> dict[int, float]:
    return {event["round"]: event["mean"][key] for event in read_run(run_dir)[1] if "mean" in event}


def _common(configs: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that all runs have alike."""
    first, *others = configs
    return {key: value for key, value in first.items() if all(other[key] == value for other in others)}


def parse_list(key: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ConfigError(f"{key} = {text!r}: name at least one, separated by commas")
    return list(dict.fromkeys(items))


def parse_seeds(text: str) -> list[int]:
    items = parse_list("seeds", text)
    if not all(item.isdecimal() for item in items):
        raise ConfigError(f"seeds = {text!r}: write whole numbers separated by commas, for example 1,2,3")
    return [int(item) for item in items]


def _all_of(cell: str, runs: Sequence[Run], base: Path, pool: Workers, console: Console) -> list[dict[str, Any]]:
    results = []
    for _, name, seed, config in (run for run in runs if run[0] == cell):
        run_dir = new_run_dir({**config, "run-dir": str(base / cell / f"{name}-seed{seed}")})
        title = f"{name}, seed {seed}" + (f", {cell}" if cell else "")
        try:
            result = simulate({**config, "run-dir": str(run_dir)}, run_dir, pool, console, title)
            results.append(result | {"findings": found(run_dir)})
        except RunFailed as failure:  # what a method comes to is the question: the others go on
            console.print(f"{title}: failed: {failure}", style="red", highlight=False, soft_wrap=True)
            results.append({"strategy": name, "seed": seed, "failed": str(failure)})
    return results


def summarise(names: Sequence[str], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds that came to an end, a row for each method; and why the others did not."""
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
        row["seconds"] = float(np.mean([result["seconds"] for result in mine]))
        for kind, metrics in mine[0]["models"].items():
            for metric in metrics["mean"]:
                row[f"{kind}.{metric}"] = _spread([result["models"][kind]["mean"][metric] for result in mine])
                pick = max if metric.startswith("loss") else min
                if not metric.endswith("-weighted"):
                    row[f"{kind}.worst-{metric}"] = _spread([pick(_values_of(result, kind, metric)) for result in mine])
        findings = [result["findings"] for result in mine]
        for name_of_finding in findings[0]:
            for fact, column in SHOWN_FACTS.items():
                known = [
                    f[name_of_finding].facts[fact] for f in findings if f[name_of_finding].facts.get(fact) is not None
                ]
                if known:
                    row[f"{name_of_finding}-{column}"] = _spread(known)
    return rows


def _values_of(result: Mapping[str, Any], kind: str, metric: str) -> list[float]:
    return [client[metric] for client in result["models"][kind]["clients"].values() if metric in client]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


def _paper_column(preset: Preset, task: str, cell: str) -> dict[str, float]:
    return {name: value for (where, which, name), value in preset.paper.items() if (where, which) == (task, cell)}


def comparison_table(
    rows: Sequence[Mapping[str, Any]],
    cell: str,
    task: str,
    seeds: Sequence[int],
    paper: Mapping[str, float],
    preset: Preset | None,
) -> dict[str, Any]:
    """The table of one cell: title, head, rows of text, and what it is compared by."""
    wanted = preset.metric.removesuffix("-weighted") if preset else "accuracy"
    metric = wanted if any(f"personal.{wanted}" in row for row in rows) else "loss"
    scale = 1 if metric == "loss" else 100
    where = task if cell in ("", task) else f"{task}, {cell}"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± std over seeds {', '.join(map(str, seeds))}"
    columns = {
        f"personal.{metric}": "personal",
        f"personal.{metric}-weighted": "by samples",
        f"personal.worst-{metric}": "worst client",
        f"global.{metric}": "global",
    }
    correlations = sorted({key for row in rows for key in row if key.endswith("-overlap-correlation")})
    rates = [key for key in ("suspects-precision", "suspects-recall") if any(key in row for row in rows)]
    head = ["strategy", *columns.values(), *[f"{key.split('-')[0]} ~ overlap" for key in correlations]]
    head += [key.split("-")[1] for key in rates]
    if paper:
        head.append("paper (by samples)" if preset and preset.metric.endswith("weighted") else "paper")
    texts = []
    for row in rows:
        cells = [_cell(row.get(key), scale, len(seeds)) for key in columns]
        cells += [_cell(row.get(key), 1, len(seeds)) for key in [*correlations, *rates]]
        cells += [f"{paper[row['strategy']]:.2f}" if row["strategy"] in paper else "-"] if paper else []
        if "failed" in row:
            cells[0] = (
                f"{len(row['failed'])} of {len(seeds)} failed"
                if "seconds" not in row
                else f"{cells[0]} ({len(row['failed'])} failed)"
            )
        texts.append([row["strategy"], *cells, f"{row['seconds']:.1f}" if "seconds" in row else "-"])
    source = preset.source if preset else ""
    return {
        "title": f"Test {metric} on {where}, {seed_text}",
        "head": [*head, "seconds"],
        "rows": texts,
        "caption": f"paper: {source}" if paper else source,
        "metric": metric,
    }


def printed(table: Mapping[str, Any]) -> Table:
    shown = Table(title=table["title"], caption=table["caption"] or None)
    for name in table["head"]:
        first = name == "strategy"
        shown.add_column(name, justify="left" if first else "right", no_wrap=first, overflow="fold")
    for row in table["rows"]:
        shown.add_row(*row)
    return shown


def _cell(value: Mapping[str, float] | None, scale: int, seeds: int) -> str:
    if value is None:
        return "-"
    text = f"{value['mean'] * scale:.2f}"
    return f"{text} ± {value['std'] * scale:.2f}" if seeds > 1 else text
