"""Run directories of any size, made up: clients of some kinds that help their own kind and hurt others."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coterie.strategies.findings import Finding, as_json


def make_run(
    path: Path, clients: int = 12, rounds: int = 12, kinds: int = 3, seed: int = 1, names: list[str] | None = None
) -> Path:
    """A finished run of pfedsv with DP-SGD, a baseline, suspects, and somebody in trouble."""
    rng = np.random.default_rng(seed)
    names = names or [
        f"{chr(65 + i % kinds) if kinds <= 26 else f'k{i % kinds}-'}{i // kinds + 1}" for i in range(clients)
    ]
    kind = np.arange(clients) % kinds
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "strategy": "pfedsv",
        "task": "kinds",
        "seed": seed,
        "num-server-rounds": rounds,
        "privacy.mode": "dp-sgd",
    }
    config |= {"privacy.delta": 1e-5, "num-clients": clients}
    (path / "config.json").write_text(json.dumps(config))
    local = rng.normal(0.83, 0.03, clients)
    gain = np.clip(rng.normal(0.06, 0.05, clients), -0.1, 0.15)
    with open(path / "events.jsonl", "w") as file:
        for number in range(1, rounds + 1):
            reached = np.clip((local + gain) * (1 - 0.7 * np.exp(-number / 3)) + rng.normal(0, 0.01, clients), 0, 1)
            tested = {
                name: {"num-samples": 70, "personal.accuracy": round(float(value), 4), "personal.loss": 0.5}
                for name, value in zip(names, reached, strict=True)
            }
            trained = {
                name: {"num-samples": 49, "steps": 4, "cpu-seconds": 0.4 if i else 2.0, "epsilon": 0.3 * number**0.5}
                for i, name in enumerate(names)
            }
            judges = rng.integers(clients, size=(min(clients, 200), 2))
            event = {
                "round": number,
                "train": trained,
                "left-out": {names[-1]: "no answer within 9 seconds"} if number == 2 else {},
                "not-tested": {},
                "bytes-down": dict.fromkeys(names, 60_000),
                "bytes-up": dict.fromkeys(names, 20_000),
                "seconds": 1.0 + 0.1 * number,
                "evaluate-seconds": 0.4,
                "evaluate": tested,
                "mean": {"personal.accuracy": float(reached.mean()), "personal.loss": 0.5},
                "values": {
                    names[a]: {names[b]: 0.05 if kind[a] == kind[b] else -0.02} for a, b in judges.tolist() if a != b
                },
            }
            file.write(json.dumps(event) + "\n")
    judged = {
        name: {
            "samples": 70, "local": float(alone), "own": float(alone + more), "gain": float(more),
            "gain-low": float(more - 0.05), "gain-high": float(more + 0.05),
            "verdict": "gains" if more > 0.05 else "loses" if more < -0.05 else "cannot tell",
        }
        for name, alone, more in zip(names, local, gain, strict=True)
    }  # fmt: skip
    result = {"clients": names, "metric": "accuracy", "baseline": "local", "judged": judged, "not-tested": {}}
    (path / "result.json").write_text(json.dumps(result))
    same = (kind[:, None] == kind[None, :]).astype(float)
    values = np.where(same > 0, 0.5, -0.12) + rng.normal(0, 0.1, (clients, clients))
    np.fill_diagonal(values, 0.0)
    scores = {name: float(score) for name, score in zip(names, rng.normal(0, 0.5, clients), strict=True)}
    scores[names[1]] = -4.0
    findings = [
        Finding.pairs("relevance", names, values.round(4), **{"label-overlap": same.tolist()}),
        Finding("suspects", "scores", scores, facts={"suspects": [names[1]], "score-below": -2.0}),
    ]
    (path / "findings.json").write_text(json.dumps(as_json(findings)))
    return path


@pytest.fixture(scope="session")
def made_run() -> Callable[..., Path]:
    return make_run
