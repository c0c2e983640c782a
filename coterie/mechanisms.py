"""The presets of pFedOCF: every mechanism on the same linear clients, error by error.

Two tables. The first has expected errors in closed form, with the clients' true parameters: what the paper reports. The second
has the errors |theta - true theta|^2 of the models that simulated clients ended up with, who know nothing but their samples.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from coterie.client.data import linear_recipe, load_client_data
from coterie.games.overlap import LinearGame, coalitions_of, form
from coterie.keeping import comparison_dir, kept_run
from coterie.papers import OCF_BINS, OCF_TABLE1
from coterie.preset import Mechanisms
from coterie.progress import Shown, progress_of
from coterie.rows import Rows, Table
from coterie.runs import Comparison, Run
from coterie.server.checkpoints import write_json
from coterie.server.report import chart, write_comparison
from coterie.simulate import prepare, worker_pool
from coterie.tasks.linear import linear_parameters
from coterie.wire.config import RunConfig, Value, split_sections
from coterie.wire.errors import ConfigError
from coterie.written import write_tables

MECHANISMS = ("local", "grand", "grand-mixed", "disjoint", "overlapping")
TITLES = {"overlapping": "pfedocf"}
PAPER = "paper, 100 clients: pFedOCF worse for 0, 70 % gain for 88 %"
GREAT = 0.7  # the improvement that the paper's Table 1 counts
GAMES = 50  # games for the picture of how many sweeps they take
CURVES = 6  # models in the picture of mixing weights
Errors = dict[str, np.ndarray]  # mechanism -> error of every client


def compare_mechanisms(
    name: str,
    preset: Mechanisms,
    values: Mapping[str, Value],
    seeds: Sequence[int],
    workers: int | None,
    progress: Shown,
) -> Comparison:
    configs = {
        (mechanism, seed): prepare({**values, "strategy": "pfedocf", "seed": seed, "ocf.mechanism": mechanism})
        for mechanism in MECHANISMS
        for seed in seeds
    }
    first = configs[MECHANISMS[0], seeds[0]]
    if first["task"] != "linear":
        raise ConfigError(
            f"task = {first['task']!r}: preset {name!r} is about true parameters, which task 'linear' has"
        )
    base = comparison_dir(first, name)
    measured: list[Errors] = [{} for _ in seeds]
    runs: list[Run] = []
    with worker_pool(workers) as pool:
        for errors, seed in zip(measured, seeds, strict=True):
            for mechanism in MECHANISMS:
                config = configs[mechanism, seed]
                run_dir = base / f"{mechanism}-seed{seed}"
                with progress_of(progress, f"{mechanism}, seed {seed}", config) as shown:
                    runs.append(kept_run(config, run_dir, pool, shown))
                errors[mechanism] = true_errors(config, run_dir)
    games = {seed: true_game(configs[MECHANISMS[0], seed]) for seed in seeds}
    expected = [expected_errors(games[seed], float(first["ocf.cost"])) for seed in seeds]
    rows = {"expected": summarise(expected), "measured": summarise(measured)}
    sweeps = sweeps_of(first, games[seeds[0]])
    tables = [
        table_of(rows["expected"], f"Expected errors, true parameters, {first['num-clients']} clients", PAPER),
        bins_table(rows["expected"], "Improvement over training alone, expected errors: per cent of the clients"),
        table_of(
            rows["measured"],
            f"Errors of the trained models, {first['num-clients']} clients",
            f"sweeps until nobody moves: at most {max(sweeps)} in {len(sweeps)} games",
        ),
    ]
    page: dict[str, Any] = {
        "title": preset.title,
        "tables": [asdict(table) for table in tables],
        "charts": [
            errors_chart(measured[0]),
            sweeps_chart(sweeps),
            mixing_chart(games[seeds[0]], float(first["linear-noise"]) ** 2),
        ],
        "settings": sorted(first.items()),
    }
    told = {"task": "linear", "seeds": list(seeds), "rows": rows, "sweeps": sweeps, "page": page}
    write_json(base / "comparison.json", told)
    cells = {run.path: TITLES.get(m, m) for m in MECHANISMS for run in runs if run.config["ocf.mechanism"] == m}
    write_comparison(base / "report.html", cells, **page)
    flat = Rows({"errors": kind, **row} for kind in rows for row in rows[kind])
    write_tables(base, flat, tables)
    return Comparison(base, flat, tables, runs)


def settings_of(config: Mapping[str, Value]) -> RunConfig:
    return RunConfig.parse(split_sections(config)[0])


def true_game(config: Mapping[str, Value]) -> LinearGame:
    """The game of a simulation's clients if they knew their parameters and the noise."""
    settings = settings_of(config)
    number = settings.num_clients
    counts = [
        len(load_client_data({"partition-id": i, "num-partitions": number}, settings, str(i)).split.train)
        for i in range(number)
    ]
    return LinearGame(linear_parameters(linear_recipe(settings, number)), counts, settings.linear_noise**2)


def true_errors(config: Mapping[str, Value], run_dir: Path) -> np.ndarray:
    """|theta - true theta|^2 of every client's personal model."""
    settings = settings_of(config)
    errors = []
    for i, theta in enumerate(linear_parameters(linear_recipe(settings, settings.num_clients))):
        model = load_file(run_dir / "models" / f"{i}.safetensors")
        bias = float((model["classifier.bias"] ** 2).sum())
        errors.append(float(((model["classifier.weight"][0] - theta) ** 2).sum()) + bias)
    return np.array(errors)


