"""Several runs beside each other: what each method comes to over its seeds, and what its clients gain over training alone.

A client's interval is that of two shares of its test samples, as if these had been drawn anew for each model: the samples
are the same for both, so it is rather too wide than too narrow. A method's is that of the mean over seeds or, with fewer
than three of them, over clients. All are of 95 %.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.server.report.words import CANNOT_TELL, GAINS, LOSES, summary

BASE = "local"
NORMAL = 1.96
FEW_SEEDS = 3
Run = dict[str, Any]


def beside_local(runs: Sequence[Run]) -> None:
    """Tell every run what its clients come to alone, where `local` was run with the same seed in the same cell."""
    alone = {_where(run): run for run in runs if run["strategy"] == BASE}
    for run in runs:
        base = alone.get(_where(run))
        if base is None or run["strategy"] == BASE or "gain" in run or base["metric"] != run["metric"]:
            continue
        own = dict(zip(base["clients"], base["personal"], strict=True))
        run["local"] = [own.get(name) for name in run["clients"]]
        told = [
            gain(*three, run["metric"], run["lower"])
            for three in zip(run["local"], run["personal"], run["test-samples"], strict=True)
        ]
        for i, key in enumerate(("gain", "gain-low", "gain-high", "verdict")):
            run[key] = [one[i] for one in told]


def _where(run: Run) -> tuple[Any, ...]:
    return run.get("cell", ""), run["task"], run["seed"]


def gain(
    local: float | None, personal: float | None, samples: float | None, metric: str, lower: bool
) -> tuple[float | None, float | None, float | None, str]:
    """What a client gains, its interval, and what can be said of it: only of an accuracy, which is a share of samples."""
    if local is None or personal is None:
        return None, None, None, ""
    if metric != "accuracy" or not samples:
        return local - personal if lower else personal - local, None, None, CANNOT_TELL
    shares = [(share * samples + 1) / (samples + 2) for share in (local, personal)]
    half = NORMAL * sum(share * (1 - share) / samples for share in shares) ** 0.5
    value = personal - local
    return value, value - half, value + half, GAINS if value > half else LOSES if value < -half else CANNOT_TELL


def methods(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each method, in the order of their runs."""
    rows = []
    sign = -1 if runs[0]["lower"] else 1
    alone = {run["seed"]: _by_name(run) for run in runs if run["strategy"] == BASE}
    for name in dict.fromkeys(run["strategy"] for run in runs):
        mine = [run for run in runs if run["strategy"] == name]
        values = [[value for value in run["personal"] if value is not None] for run in mine]
        means = [float(np.mean(one)) for one in values if one]
        worst = [float(min(one) if sign > 0 else max(one)) for one in values if one]
        row: dict[str, Any] = {
            "name": name,
            "seeds": [run["seed"] for run in mine],
            "means": means,
            "mean": float(np.mean(means)) if means else None,
            "std": float(np.std(means, ddof=1)) if len(means) > 1 else None,
            "worst": float(np.mean(worst)) if worst else None,
            "clients": _over_seeds(mine),
            "below": sum(verdict == LOSES for run in mine for verdict in run.get("verdict", [])),
            "tested": sum(map(len, values)),
            "megabytes": float(np.mean([_total(run, "bytes-down") + _total(run, "bytes-up") for run in mine])) / 1e6,
            "cpu-seconds": float(np.mean([_total(run, "cpu-seconds") for run in mine])),
        }
        differences = [
            {client: sign * (value - alone[run["seed"]][client]) for client, value in _by_name(run).items()
             if client in alone[run["seed"]]}
            for run in mine if run["seed"] in alone
        ]  # fmt: skip
        if name != BASE and any(differences):
            row |= _gain_of_method([one for one in differences if one])
        rows.append(row)
    return rows


def _by_name(run: Run) -> dict[str, float]:
    return {name: value for name, value in zip(run["clients"], run["personal"], strict=True) if value is not None}


def _over_seeds(runs: Sequence[Run]) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for run in runs:
        for name, value in _by_name(run).items():
            seen.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in seen.items()}


def _total(run: Run, key: str) -> float:
    return sum(value or 0.0 for value in run["cost"][key])


def _gain_of_method(seeds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    from scipy.stats import t as students_t

    over_seeds = len(seeds) >= FEW_SEEDS
    names = dict.fromkeys(name for one in seeds for name in one)
    by_client = [float(np.mean([one[name] for one in seeds if name in one])) for name in names]
    units = [float(np.mean(list(one.values()))) for one in seeds] if over_seeds else by_client
    mean = float(np.mean(units))
    told: dict[str, Any] = {"gain": mean, "over": "seeds" if over_seeds else "clients"}
    if len(units) > 1:
        half = float(students_t.ppf(0.975, len(units) - 1) * np.std(units, ddof=1) / len(units) ** 0.5)
        told |= {"gain-low": mean - half, "gain-high": mean + half}
    return told


def best_run(runs: Sequence[Run]) -> int:
    """The place of the run that a page shows first: one of the method that does best."""
    rows = [row for row in methods(runs) if row["mean"] is not None]
    sign = -1 if runs[0]["lower"] else 1
    others = [row for row in rows if row["name"] != BASE] or rows
    best = max(others, key=lambda row: sign * row["mean"], default=None)
    return next((i for i, run in enumerate(runs) if best and run["strategy"] == best["name"]), 0)


def in_words(runs: Sequence[Run]) -> list[str]:
    """The sentences about all of them: who does best, and what that means for its clients."""
    rows = [row for row in methods(runs) if row["mean"] is not None]
    if len(rows) < 2:
        return summary(runs[best_run(runs)])
    sign, scale = (-1 if runs[0]["lower"] else 1), (100 if runs[0]["percent"] else 1)
    best = max(rows, key=lambda row: sign * row["mean"])
    unit = " %" if scale == 100 else ""
    said = (
        f"{best['name']} does best, {best['mean'] * scale:.1f}{unit}" if scale == 100 else f"{best['name']} does best"
    )
    if best["name"] == BASE:
        return [f"Nothing does better here than training alone ({best['mean'] * scale:.3g}{unit})."]
    rest = ", ".join(f"{row['name']} {row['mean'] * scale:.3g}" for row in rows if row is not best)
    return [f"{said} ({rest}).", *summary(runs[best_run(runs)])]
