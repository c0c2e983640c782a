"""How far Shapley estimators are from the exact values at equal numbers of distinct evaluations, on real games.

    python benchmarks/shapley.py --data DIR [--out DIR]

The games (see federated_games.py) are ten two-label Fashion-MNIST clients in several rounds of several federations,
with the utilities of all 1024 coalitions computed once and cached in the output directory. For every game, estimator
and budget the squared error is averaged over players and runs and divided by the variance of the exact values, so that
1 is as bad as giving everybody the mean; the table shows its geometric mean over games.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from federated_games import CLIENTS, cached_games

from coterie.games.shapley import Estimate, estimate, shapley_from_table

FloatArray = NDArray[np.float64]

BUDGETS = (160, 240, 360, 540, 810)
ESTIMATORS: dict[str, dict[str, Any]] = {
    "mc": {"method": "mc"},
    "mc antithetic": {"method": "mc", "antithetic": True},
    "tmc": {"method": "tmc"},
    "dmc": {"method": "dmc"},
    "cc": {"method": "cc"},
}


def run(table: FloatArray, budget: int, seed: int, **options: Any) -> Estimate:
    utilities = table.tolist()
    rng = np.random.default_rng(seed)
    return estimate(lambda s: utilities[sum(1 << i for i in s)], CLIENTS, budget=budget, rng=rng, **options)


def measure(games: dict[str, FloatArray], runs: int) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """For every estimator: relative squared error (budgets, games) and distinct evaluations (budgets,)."""
    errors, spent = {}, {}
    for name, options in ESTIMATORS.items():
        errors[name], spent[name] = np.zeros((len(BUDGETS), len(games))), np.zeros(len(BUDGETS))
        for column, table in enumerate(games.values()):
            exact = shapley_from_table(table)
            for row, budget in enumerate(BUDGETS):
                found = [run(table, budget, seed, **options) for seed in range(runs)]
                squared = np.mean([(one.values - exact) ** 2 for one in found])
                errors[name][row, column] = squared / exact.var()
                spent[name][row] += np.mean([one.evaluations for one in found]) / len(games)
    return errors, spent


def geometric(values: FloatArray) -> FloatArray:
    return np.exp(np.log(values).mean(axis=-1))


def show(metric: str, errors: dict[str, FloatArray], spent: dict[str, FloatArray]) -> None:
    names = list(errors)
    count = errors["mc"].shape[1]
    print(f"\nutility: {metric}, {count} games; relative squared error by budget (mean distinct evaluations)")
    print("budget  " + "".join(f"{name:>22}" for name in names) + f"{'dmc/mc':>9}{'cc/dmc':>9}{'cc/mc':>9}")
    for row, budget in enumerate(BUDGETS):
        means = {name: float(geometric(errors[name][row])) for name in names}
        cells = "".join(f"{means[name]:>14.2e} ({spent[name][row]:>5.0f})" for name in names)
        ratios = means["dmc"] / means["mc"], means["cc"] / means["dmc"], means["cc"] / means["mc"]
        print(f"{budget:>6}  {cells}" + "".join(f"{ratio:>9.3f}" for ratio in ratios))
    wins = {
        "dmc below mc": (errors["dmc"] < errors["mc"]).sum(),
        "cc below dmc": (errors["cc"] < errors["dmc"]).sum(),
    }
    print("; ".join(f"{claim} in {won} of {errors['mc'].size} cases" for claim, won in wins.items()))


def exact_without_ends(games: dict[str, FloatArray]) -> None:
    """Exact values need 1024 evaluations, min-max scaled ones 1022: the ends move all values alike."""
    ends = {frozenset(): 0.0, frozenset(range(CLIENTS)): 0.0}
    worst, count = 0.0, 0
    for table in games.values():
        values = run(table, 1024, 0, method="exact", known=ends)
        exact = shapley_from_table(table)
        shift = values.values - exact
        worst, count = max(worst, float(np.ptp(shift)) / float(np.ptp(exact))), values.evaluations
    print(f"\nexact with {count} evaluations (∅ and N left out): largest relative error of a difference {worst:.1e}")


def draw(results: dict[str, tuple[dict[str, FloatArray], dict[str, FloatArray]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(6 * len(results), 4.5), squeeze=False)
    for axis, (metric, (errors, spent)) in zip(axes[0], results.items(), strict=True):
        for name in errors:
            axis.plot(spent[name], geometric(errors[name]), marker="o", label=name)
        axis.axvline(1022, color="grey", linestyle=":", label="exact (error 0)")
        axis.set(xlabel="distinct evaluations", ylabel="squared error / variance of exact values", yscale="log")
        axis.set_title(f"utility: {metric}")
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with fashion-mnist.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/shapley"), help="where the cache and the picture go")
    parser.add_argument("--federations", type=int, default=5, help="how many federations to play (default 5)")
    parser.add_argument("--runs", type=int, default=20, help="runs of every estimator per game (default 20)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    games = cached_games(arguments.data, arguments.out, arguments.federations)
    print(f"{len(games)} games of {CLIENTS} clients after {time.perf_counter() - began:.0f} s")
    results = {}
    for metric in ("accuracy", "loss"):
        chosen = {name: table for name, table in games.items() if name.endswith(metric)}
        results[metric] = measure(chosen, arguments.runs)
        show(metric, *results[metric])
    exact_without_ends(games)
    draw(results, arguments.out / "shapley.png")
    print(f"picture: {arguments.out / 'shapley.png'}; {time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
