"""One method, simulated on this machine."""

import contextlib
import difflib
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from coterie.client.data import has_table, partitioned
from coterie.client.participant import pick_device
from coterie.folds import run_folds
from coterie.manners import tame_torch
from coterie.page import Page, beside
from coterie.progress import RunProgress, Shown, log_to, progress_of
from coterie.runs import Run
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import checked_config
from coterie.server.app import run as run_rounds
from coterie.server.observers import makers
from coterie.server.rundir import new_run_dir
from coterie.strategies.method import Method
from coterie.strategies.observer import Observer
from coterie.strategies.registry import parse_config, register
from coterie.strategies.server_game import server_samples
from coterie.table_data import Tables, look_at
from coterie.tasks.chart import label_overlap, label_table
from coterie.tasks.datasets import load_dataset
from coterie.tasks.foreign import foreign_set
from coterie.tasks.own import describe
from coterie.tasks.resolve import dealt_names, number_of_clients, partition_kind, spec_of
from coterie.tasks.server_data import is_amount
from coterie.tasks.sources import client_name, is_table_data, named_files, pool_of, several
from coterie.tasks.spec import same_kind
from coterie.wire.attack import AttackSettings, bad_clients
from coterie.wire.config import RunConfig, Value, split_sections
from coterie.wire.cores import usable_cores
from coterie.wire.errors import ConfigError


def run(
    strategy: str | type[Method] = "auto",
    task: str = "digits",
    data: "str | Path | Tables" = "",
    run_dir: str | Path = "",
    settings: Mapping[str, Value] | None = None,
    workers: int | None = None,
    progress: Shown = True,
    observers: str | Sequence[Observer] = (),
    page: Page | None = None,
    **keys: Value,
) -> Run:
    """Run one method, simulated on this machine, and write a run directory.

        run = coterie.run("fedper", num_server_rounds=20, num_clients=8)
        run.clients.to_pandas()
        run.model("3").predict(x)

        coterie.run("pfedsv", task="own", data="measurements.csv", settings={"pfedsv.top-k": 3})

    `strategy` is a method by its name, a .py file that has one, or its class. `keys` are those of the run configuration, with
    underscores (docs/reference/settings.md); `settings` are those of a method, of `attack` and `privacy`, by their full names.
    `run_dir` must be new; "" makes one under runs/. `workers` processes do the clients' work, and results do not depend on
    their number; None is one per core, 0 none. `progress=False` is silent, "json" prints an object a line. `observers` hear
    how the run goes: names ("tensorboard,mlflow") or objects. `page=coterie.Page()` shows the run in a browser while it goes.
    Runs of several threads take turns.

    Raises CoterieError for what you can mend, and OSError for files and disks.
    """
    name = register(strategy) if isinstance(strategy, type) else strategy
    given: dict[str, Value] = {"strategy": name, "task": task, "data": str(data), "run-dir": str(run_dir)}
    if isinstance(data, Tables):
        given |= {**data.settings, "task": "own"}
    if isinstance(observers, str):
        given["observers"], observers = observers, ()
    config = prepare({**given, **configuration(keys, settings, run)})
    pick_device(str(config["device"]))
    with worker_pool(workers) as pool, contextlib.ExitStack() as stack:
        directory = new_run_dir(config)
        stack.enter_context(beside(directory, page))
        title = f"{config['strategy']} on {config['task']}"

        def one_run(values: Mapping[str, Value], place: Path) -> Run:
            name = f"{title}, fold {values['fold']}" if values["fold"] else title
            with progress_of(progress, name, config) as shown:
                return simulate(values, place, pool, shown, () if place != directory else observers)

        if not config["folds"] or config["fold"]:
            return one_run(config, directory)
        done = one_run({**config, "folds": 0}, directory)
        run_folds(config, directory, one_run)
        return done


def configuration(
    keys: Mapping[str, Value], settings: Mapping[str, Value] | None, function: object, leave_out: Sequence[str] = ()
) -> dict[str, Value]:
    """Keywords of a function of the library and its settings, as keys of the run configuration."""
    known = [name for name in RunConfig.model_fields if name not in leave_out]
    named = [*known, *getattr(function, "__annotations__", ())]
    for key in keys:
        if key.replace("-", "_") not in known:
            near = difflib.get_close_matches(key, named, n=1)
            hint = f", did you mean {near[0]!r}?" if near else "; docs/reference/settings.md has all keys of a run"
            raise ConfigError(f"{key}: there is no such keyword{hint}")
    values = {**{key.replace("_", "-"): value for key, value in keys.items()}, **(settings or {})}
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


log = logging.getLogger(__name__)
EACH_ITS_OWN = "every file or folder is a client of its own; leave partition out"


@tame_torch()
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
    if settings.pretrained:
        config["pretrained"] = str(Path(settings.pretrained).expanduser().absolute())
    if settings.server_data and not is_amount(settings.server_data):
        config["server-data"] = str(Path(settings.server_data).expanduser().absolute())
    settings, sections = parse_config(config)
    makers(settings.observers)
    attack = cast(AttackSettings, sections["attack"])
    bad_clients(attack, names_of_clients(settings), settings.seed)
    if attack.kind == "open-set":
        foreign_set(settings.task, attack.foreign, settings.data_root)
    partitioned(settings, number)
    if settings.server_data and not has_table(settings):
        server_samples(settings, "cpu")
    return config


