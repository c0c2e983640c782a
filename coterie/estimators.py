"""Preset shapleyfl-table3: how far estimators of the Shapley value are from it, on a real game.

Ten clients train, the last round's game is solved exactly, and every estimator plays it again with smaller budgets. The error
is that of the normalised values (NSV), squared, averaged over clients and draws.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coterie.client.data import partitioned
from coterie.games.shapley import estimate, normalise, shapley_from_table
from coterie.keeping import check_same, comparison_dir
from coterie.manners import tame_torch
from coterie.papers import SHAPLEYFL_TABLE3, SHAPLEYFL_TABLE3_HEAD
from coterie.preset import Estimators
from coterie.rows import Rows, Table
from coterie.runs import Comparison
from coterie.server.checkpoints import write_json
from coterie.server.report import write_comparison
from coterie.simulate import prepare
from coterie.strategies.registry import parse_config
from coterie.strategies.server_game import mixture, server_samples
from coterie.tasks.coalition_models import CoalitionModels
from coterie.tasks.models import build_network
from coterie.tasks.parts import average
from coterie.tasks.training import Sgd, chosen_samples, train
from coterie.wire.arrays import Parts
from coterie.wire.config import RunConfig, Value
from coterie.wire.cores import usable_cores
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.randomness import derive_seed, generator
from coterie.written import write_tables

ESTIMATORS = ("mc", "tmc", "dmc", "cc")
BUDGETS = (120, 240, 480, 960)
DRAWS = 100


@tame_torch()
def compare_estimators(name: str, preset: Estimators, values: Mapping[str, Value], seeds: Sequence[int]) -> Comparison:
    if len(seeds) > 1:
        raise ConfigError(f"seeds = {list(seeds)}: this preset plays one game, many times; give one seed")
    prepared = prepare({**values, "strategy": "afedsv", "seed": seeds[0]})
    config, _ = parse_config(prepared)
    base = comparison_dir(prepared, name)
    table = kept_game(prepared, base)
    exact = normalise(shapley_from_table(table))
    if exact is None:
        raise RunFailed("all clients are worth the same in this game; take other data, more rounds or another seed")
    errors = {method: [nsv_error(method, budget, table, exact) for budget in BUDGETS] for method in ESTIMATORS}
    rows = {method: dict(zip(map(str, BUDGETS), found, strict=True)) for method, found in errors.items()}
    shown = errors_table(errors, config, len(table))
    tables = [shown, paper_table(config.task)] if paper_table(config.task).rows else [shown]
    page: dict[str, Any] = {
        "title": preset.title,
        "tables": [asdict(table) for table in tables],
        "settings": sorted(prepared.items()),
    }
    told = {"task": config.task, "seed": config.seed, "draws": DRAWS, "rows": rows, "page": page}
    write_json(base / "comparison.json", told)
    write_comparison(base / "report.html", {}, **page)
    flat = Rows({"estimator": method, **found} for method, found in rows.items())
    write_tables(base, flat, tables)
    return Comparison(base, flat, tables)


def kept_game(prepared: Mapping[str, Value], base: Path) -> np.ndarray:
    """The game of this configuration, which is played once."""
    path = base / "game.json"
    if path.is_file():
        before = json.loads(path.read_text())
        check_same(before["config"], prepared, base)
        return np.array(before["utilities"])
    utilities = game_of(parse_config(prepared)[0])
    write_json(path, {"config": dict(prepared), "utilities": utilities.tolist()})
    return utilities


def game_of(config: RunConfig) -> np.ndarray:
    """Utilities of all coalitions in the last of `num-server-rounds` rounds of FedAvg, by bit mask."""
    dataset, parts = partitioned(config, config.num_clients)
    shape = tuple(dataset.x.shape[1:])
    network = build_network(config.model, shape, dataset.num_classes, seed=derive_seed(config.seed, "model"))
    base = network.dump()
    thetas: list[Parts] = []
    for server_round in range(1, config.num_server_rounds + 1):
        if thetas:
            base = average(thetas, np.ones(len(thetas)))
        thetas = []
        for client, indices in enumerate(parts):
            network.load(base)
            samples = chosen_samples(dataset, indices, "cpu")
            rng = generator(config.seed, "train", server_round, str(client))
            train(network, samples, Sgd(config.learning_rate, config.batch_size), epochs=config.local_epochs, rng=rng)
            thetas.append(network.dump())
    players = len(thetas)
    models = CoalitionModels(network, server_samples(config, "cpu"), threads=usable_cores())
    members = [frozenset(i for i in range(players) if mask >> i & 1) for mask in range(1 << players)]
    return models.utilities([base, *thetas], np.array([mixture(some, players, 1.0) for some in members]))


def nsv_error(method: str, budget: int, table: np.ndarray, exact: np.ndarray) -> float:
    total = 0.0
    for seed in range(DRAWS):
        found = estimate(
            lambda coalition: float(table[sum(1 << player for player in coalition)]),
            len(exact),
            method=method,
            budget=budget,
            rng=np.random.default_rng(seed),
        )
        scaled = normalise(found.values)
        total += float(np.mean(((scaled if scaled is not None else 0.5) - exact) ** 2))
    return total / DRAWS


def errors_table(errors: Mapping[str, list[float]], config: RunConfig, coalitions: int) -> Table:
    return Table(
        f"Mean squared error of normalised Shapley values, {config.task}, {config.num_clients} clients",
        ["estimator", *[f"{budget} evaluations" for budget in BUDGETS]],
        [[method, *[f"{error:.5f}" for error in found]] for method, found in errors.items()],
        f"exact: 0 with {coalitions - 2} evaluations. Paper: Sun et al. 2023, Table 3",
    )


def paper_table(task: str) -> Table:
    """What the paper has for this task: another game, so that only the order of the estimators and the trend compare."""
    return Table(
        f"The paper's errors, {task}: 20 of 100 clients, round 1, gradient poisoning",
        ["estimator", *[f"{number} permutations" for number in SHAPLEYFL_TABLE3_HEAD]],
        [[name, *map(str, found)] for (where, name), found in SHAPLEYFL_TABLE3.items() if where == task],
        "Sun et al. 2023, Table 3",
    )
