"""Several methods and seeds on the same data, one table; or a preset, one table per cell."""

import itertools
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
from coterie.keeping import comparison_dir, kept_run
from coterie.mechanisms import compare_mechanisms
from coterie.presets import FIRST, PLAIN, PRESETS, Estimators, Mechanisms, Methods, Preset
from coterie.progress import Shown, progress_of
from coterie.rows import Rows
from coterie.runs import Comparison, Run
from coterie.runtime.simulation import Workers
from coterie.server.checkpoints import write_json
from coterie.server.report import chart, write_comparison
from coterie.simulate import configuration, names_of_clients, prepare, worker_pool
from coterie.strategies.registry import default_config, resolve
from coterie.strategies.registry import names as method_names
from coterie.summary import comparison_table, in_units, metric_of, place, summarise, sweep_table
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.wire.attack import AttackSettings, bad_clients
from coterie.wire.config import RunConfig, Value, choose, split_sections
from coterie.wire.errors import ConfigError, RunFailed
from coterie.written import write_tables

MOST_NAMED = 8  # clients with names of their own that have columns
NOT_SWEPT = {
    "strategy": "name several strategies",
    "seed": "give several seeds",
    "run-dir": "all runs lie in one run-dir",
}


def compare(
    strategies: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    preset: str = "",
    quick: bool = False,
    run_dir: str | Path = "",
    settings: Mapping[str, Value] | None = None,
    workers: int | None = None,
    progress: Shown = True,
    cell: str = "",
    sweep: Mapping[str, Sequence[Value]] | None = None,
    **keys: Value,
) -> Comparison:
    """Run several methods on the same data, every one with every seed, and compare what they come to.

        compared = coterie.compare(["local", "fedavg", "fedper"], seeds=[1, 2, 3], task="digits", num_server_rounds=20)
        compared.to_pandas()

        coterie.compare(preset="ocf-10", quick=True)
        coterie.compare(["pfedsim"], sweep={"pfedsim.warmup": [0.0, 0.25, 0.5]}, run_dir="runs/warmup")

    Without any of these it shows what Coterie is for: `local`, `fedavg` and `pfedsv` on task `kinds`, with two seeds.
    `preset` is an experiment of a paper, `quick` its short form, `cell` one of its cells; what you give goes before what it
    says. `sweep` runs all with each value of a key, or each combination of several. A `run_dir` of the same comparison is gone on
    with: what is done there is not done again. A method whose run fails is told of in its row, and the others go on. All other
    arguments are those of `coterie.run`.
    """
    if quick and not preset:
        raise ConfigError("--quick: is for presets; add --preset NAME")
    given = configuration(keys, settings, compare, leave_out=("strategy", "seed"))
    swept = combinations(sweep or {})
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
        cells = chosen.chosen_cells(quick, {**given, **dict.fromkeys(sweep or {}, float("nan"))}, cell)
        where = str({**default_config(), **given}["data-root"])
        values, cells = chosen.with_data(values, cells, where, named=bool(cell) or "task" in given)
        planned = {
            (plan.cell, plan.strategy, plan.seed): plan
            for within, own in cells.items()
            for add in swept
            for name in names
            for seed in numbers
            for of_method in [chosen.of_methods.get(name, {})]
            for told in [{**values, **own, **of_method, **given, **add, "strategy": name, "seed": seed}]
            for plan in [Planned(within, seed, prepare(told), add)]
        }
        return compare_methods(preset, chosen, list(planned.values()), workers, progress)
    for key, told in (("strategies", strategies), ("cell", cell), ("sweep", sweep)):
        if told:
            raise ConfigError(f"{key}: preset {preset!r} does not compare methods; leave it out")
    if isinstance(chosen, Estimators):
        return compare_estimators(preset, chosen, {**values, **given}, numbers)
    assert isinstance(chosen, Mechanisms)
    return compare_mechanisms(preset, chosen, {**values, **given}, numbers, workers, progress)


def _some(key: str, given: Sequence[Any] | None, usual: Sequence[Any]) -> list[Any]:
    if given is not None and (isinstance(given, str) or not given):
        raise ConfigError(f"{key} = {given!r}: give a list of at least one")
    return list(dict.fromkeys(usual if given is None else given))


