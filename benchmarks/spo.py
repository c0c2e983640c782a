"""How well SPO's hypernetwork knows the Pareto front, whether clients find their collaborators, and what it costs.

    python benchmarks/spo.py [--seeds 10] [--validation 100,1000]

The task: six clients in two groups of three, 20 features, 100 training samples each, noise 1, coefficients that differ by
0.05 N(0, 1) within a group. Then training with one's group is the best in expectation: n = 100 is below noise² / deviation²
= 400. Everything is run as `coterie run` does it, in one process.

1. The loss of the hypernetwork's models, sum_i d_i L_i, against the exact minimum theta(d) = (sum d_i A_i)^-1 sum d_i b_i,
in per cent
   above it: the mean over the simplex (Dirichlet 1), near its corners (Dirichlet 0.1), and over the side of one group.
2. The collaborators found, against (a) the own group, (b) the best of all 32 sets by the true risk of the exact models, with
   the data as drawn; how often an exhaustive search on the validation samples finds these; and how the models do: squared
   distance to the true coefficients, in per cent of that of the own least squares model.
3. The coalitions of `ce`: in how many seeds they are the two groups, and in how many an axiom is broken.
4. CPU seconds of one run of `spo` for all six clients, without the imports of Python.
"""

import argparse
import itertools
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from safetensors.numpy import load_file

from coterie.client.data import linear_recipe, load_client_data
from coterie.games.equilibrium import linear_pareto_front
from coterie.games.preferences import even
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import run
from coterie.server.findings import found as findings_of
from coterie.simulate import prepare
from coterie.strategies.findings import Finding
from coterie.strategies.registry import parse_config
from coterie.tasks.hypernetwork import Hypernetwork
from coterie.tasks.linear import linear_parameters
from coterie.tasks.resolve import network_of
from coterie.wire.config import RunConfig

CLIENTS, FEATURES, TRAIN, TEST, GROUPS = 6, 20, 100, 100, 2
GROUP_OF = [frozenset(j for j in range(CLIENTS) if j % GROUPS == i % GROUPS) for i in range(CLIENTS)]


def values_of(strategy: str, seed: int, validation: int, rounds: int) -> dict[str, Any]:
    total = TRAIN + validation + TEST
    return {
        "strategy": strategy, "task": "linear", "num-clients": CLIENTS, "linear-groups": GROUPS, "linear-deviation": 0.05,
        "linear-noise": 1.0, "linear-samples": str(total), "input-shape": str(FEATURES), "test-fraction": TEST / total,
        "validation-fraction": validation / (TRAIN + validation), "num-server-rounds": rounds, "evaluate-every": rounds,
        "seed": seed, "spo.local-steps": 1, "spo.samples": TRAIN, "spo.step": 0.25, "spo.rays": 32, "spo.explore": 1.0,
        "spo.fine-tune-epochs": 0,
    }  # fmt: skip


def simulated(
    values: dict[str, Any],
) -> tuple[RunConfig, dict[str, Finding], dict[str, np.ndarray], list[dict[str, np.ndarray]], float]:
    """Configuration, findings, the server's arrays, the personal models and the CPU seconds of a run."""
    config = prepare(values)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        start = time.process_time()
        run(SimulationGrid(Workers(0), CLIENTS, config, directory), config, path)
        seconds = time.process_time() - start
        found = findings_of(path)
        arrays = load_file(path / "checkpoint" / "state.safetensors")
        models = [load_file(path / "models" / f"{i}.safetensors") for i in range(CLIENTS)]
    return parse_config(config)[0], found, arrays, models, seconds


def samples_of(config: RunConfig, client: int, which: str) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples, a 1 beside the features for the bias, and their values."""
    data = load_client_data({"partition-id": client, "num-partitions": CLIENTS}, config, str(client))
    own = data.samples(getattr(data.split, which), "cpu")
    x = np.concatenate([own.x.numpy(), np.ones((len(own), 1))], axis=1)
    return x.astype(float), own.y.numpy().astype(float)


def moments_of(config: RunConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A_i, b_i and the mean square of y of every client's training samples."""
    grams, moments, squares = [], [], []
    for i in range(CLIENTS):
        x, y = samples_of(config, i, "train")
        assert len(x) == TRAIN
        grams.append(x.T @ x / len(x))
        moments.append(x.T @ y / len(x))
        squares.append((y**2).mean())
    return np.array(grams), np.array(moments), np.array(squares)


