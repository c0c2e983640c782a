"""Several methods and seeds on the same data, one table; or a preset, one table per cell."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.client.data import partitioned
from coterie.client.participant import pick_device
from coterie.communication import communication, communication_table
from coterie.estimators import compare_estimators
from coterie.gains import gains
from coterie.mechanisms import compare_mechanisms
from coterie.presets import FIRST, PLAIN, PRESETS, Estimators, Mechanisms, Methods, Preset
from coterie.progress import Shown, progress_of
from coterie.rows import Rows, Table
from coterie.runs import Comparison, Run
from coterie.runtime.simulation import Workers
from coterie.server.checkpoints import write_json
from coterie.server.report import chart, write_comparison
from coterie.server.rundir import new_run_dir
from coterie.simulate import configuration, names_of_clients, prepare, simulate, worker_pool
from coterie.strategies.registry import default_config, resolve
from coterie.strategies.registry import names as method_names
from coterie.tasks.metrics import LOWER_IS_BETTER, UNBOUNDED
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.wire.attack import AttackSettings, bad_clients
from coterie.wire.config import RunConfig, Value, choose, split_sections
from coterie.wire.errors import ConfigError, RunFailed

SHOWN_FACTS = {  # of findings, beside the truth, and how their columns end
    "correlation-with-label-overlap": "overlap-correlation",
    "precision": "precision",
    "recall": "recall",
}
MOST_NAMED = 8  # clients with names of their own that have columns


def compare(
    strategies: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    preset: str = "",
    quick: bool = False,
    run_dir: str | Path = "",
    settings: Mapping[str, Value] | None = None,
    workers: int | None = None,
    progress: Shown = True,
    **keys: Value,
) -> Comparison:
    """Run several methods on the same data, every one with every seed, and compare what they come to.

        compared = coterie.compare(["local", "fedavg", "fedper"], seeds=[1, 2, 3], task="digits", num_server_rounds=20)
        compared.to_pandas()

        coterie.compare(preset="ocf-10", quick=True)

    Without any of these it shows what Coterie is for: `local`, `fedavg` and `pfedsv` on task `kinds`, with two seeds.
    `preset` is an experiment of a paper, `quick` its short form; what you give goes before what it says. A method whose run
    fails is told of in its row, and the others go on. All other arguments are those of `coterie.run`.
    """
    if quick and not preset:
        raise ConfigError("--quick: is for presets; add --preset NAME")
    given = configuration(keys, settings, compare, leave_out=("strategy", "seed"))
    first = strategies is None and seeds is None and not {"task", "data"} & given.keys()
    plain = FIRST if first else PLAIN
    chosen: Preset = PRESETS[choose("preset", preset, list(PRESETS))] if preset else plain
    values, usual_seeds = chosen.chosen(quick)
    values |= {"run-dir": str(run_dir), "baseline": "none"}  # to compare with training alone, name `local` as a method
    numbers = _some("seeds", seeds, usual_seeds)
    if isinstance(chosen, Methods):
        names = _some("strategies", strategies, chosen.strategies.split(","))
        for name in names:
            if name.endswith(".py"):
                resolve(RunConfig(strategy=name))  # before any run: its settings may be given to all of them
            else:
                choose("strategies", name, ["auto", *method_names()])
        cells = chosen.chosen_cells(quick, given)
        where = str({**default_config(), **given}["data-root"])
        values, cells = chosen.with_data(values, cells, [str(given["task"])] if "task" in given else [], where)
        planned = {
            (plan.cell, plan.strategy, plan.seed): plan
            for cell, different in cells.items()
            for name in names
            for seed in numbers
            for plan in [Planned(cell, seed, prepare({**values, **different, **given, "strategy": name, "seed": seed}))]
        }
        return compare_methods(preset, chosen, list(planned.values()), workers, progress)
    if strategies is not None:
        raise ConfigError(f"strategies: preset {preset!r} does not compare methods; leave them out")
    if isinstance(chosen, Estimators):
        return compare_estimators(chosen, {**values, **given}, numbers)
    assert isinstance(chosen, Mechanisms)
    return compare_mechanisms(preset, chosen, {**values, **given}, numbers, workers, progress)


def _some(key: str, given: Sequence[Any] | None, usual: Sequence[Any]) -> list[Any]:
    if given is not None and (isinstance(given, str) or not given):
        raise ConfigError(f"{key} = {given!r}: give a list of at least one")
    return list(dict.fromkeys(usual if given is None else given))


@dataclass(frozen=True)
class Planned:
    cell: str
    seed: int
    config: Mapping[str, Value]

    @property
    def strategy(self) -> str:
        return str(self.config["strategy"])

    @property
    def title(self) -> str:
        return f"{self.strategy}, seed {self.seed}" + (f", {self.cell}" if self.cell else "")


def compare_methods(
    name: str, preset: Methods, planned: Sequence[Planned], workers: int | None, progress: Shown
) -> Comparison:
    """`name` is that of the preset, or empty."""
    pick_device(str(planned[0].config["device"]))
    names = list(dict.fromkeys(plan.strategy for plan in planned))
    seeds = list(dict.fromkeys(plan.seed for plan in planned))
    tasks = {plan.cell: str(plan.config["task"]) for plan in planned}
    with worker_pool(workers) as pool:
        base = new_run_dir({**planned[0].config, "strategy": name or "compare"})
        results = [(plan, *_result_of(plan, base, pool, progress)) for plan in planned]
    called = {plan.cell: client_names(plan.config) for plan in planned}
    rows = {
        cell: summarise(names, [told for plan, told, _ in results if plan.cell == cell], called[cell]) for cell in tasks
    }
    for cell, several in rows.items():
        metric = metric_of(several, planned[0].config, preset)
        several.sort(key=lambda row: place(row, metric, planned[0].config))
        bad = {plan.seed: bad_in(plan.config) for plan in planned if plan.cell == cell}
        found = gains([told for plan, told, _ in results if plan.cell == cell], metric, bad)
        for row in several:
            row.update({"gain": found[row["strategy"]]} if row["strategy"] in found else {})
    if not any("seconds" in row for cell in rows.values() for row in cell):
        raise RunFailed(f"no run came to its end. The first one: {results[0][1]['failed']}")
    written = (
        {"task": tasks, "seeds": seeds, "rows": rows} if name else {"task": tasks[""], "seeds": seeds, "rows": rows[""]}
    )
    tables, charts = [], []
    for cell, task in tasks.items():
        metric = metric_of(rows[cell], planned[0].config, preset)
        tables.append(comparison_table(rows[cell], cell, task, seeds, metric, preset, list(called[cell].values())))
        ended = [(plan.strategy, run) for plan, _, run in results if run and plan.cell == cell]
        lines = {name: [_means_by_round(run, metric) for mine, run in ended if mine == name] for name in names}
        if any(len(line) > 1 for several in lines.values() for line in several):
            title = "Every method over the rounds" + (f": {cell}" if cell else "")
            charts.append(chart(title, "round", f"test {metric}", {n: _over_seeds(s) for n, s in lines.items() if s}))
    runs = [run for *_, run in results if run]
    if preset.communication:
        figures = communication(runs)
        write_json(base / "communication.json", figures)
        tables.append(communication_table(figures))
    shown: dict[str, Any] = {
        "title": preset.title,
        "tables": [asdict(table) for table in tables],
        "charts": charts,
        "settings": sorted(_common([plan.config for plan in planned]).items()),
    }
    write_json(base / "comparison.json", {**written, "page": shown})
    write_comparison(base / "report.html", {run.path: plan.cell for plan, _, run in results if run}, **shown)
    flat = Rows({"cell": cell, **row} if name else row for cell, several in rows.items() for row in several)
    return Comparison(base, flat, tables, runs)


def _result_of(plan: Planned, base: Path, pool: Workers, shown: Shown) -> tuple[dict[str, Any], Run | None]:
    run_dir = new_run_dir({**plan.config, "run-dir": str(base / plan.cell / f"{plan.strategy}-seed{plan.seed}")})
    started = time.monotonic()
    with progress_of(shown, plan.title, plan.config) as progress:
        try:
            run = simulate({**plan.config, "run-dir": str(run_dir)}, run_dir, pool, progress)
        except RunFailed as failure:  # what a method comes to is the question: the others go on
            progress.say(f"{plan.title}: failed: {failure}", style="red")
            return {"strategy": plan.strategy, "seed": plan.seed, "failed": str(failure)}, None
    return run.result | {"seconds": time.monotonic() - started, "findings": run.findings, **costs(run)}, run


def costs(run: Run) -> dict[str, float]:
    """Bytes that travelled, and the clients' CPU seconds in training."""
    events = run.events
    moved = sum(sum(event[key].values()) for event in events for key in ("bytes-up", "bytes-down"))
    return {
        "bytes": float(moved),
        "cpu-seconds": sum(told.get("cpu-seconds", 0.0) for event in events for told in event["train"].values()),
    }


