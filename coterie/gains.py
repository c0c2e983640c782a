"""What each client gains over training alone: differences to `local`, paired by seed and client."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.tasks.metrics import LOWER_IS_BETTER

BASE = "local"
POINTS = 0.03  # a client so far below its own local model is harmed


def gains(
    results: Sequence[Mapping[str, Any]], metric: str, bad: Mapping[int, Collection[str]]
) -> dict[str, dict[str, float]]:
    """For each method but `local`: the mean difference over honest clients and seeds, its standard error, and the share of
    them that is harmed. Losses count the other way round. Clients of one seed share a partition, so with several seeds the
    error is that of the seeds' means. Empty where `local` was not run."""
    ended = [result for result in results if "failed" not in result]
    alone = {result["seed"]: _clients(result) for result in ended if result["strategy"] == BASE}
    sign = -1 if metric in LOWER_IS_BETTER else 1
    found: dict[str, list[np.ndarray]] = {}
    for result in ended:
        seed = result["seed"]
        if result["strategy"] == BASE or seed not in alone:
            continue
        mine, base = _clients(result), alone[seed]
        both = [c for c in mine if metric in mine[c] and metric in base.get(c, {}) and c not in bad.get(seed, ())]
        if both:
            differences = np.array([sign * (mine[c][metric] - base[c][metric]) for c in both])
            found.setdefault(result["strategy"], []).append(differences)
    return {name: _gain(several) for name, several in found.items()}


def _clients(result: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    clients: Mapping[str, Mapping[str, float]] = result["models"].get("personal", {}).get("clients", {})
    return clients


def _gain(seeds: Sequence[np.ndarray]) -> dict[str, float]:
    together = np.concatenate(seeds)
    units = np.array([one.mean() for one in seeds]) if len(seeds) > 1 else together
    error = float(np.std(units, ddof=1) / np.sqrt(len(units))) if len(units) > 1 else float("nan")
    return {"mean": float(np.mean(units)), "error": error, "harmed": float((together < -POINTS).mean())}