def gaps(config: RunConfig, hyper: Hypernetwork) -> list[float]:
    """Per cent above the exact front: on the simplex, near its corners, on the side of a group."""
    a, b, c = moments_of(config)
    rng = np.random.default_rng(0)
    side = np.zeros((500, CLIENTS))
    side[:, sorted(GROUP_OF[0])] = rng.dirichlet(np.ones(len(GROUP_OF[0])), 500)
    result = []
    for d in (rng.dirichlet(np.ones(CLIENTS), 2000), rng.dirichlet(np.full(CLIENTS, 0.1), 2000), side):
        losses = []
        for theta in (hyper.models(d)["classifier"].astype(float), linear_pareto_front(a, b, d)):
            own = np.einsum("kf,cfg,kg->kc", theta, a, theta) - 2 * theta @ b.T + c
            losses.append((d * own).sum(axis=1))
        result.append(100 * float((losses[0] / losses[1] - 1).mean()))
    return result


def judge(
    config: RunConfig, found: dict[str, Finding], models: list[dict[str, np.ndarray]]
) -> tuple[int, int, int, int, float]:
    """Clients whose set is its group, clients whose set is the best of all, both for the set whose exact model has the least
    validation loss instead, and the risk in per cent of the own model's."""
    a, b, _ = moments_of(config)
    true = np.pad(linear_parameters(linear_recipe(config, CLIENTS)), ((0, 0), (0, 1)))
    group = best = tried_group = tried_best = 0
    risks = []
    for i in range(CLIENTS):
        others = [j for j in range(CLIENTS) if j != i]
        sets = [frozenset({i, *rest}) for size in range(CLIENTS) for rest in itertools.combinations(others, size)]
        points = linear_pareto_front(a, b, np.array([even(members, CLIENTS) for members in sets]))
        risk = ((points - true[i]) ** 2).sum(axis=1)
        chosen = frozenset(int(name) for name in found["collaborators"].values[str(i)])
        x, y = samples_of(config, i, "validation")
        tried = sets[int(np.argmin(((x @ points.T - y[:, None]) ** 2).mean(axis=0)))]
        truly_best = sets[int(np.argmin(risk))]
        group += chosen == GROUP_OF[i]
        best += chosen == truly_best
        tried_group += tried == GROUP_OF[i]
        tried_best += tried == truly_best
        model = np.concatenate([models[i]["classifier.weight"].ravel(), models[i]["classifier.bias"]])
        risks.append(((model - true[i]) ** 2).sum() / risk[0])
    return group, best, tried_group, tried_best, 100 * float(np.mean(risks))


def main(seeds: int, validations: list[int], rounds: int) -> None:
    for validation in validations:
        front, right, seconds, coalitions = [], [], [], []
        for seed in range(1, seeds + 1):
            config, found, arrays, models, cpu = simulated(values_of("spo", seed, validation, rounds))
            hyper = Hypernetwork(network_of(config), CLIENTS)
            hyper.load(arrays["hypernetwork.numbers"], 0)
            front.append(gaps(config, hyper))
            right.append(judge(config, found, models))
            seconds.append(cpu)
            _, found, *_ = simulated(values_of("ce", seed, validation, rounds))
            formed = {frozenset(int(name) for name in members) for members in found["coalitions"].values}
            coalitions.append((formed == set(GROUP_OF), bool(found["coalitions"].facts["violations"])))
        group, best, tried_group, tried_best, risk = zip(*right, strict=True)
        simplex, corners, side = np.mean(front, axis=0)
        print(
            f"{validation} validation samples, {rounds} rounds, {seeds} seeds\n"
            f"  above the exact front: {simplex:.2f} % on the simplex, {corners:.2f} % near corners, {side:.2f} % in a group\n"
            f"  collaborators are the group: {sum(group)} of {seeds * CLIENTS} clients, all six in {group.count(CLIENTS)}, "
            f"four or more in {sum(g >= 4 for g in group)}\n"
            f"  collaborators are the best of 32 sets: {sum(best)} of {seeds * CLIENTS} clients, all six in "
            f"{best.count(CLIENTS)} seeds, four or more in {sum(g >= 4 for g in best)}\n"
            f"  trying all 32 sets with the exact front on the same validation samples finds the group in {sum(tried_group)}, "
            f"the best set in {sum(tried_best)}\n"
            f"  risk of the personal models: {np.mean(risk):.0f} % of that of models trained alone\n"
            f"  coalitions are the two groups in {sum(c for c, _ in coalitions)} seeds; an axiom is broken in "
            f"{sum(v for _, v in coalitions)}\n"
            f"  one run of spo for all six clients: {np.mean(seconds[1:] or seconds):.1f} CPU s (first: {seconds[0]:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--validation", default="100,1000", help="validation samples of a client, separated by commas")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    main(arguments.seeds, [int(number) for number in arguments.validation.split(",")], arguments.rounds)
