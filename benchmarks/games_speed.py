"""How long the mathematics takes, and how much faster it is than the formula written down plainly.

    python benchmarks/games_speed.py

CPU seconds, best of three, on one core. Where the plain version would take too long both are timed on a smaller case,
named in the row; the figure for the full size stands next to it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy starts its threads

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coterie.games.coalitions import coalition_scores
from coterie.games.overlap import LinearGame, MeasuredGame, form_coalitions, is_individually_stable
from coterie.games.sampling import inclusion_probabilities
from coterie.games.shapley import shapley_from_table
from coterie.games.similarity import classifier_similarity, similarity_rows

RNG = np.random.default_rng(0)


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """CPU time of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def row(name: str, ours: float, plain: float, full: str = "") -> None:
    print(f"{name:<58}{ours:>10.4f} s{plain:>10.3f} s{plain / ours:>9.0f} x   {full}")


def plain_shapley(table: list[float], n: int) -> list[float]:
    values = [0.0] * n
    for mask in range(1 << n):
        size = mask.bit_count()
        for player in range(n):
            if not mask >> player & 1:
                weight = 1 / (n * math.comb(n - 1, size))
                values[player] += weight * (table[mask | 1 << player] - table[mask])
    return values


def shapley() -> None:
    table = RNG.normal(size=1 << 20)
    small, listed = table[: 1 << 14], table[: 1 << 14].tolist()
    full = f"20 players: {seconds(lambda: shapley_from_table(table)):.3f} s"
    row(
        "exact Shapley values from a table, 14 players",
        seconds(lambda: shapley_from_table(small)),
        seconds(lambda: plain_shapley(listed, 14), 1),
        full,
    )


def plain_similarity(classifiers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    n = len(classifiers)
    result = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            a, b = classifiers[i], classifiers[j]
            cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            result[i, j] = -np.log(1 - np.clip(cosine, 0, 0.9999)).mean()
    return result


def similarity() -> None:
    classifiers = RNG.normal(size=(1000, 10, 84))
    small = classifiers[:100]
    full = f"1,000 clients: {seconds(lambda: classifier_similarity(classifiers)):.3f} s, "
    full += f"100 rows of 1,000: {seconds(lambda: similarity_rows(classifiers, range(100))):.3f} s"
    row(
        "classifier similarity, 100 clients x 10 x 84",
        seconds(lambda: classifier_similarity(small)),
        seconds(lambda: plain_similarity(small), 1),
        full,
    )


def coalition_tables() -> None:
    features, labels = RNG.normal(size=(2000, 84)), RNG.integers(0, 10, size=2000)
    classifiers = RNG.normal(size=(6, 10, 84))
    logits = np.einsum("sf,mcf->msc", features, classifiers)

    def one_by_one() -> None:
        """Accuracy and loss of the 108 averaged classifiers that 18 orders of six players ask for."""
        for _ in range(18):
            order = RNG.permutation(6)
            for size in range(1, 7):
                answers = features @ classifiers[order[:size]].mean(axis=0).T
                _ = (answers.argmax(axis=1) == labels).mean()
                answers -= answers.max(axis=1, keepdims=True)
                _ = (np.log(np.exp(answers).sum(axis=1)) - answers[np.arange(2000), labels]).mean()

    ours = seconds(lambda: coalition_scores(logits, labels))
    row("accuracy and loss of all 64 coalitions, 2,000 images", ours, seconds(one_by_one), "plain: 18 random orders")


def overlap() -> None:
    rng = np.random.default_rng(1)
    thetas, samples = rng.normal(size=10) + 0.05 * rng.normal(size=(100, 10)), rng.integers(20, 500, size=100)
    stable = is_individually_stable(game := LinearGame(thetas, samples, 1.0), form_coalitions(game))

    def plain_error(client: int, coalition: frozenset[int]) -> float:
        members = sorted(coalition)
        weights = samples[members] / samples[members].sum()
        spread = weights**2 @ (10 / (samples[members] - 11))
        return float(spread + ((weights @ thetas[members] - thetas[client]) ** 2).sum())

    row(
        "form_coalitions, 100 linear clients, 10 features",
        seconds(lambda: form_coalitions(LinearGame(thetas, samples, 1.0))),
        seconds(lambda: form_coalitions(MeasuredGame(100, plain_error)), 1),
        f"individually stable: {stable}",
    )


def sampling() -> None:
    weights = RNG.pareto(1.0, size=2000)

    def all_candidates(m: int) -> None:
        """Every number l of clients at probability 1, the first feasible one wins."""
        ordered = np.sort(weights)[::-1]
        for level in range(m):
            rest = (m - level) * ordered[level:] / ordered[level:].sum()
            if rest.max() <= 1:
                return

    ours = seconds(lambda: inclusion_probabilities(weights, 1500))
    row("inclusion probabilities, 1,500 of 2,000 clients", ours, seconds(lambda: all_candidates(1500)))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'':<58}{'ours':>12}{'plain':>12}{'ratio':>11}")
    for part in (shapley, similarity, coalition_tables, overlap, sampling):
        part()


if __name__ == "__main__":
    main()