def expected_errors(game: LinearGame, cost: float) -> Errors:
    everybody, costs = [frozenset(range(game.n))], cost * game.samples
    structures = {
        "local": [],
        "grand": everybody,
        "grand-mixed": everybody,
        "disjoint": form(game, costs=costs, disjoint=True).coalitions,
        "overlapping": form(game, costs=costs).coalitions,
    }
    errors: Errors = {}
    for mechanism, coalitions in structures.items():
        values = []
        for client in range(game.n):
            mine = coalitions_of(client, coalitions)
            weights = np.eye(len(mine))[-1] if mechanism == "grand" else game.mixing_weights(client, mine)
            values.append(float(weights @ game.mixture_matrix(client, mine) @ weights))
        errors[mechanism] = np.array(values)
    return errors


def summarise(results: Sequence[Errors]) -> list[dict[str, Any]]:
    """A row for each mechanism, over the clients of all seeds; improvement is over training alone."""
    pooled = {mechanism: np.concatenate([errors[mechanism] for errors in results]) for mechanism in MECHANISMS}
    rows = []
    for mechanism, errors in pooled.items():
        gain = 1 - errors / pooled["local"]
        rows.append(
            {
                "mechanism": mechanism,
                "mean-error": float(errors.mean()),
                "worst-error": float(errors.max()),
                "worse-than-local": int((gain < -1e-9).sum()),
                "clients": len(errors),
                "median-improvement": float(np.median(gain)),
                "improved-by-70-percent": float((gain >= GREAT).mean()),
                "by-improvement": binned(gain),
            }
        )
    return rows


def binned(gain: np.ndarray) -> list[float]:
    """The share of clients whose improvement is below 0, and from there up to each of the paper's bounds."""
    edges = [-np.inf, *OCF_BINS, np.inf]
    rounded = np.where(np.abs(gain) < 1e-9, 0.0, gain)
    return [float(((rounded >= low) & (rounded < high)).mean()) for low, high in itertools.pairwise(edges)]


def bins_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Ours beside the paper's Table 1, in per cent of the clients."""
    bounds = [f"{100 * bound:.0f}" for bound in (*OCF_BINS, 1.0)]
    head = ["mechanism", "< 0 %", *[f"[{low}, {high}) %" for low, high in itertools.pairwise(bounds)]]
    texts = []
    for row in rows:
        name = row["mechanism"]
        paper = OCF_TABLE1.get(name)
        ours = [f"{100 * share:.0f}" for share in row["by-improvement"]]
        told = [f"{mine} ({theirs})" for mine, theirs in zip(ours, paper, strict=True)] if paper else ours
        texts.append([TITLES.get(name, name), *told])
    return Table(
        title, head, texts, "in brackets: the paper's Table 1, 100 clients; its disjoint coalitions do not mix models"
    )


def sweeps_of(config: Mapping[str, Value], game: LinearGame) -> list[int]:
    """How many sweeps each of many games took."""
    rng = np.random.default_rng(int(config["seed"]))
    recipe, noise = linear_recipe(settings_of(config), game.n), float(config["linear-noise"]) ** 2
    sweeps = []
    for _ in range(GAMES if game.n <= 20 else GAMES // 5):
        thetas = linear_parameters(replace(recipe, seed=int(rng.integers(2**31))))
        sweeps.append(form(LinearGame(thetas, rng.permutation(game.samples), noise)).sweeps)
    return sweeps


def errors_chart(measured: Errors) -> dict[str, Any]:
    """Every client's error under every mechanism; clients in the order of their error alone."""
    order = np.argsort(measured["local"])
    places = range(1, len(order) + 1)
    lines = {TITLES.get(mechanism, mechanism): (places, errors[order]) for mechanism, errors in measured.items()}
    label = "squared error of the parameters"
    return chart("Errors of all clients", "clients, by their error alone", label, lines, **{"log-y": True})


def sweeps_chart(sweeps: Sequence[int]) -> dict[str, Any]:
    """Which share of the games had ended after how many sweeps."""
    numbers = range(max(sweeps) + 2)
    ended = {f"{len(sweeps)} games": (numbers, [np.mean([s <= k for s in sweeps]) for k in numbers])}
    return chart("Games that have ended", "sweeps over all clients", "share", ended)


def mixing_chart(game: LinearGame, noise: float) -> dict[str, Any]:
    """How the mixture of the client in most coalitions changes with its number of samples, all coalitions as they are."""
    coalitions = form(game).coalitions
    client = max(range(game.n), key=lambda i: sum(i in c for c in coalitions))
    mine = coalitions_of(client, coalitions)
    features = game.thetas.shape[1]
    numbers = np.unique(np.geomspace(features + 2, 100 * features, 40).astype(int))
    rows = []
    for number in numbers:
        samples = game.samples.copy()
        samples[client] = number
        rows.append(LinearGame(game.thetas, samples, noise).mixing_weights(client, mine))
    weights = np.array(rows)
    shown = [0, *(1 + np.argsort(-weights[:, 1:].max(axis=0), kind="stable")[: CURVES - 1])]
    lines = {f"coalition {i}, of {len(mine[i])}" if i else "own model": (numbers, weights[:, i]) for i in shown}
    title = "A mixture by the client's number of samples"
    return chart(title, "training samples of the client", "weight", lines, **{"log-x": True})


def table_of(rows: Sequence[Mapping[str, Any]], title: str, caption: str) -> Table:
    texts = [
        [
            TITLES.get(row["mechanism"], row["mechanism"]),
            f"{row['mean-error']:.4f}",
            f"{row['worst-error']:.4f}",
            f"{row['worse-than-local']} of {row['clients']}",
            f"{100 * row['median-improvement']:.1f} %",
            f"{100 * row['improved-by-70-percent']:.1f} %",
        ]
        for row in rows
    ]
    return Table(title, ["mechanism", "mean", "worst", "worse than local", "median gain", "70 % gain"], texts, caption)
