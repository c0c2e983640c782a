"""ShapleyFL's game: how fast, how exact, and how much it helps.

    python benchmarks/shapleyfl.py game        # the game of 10 clients on 2000 images of 3x32x32, CNN 16/32 with BatchNorm
    python benchmarks/shapleyfl.py robustness --task fashion-mnist  # a third of the clients bad: accuracy, suspects

`game` trains ten clients for one round, plays the game with `cc`, and measures some evaluations of a plain loop (average the
parts, load, evaluate) before and after it. The authors' estimator, complementary contributions drawn with repetition and without
memory, takes 950 evaluations. `--exact` also plays the exact game and compares both estimators with it.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.client.data import partitioned
from coterie.games.shapley import Estimate, estimate, normalise, shapley_from_table
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import run
from coterie.simulate import prepare
from coterie.strategies.registry import parse_config
from coterie.strategies.server_game import mixture, server_samples
from coterie.tasks.coalition_models import CoalitionModels
from coterie.tasks.models import build_network
from coterie.tasks.parts import average
from coterie.tasks.training import Samples, Sgd, chosen_samples, evaluate, train
from coterie.wire.errors import RunFailed

AUTHORS = 950  # evaluations of their code in a round of ten clients
CLIENTS = 10
STRATEGIES = ("fedavg", "rfa", "afedsv-plus")


def one_round(task: str, data_root: str, images: int) -> tuple[Any, list[dict[str, np.ndarray]], Samples]:
    """Ten clients with two label shards each, three of them with wrong labels: the models after one round, from a warm start."""
    values = {"task": task, "model": "cnn-bn", "num-clients": CLIENTS, "partition": "shards", "data-root": data_root}
    config, _ = parse_config(prepare({**values, "strategy": "afedsv", "server-data": str(images)}))
    dataset, parts = partitioned(config, CLIENTS)
    network = build_network("cnn-bn", dataset.x.shape[1:], dataset.num_classes, seed=1)
    models = [network.dump()]
    for warm in range(3):
        trained = []
        for client, indices in enumerate(parts):
            samples = chosen_samples(dataset, indices[:600], "cpu")
            if client < 3:
                samples = Samples(samples.x, (samples.y + 1) % dataset.num_classes)
            network.load(models[0])
            train(network, samples, Sgd(0.05, 32), epochs=1, rng=np.random.default_rng(client + 100 * warm))
            trained.append(network.dump())
        models = [average(trained, np.ones(CLIENTS))] if warm < 2 else [*models, *trained]
    return network, models, server_samples(config, "cpu")


def plain_loop(
    network: Any, models: list[dict[str, np.ndarray]], samples: Samples, masks: list[int]
) -> tuple[np.ndarray, float]:
    """Utilities of these coalitions, one evaluation after the other, and the CPU seconds."""
    started = time.process_time()
    found = []
    for mask in masks:
        members = [models[1 + i] for i in range(CLIENTS) if mask >> i & 1]
        network.load(average(members, np.ones(len(members))))
        found.append(evaluate(network, samples)["accuracy"])
    return np.array(found), time.process_time() - started


def authors_estimate(table: np.ndarray, rng: np.random.Generator, evaluations: int) -> np.ndarray:
    """Mean complementary contributions by size, random orders, with repetition: two evaluations a draw."""
    n = CLIENTS
    total, count = np.zeros((n, n + 1)), np.zeros((n, n + 1))
    for _ in range(evaluations // 2):
        size = int(rng.integers(1, n + 1))
        order = rng.permutation(n)
        mask = sum(1 << int(i) for i in order[:size])
        value = table[mask] - table[(1 << n) - 1 ^ mask]
        total[order[:size], size] += value
        count[order[:size], size] += 1
        total[order[size:], n - size] -= value
        count[order[size:], n - size] += 1
    return np.asarray((total[:, 1:] / np.maximum(count[:, 1:], 1)).mean(axis=1))


def nsv_error(values: np.ndarray, truth: np.ndarray) -> float:
    scaled = normalise(values)
    return float(np.mean((scaled - truth) ** 2)) if scaled is not None else float(np.mean(truth**2))


def mixtures_of(coalitions: Sequence[frozenset[int]]) -> np.ndarray:
    return np.array([mixture(coalition, CLIENTS, 1.0) for coalition in coalitions])


def cc(utility: Callable[[frozenset[int]], float], budget: int, seed: int) -> Estimate:
    known = {frozenset[int](): 0.0, frozenset(range(CLIENTS)): 0.0}  # not needed for NSV
    rng = np.random.default_rng(seed)
    return estimate(utility, CLIENTS, method="cc", budget=budget, rng=rng, known=known)


def game(task: str, data_root: str, images: int, plain: int, budget: int, exact: bool) -> dict[str, Any]:
    network, models, samples = one_round(task, data_root, images)
    full = (1 << CLIENTS) - 1
    shown = np.random.default_rng(0).choice(np.arange(1, full), plain, replace=False).tolist()
    slow, before = plain_loop(network, models, samples, shown)
    fast = CoalitionModels(network, samples, "accuracy")
    started = time.process_time()
    asked: dict[frozenset[int], None] = {}
    cc(lambda coalition: asked.setdefault(coalition) or 0.0, budget, 0)
    values = dict(zip(asked, fast.utilities(models, mixtures_of(list(asked))).tolist(), strict=True))
    cc(values.__getitem__, budget, 0)
    cc_seconds = time.process_time() - started
    _, after = plain_loop(network, models, samples, shown)  # again, because a busy machine is not always equally fast
    per_plain = (before + after) / 2 / plain
    again = fast.utilities(models, mixtures_of([frozenset(i for i in range(CLIENTS) if m >> i & 1) for m in shown]))
    figures = {
        "task": task,
        "images": len(samples),
        "largest difference of a utility to the plain loop": float(np.abs(again - slow).max()),
        "CPU seconds per evaluation, plain loop": per_plain,
        "CPU seconds, plain loop of 950": per_plain * AUTHORS,
        f"CPU seconds, cc of {len(asked)}": cc_seconds,
        "ratio of cc": cc_seconds / (per_plain * AUTHORS),
    }
    return figures | (errors_and_time(fast, models, per_plain) if exact else {})


def errors_and_time(
    fast: CoalitionModels, models: list[dict[str, np.ndarray]], per_plain: float, draws: int = 200
) -> dict[str, Any]:
    """The exact game, and how far estimates are from it."""
    coalitions = [frozenset(i for i in range(CLIENTS) if mask >> i & 1) for mask in range(1, (1 << CLIENTS) - 1)]
    started = time.process_time()
    utilities = fast.utilities(models, mixtures_of(coalitions))
    seconds = time.process_time() - started
    table = np.concatenate([[0.0], utilities, [0.0]])
    truth = normalise(shapley_from_table(table))
    assert truth is not None
    theirs = [authors_estimate(table, np.random.default_rng(seed), AUTHORS) for seed in range(draws)]
    errors = {"authors, 950": np.mean([nsv_error(values, truth) for values in theirs])}
    for budget in (200, 250, 300, 400):
        found = [cc(lambda s: table[sum(1 << i for i in s)], budget, seed).values for seed in range(draws)]
        errors[f"cc, {budget}"] = np.mean([nsv_error(values, truth) for values in found])
    return {
        f"CPU seconds, exact game of {len(coalitions)}": seconds,
        "ratio of the exact game": seconds / (per_plain * AUTHORS),
        "NSV mean squared error": {name: float(value) for name, value in errors.items()} | {"exact": 0.0},
        "NSV": truth.round(3).tolist(),
    }


SCENARIOS: dict[str, dict[str, Any]] = {
    "all honest": {"attack.kind": "none"},
    "closed-set": {"attack.kind": "closed-set", "attack.fraction": 0.3},
    "gradient-poison": {"attack.kind": "gradient-poison", "attack.fraction": 0.3, "attack.strength": 300.0},
}


def robustness(task: str, data_root: str, partition: str, rounds: int, seeds: list[int]) -> dict[str, Any]:
    """20 clients of whom 6 are bad, half of them in a round; mean test accuracy over clients, and who was found."""
    values = {
        "task": task,
        "data-root": data_root,
        "model": "mlp",
        "num-clients": 20,
        "fraction-train": 0.5,
        "partition": partition,
        "test-fraction": 0.9,
        "validation-fraction": 0.0,
        "num-server-rounds": rounds,
        "evaluate-every": rounds,
        "server-data": "500",
    }
    found: dict[str, Any] = {}
    for scenario, different in SCENARIOS.items():
        results = [
            {name: one_run({**values, **different, "seed": seed, "strategy": name}) for name in STRATEGIES}
            for seed in seeds
        ]
        accuracies = {
            name: [row[name]["mean-test-accuracy"]["global"] if row[name] else None for row in results]
            for name in STRATEGIES
        }
        ours = accuracies["afedsv-plus"]
        margins = {
            name: [round(100 * (a - b), 1) if a and b else "failed" for a, b in zip(ours, theirs, strict=True)]
            for name, theirs in accuracies.items()
            if name != "afedsv-plus"
        }
        judged = [row["afedsv-plus"]["suspects"] for row in results if row["afedsv-plus"]]
        bad = [set(one.get("bad-clients", [])) for one in judged]
        suspects = [set(one["suspects"]) for one in judged]
        hits = [len(named & truth) for named, truth in zip(suspects, bad, strict=True)]
        alarms = [len(named - truth) for named, truth in zip(suspects, bad, strict=True)]
        number = sum(map(len, bad))
        found[scenario] = {
            "accuracy": accuracies,
            "points above": margins,
            "bad clients found": f"{sum(hits)} of {number}",
            "honest clients suspected": f"{sum(alarms)} of {20 * len(bad) - number}",
        }
        print(scenario, json.dumps(found[scenario]), flush=True)
    return found


def one_run(values: dict[str, Any]) -> dict[str, Any]:
    """Its result; {} if the model was broken for good."""
    config = prepare(values)
    with tempfile.TemporaryDirectory() as directory:
        try:
            return run(SimulationGrid(Workers(0), config["num-clients"], config, directory), config, Path(directory))
        except RunFailed:
            return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["game", "robustness"])
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--plain", type=int, default=10, help="evaluations of the plain loop that are measured, twice")
    parser.add_argument("--budget", type=int, default=300, help="evaluations of cc")
    parser.add_argument("--exact", action="store_true", help="play the exact game too")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--partition", default="shards")
    parser.add_argument("--seeds", default="1,2,3")
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.what == "game":
        figures = game(a.task, a.data_root, a.images, a.plain, a.budget, a.exact)
    else:
        figures = robustness(a.task, a.data_root, a.partition, a.rounds, [int(seed) for seed in a.seeds.split(",")])
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