def combinations(sweep: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """All combinations of the values of these keys; without a key there is one."""
    for key, instead in NOT_SWEPT.items():
        if key in sweep:
            raise ConfigError(f"sweep = {key!r}: {instead}")
    several = {key.replace("_", "-"): _some(f"sweep {key}", values, ()) for key, values in sweep.items()}
    return [dict(zip(several, values, strict=True)) for values in itertools.product(*several.values())]


@dataclass(frozen=True)
class Planned:
    within: str  # the preset's cell
    seed: int
    config: Mapping[str, Value]
    swept: Mapping[str, Value]

    @property
    def strategy(self) -> str:
        return str(self.config["strategy"])

    @property
    def sweep(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.swept.items())

    @property
    def cell(self) -> str:
        return ",".join(text for text in (self.within, self.sweep) if text)

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
    first = {plan.cell: plan for plan in reversed(planned)}
    first = {cell: first[cell] for cell in dict.fromkeys(plan.cell for plan in planned)}
    with worker_pool(workers) as pool:
        base = comparison_dir(planned[0].config, name)
        results = [(plan, *_result_of(plan, base, pool, progress)) for plan in planned]
    called = {cell: client_names(plan.config) for cell, plan in first.items()}
    rows = {
        cell: summarise(names, [told for plan, told, _ in results if plan.cell == cell], called[cell]) for cell in first
    }
    for cell, several in rows.items():
        metric = metric_of(several, planned[0].config, preset)
        several.sort(key=lambda row: place(row, metric, planned[0].config))
        bad = {plan.seed: bad_in(plan.config) for plan in planned if plan.cell == cell}
        found = gains([told for plan, told, _ in results if plan.cell == cell], metric, bad)
        for row in several:
            row.update({"gain": found[row["strategy"]]} if row["strategy"] in found else {})
            if figure := preset.paper.get((str(first[cell].config["task"]), cell, row["strategy"])):
                row["paper"] = in_units(figure, metric)
    if not any("seconds" in row for cell in rows.values() for row in cell):
        raise RunFailed(f"no run came to its end. The first one: {results[0][1]['failed']}")
    tables, charts = [], []
    for cell, plan in first.items():
        metric, task = metric_of(rows[cell], planned[0].config, preset), str(plan.config["task"])
        if not plan.swept:
            shown = list(called[cell].values())
            tables.append(comparison_table(rows[cell], cell, task, seeds, metric, preset, shown))
        ended = [(plan.strategy, run) for plan, _, run in results if run and plan.cell == cell]
        lines = {name: [_means_by_round(run, metric) for mine, run in ended if mine == name] for name in names}
        if any(len(line) > 1 for several in lines.values() for line in several):
            title = "Every method over the rounds" + (f": {cell}" if cell else "")
            charts.append(chart(title, "round", f"test {metric}", {n: _over_seeds(s) for n, s in lines.items() if s}))
    for within in dict.fromkeys(plan.within for plan in planned if plan.swept):
        cells = {plan.sweep: rows[cell] for cell, plan in first.items() if plan.within == within}
        metric = metric_of(next(iter(cells.values())), planned[0].config, preset)
        tables.append(sweep_table(cells, within or str(planned[0].config["task"]), seeds, metric, preset))
    runs = [run for *_, run in results if run]
    if preset.communication:
        figures = communication(runs)
        write_json(base / "communication.json", figures)
        tables.append(communication_table(figures))
    page: dict[str, Any] = {
        "title": preset.title,
        "tables": [asdict(table) for table in tables],
        "charts": charts,
        "settings": sorted(_common([plan.config for plan in planned]).items()),
    }
    tasks = {cell: str(plan.config["task"]) for cell, plan in first.items()}
    alone = not name and list(rows) == [""]
    told = {"task": tasks[""], "rows": rows[""]} if alone else {"task": tasks, "rows": rows}
    write_json(base / "comparison.json", {**told, "seeds": seeds, "page": page})
    write_comparison(base / "report.html", {run.path: plan.cell for plan, _, run in results if run}, **page)
    flat = Rows(row if alone else {"cell": cell, **row} for cell, several in rows.items() for row in several)
    write_tables(base, flat, tables)
    return Comparison(base, flat, tables, runs)


def _result_of(plan: Planned, base: Path, pool: Workers, shown: Shown) -> tuple[dict[str, Any], Run | None]:
    run_dir = base / plan.cell.replace("/", "_") / f"{plan.strategy}-seed{plan.seed}"
    with progress_of(shown, plan.title, plan.config) as progress:
        try:
            run = kept_run(plan.config, run_dir, pool, progress)
        except RunFailed as failure:  # what a method comes to is the question: the others go on
            progress.say(f"{plan.title}: failed: {failure}", style="red")
            return {"strategy": plan.strategy, "seed": plan.seed, "failed": str(failure)}, None
    return run.result | {"seconds": run.seconds, "findings": run.findings, **costs(run)}, run


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