def bad_in(config: Mapping[str, Value]) -> set[str]:
    """Clients that do harm by the run's configuration: what they gain does not count."""
    attack = AttackSettings.parse(split_sections(config)[1].get("attack", {}), prefix="attack.")
    names = names_of_clients(RunConfig.parse(split_sections(config)[0]))
    return bad_clients(attack, names, int(config["seed"])) if names else set()


def _means_by_round(run: Run, metric: str) -> dict[int, float]:
    name = f"personal.{metric}"
    return {event["round"]: event["mean"][name] for event in run.events if name in event.get("mean", {})}


def _over_seeds(seeds: Sequence[Mapping[int, float]]) -> tuple[list[int], list[float]]:
    """The mean over seeds, in the rounds that all of them have."""
    rounds = sorted(set.intersection(*[set(seed) for seed in seeds]))
    return rounds, [float(np.mean([seed[number] for seed in seeds])) for number in rounds]


def _common(configs: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that all runs have alike."""
    return {key: value for key, value in configs[0].items() if all(other[key] == value for other in configs)}


def client_names(config: Mapping[str, Value]) -> dict[str, str]:
    """What the data call their clients, by the names that they have in a run; none where a table has no room for them."""
    settings = RunConfig.parse(split_sections(config)[0])
    if partition_kind(spec_of(settings), settings.partition) != "natural" or settings.num_clients > MOST_NAMED:
        return {}
    owners = partitioned(settings, settings.num_clients)[0].owners
    return dict(zip(names_of_clients(settings), owners, strict=True))


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
    paper = {name: value for (where, which, name), value in preset.paper.items() if (where, which) == (task, cell)}
    scale = 1 if metric in UNBOUNDED else 100
    where = task if cell in ("", task) else f"{task}, {cell}"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± std over seeds {', '.join(map(str, seeds))}"
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
        cells += [f"{paper[row['strategy']]:.2f}" if row["strategy"] in paper else "-"] if paper else []
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
    title, caption = f"Test {metric} on {where}, {seed_text}", f"paper: {preset.source}" if paper else preset.source
    return Table(title, [*head, *(["MB", "CPU s"] if preset.costs else []), "seconds"], texts, caption)


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