def _describe_own_data(values: Mapping[str, Value]) -> dict[str, Value]:
    """For data of the user's own, fill in what the server must know of them."""
    values = dict(values)
    if values.get("task") == "own":
        if not values.get("data"):
            raise ConfigError("task = 'own': say where your data are, for example --data measurements.csv")
        if is_table_data(str(values["data"])):
            return _describe_tables(values)
        places = several(str(values["data"]))
        data = ",".join(f"{name}={path}" for name, path in places.items()) or str(Path(str(values["data"])).absolute())
        if places and values.get("partition", "auto") not in ("auto", "natural"):
            raise ConfigError(f"partition = {values['partition']!r}: {EACH_ITS_OWN}")
        told, shape = str(values.get("classes", "")), str(values.get("input-shape", ""))
        bad = str(values.get("bad-files", "leave-out"))
        dataset = load_dataset("own", "", data=data, classes=told, input_shape=shape, bad_files=bad)
        spec, names = describe(dataset), ",".join(dataset.label_names) if places else ""
        classes = "regression" if spec.kind == "regression" else told or names or str(spec.num_outputs)
        values |= {"data": data, "classes": classes, "input-shape": ",".join(str(size) for size in spec.input_shape)}
        if spec.natural_clients and values.get("partition", "auto") in ("auto", "natural"):
            values |= {"partition": "natural", "num-clients": len(spec.natural_clients)}
    elif values.get("data"):
        raise ConfigError(f"data = {values['data']!r}: is for your own data; add --task own")
    return values


def _describe_tables(values: Mapping[str, Value]) -> dict[str, Value]:
    """The same for tables: where they are, whose, and the classes of all of them."""
    if values.get("input-shape"):
        raise ConfigError(
            "input-shape: is for arrays and images; the features of a table follow from its columns, leave it out"
        )
    files = named_files(str(values["data"]))
    several = len(files) > 1
    data = ",".join(f"{name}={path}" for name, path in files.items()) if several else str(next(iter(files.values())))
    found = {**values, "data": data}
    config, _ = parse_config(found)
    outline = pool_of(config).outline()
    if not outline.num_classes:
        found["classes"] = "regression"
    elif not config.classes and not any("," in name for name in outline.label_names):
        found["classes"] = ",".join(outline.label_names)
    if several and config.partition not in ("auto", "natural"):
        raise ConfigError(f"partition = {config.partition!r}: {EACH_ITS_OWN}")
    if outline.owners and config.partition in ("auto", "natural"):
        found |= {"partition": "natural", "num-clients": len(outline.owners)}
    config, _ = parse_config(found)
    _, remarks, _ = look_at(config)  # whoever's table does not fit is told before the run begins
    for remark in remarks:
        log.warning("%s", remark)
    return found


def names_of_clients(config: RunConfig) -> list[str]:
    """What the clients of a simulation are called: as the owners of the data, else 0, 1, ..."""
    numbers = dealt_names(config, config.num_clients)
    if config.task != "own" or partition_kind(spec_of(config), config.partition) != "natural":
        return numbers
    owners = partitioned(config, config.num_clients)[0].owners
    named = [client_name(owner) for owner in owners]
    return named if len(set(named)) == len(named) else numbers


_alone = threading.RLock()  # clients here share networks, and workers must not be forked while a thread is in torch


def _forget_lock() -> None:
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock)


@contextmanager
def worker_pool(workers: int | None) -> Iterator[Workers]:
    """Processes for the clients, one per core if `workers` is None."""
    daemon = bool(multiprocessing.current_process().daemon)  # which may have no children
    if workers is None:
        workers = 0 if daemon else usable_cores()
    if workers and daemon:
        raise ConfigError(
            f"workers = {workers}: a daemonic process may have no others; use workers=0, or a process that is none"
        )
    if workers < 0:
        raise ConfigError(f"workers = {workers}: must be 0 or more")
    with _alone, tame_torch():
        pool = Workers(workers)
        try:
            yield pool
        finally:
            pool.close()


def simulate(
    config: Mapping[str, Value],
    run_dir: Path,
    workers: Workers,
    progress: RunProgress,
    observers: Sequence[Observer] = (),
) -> Run:
    """All rounds of a configuration that `prepare` made, in a new directory."""
    settings = RunConfig.parse(split_sections(config)[0])
    dataset, parts = partitioned(settings, int(config["num-clients"]))
    names = names_of_clients(settings)
    sizes = [len(part) for part in parts]
    grid = SimulationGrid(workers, int(config["num-clients"]), config, str(run_dir), names, sizes)
    overlap = None
    if dataset.num_classes:
        overlap = (names, label_overlap(label_table(dataset, parts)) * same_kind(settings.task, len(names)))
    with log_to(progress.console):
        run_rounds(grid, config, run_dir, [progress, *observers], overlap)
    return Run(run_dir)
