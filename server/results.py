"""What a run comes to: `result.json`, the same for the same seed wherever the clients ran."""

from collections.abc import Mapping
from typing import Any

from coterie.strategies.rounds import mean_metrics
from coterie.wire.config import Value


def result_of(config: Mapping[str, Value], clients: list[str], event: Mapping[str, Any]) -> dict[str, Any]:
    """The result after the last evaluation. Clients that could not be tested are listed with their reason, never left out."""
    metrics: dict[str, dict[str, float]] = event["evaluate"]
    mean = mean_metrics(metrics)
    kinds = sorted({name.split(".")[0] for name in mean})
    return {
        "strategy": config["strategy"],
        "task": config["task"],
        "seed": config["seed"],
        "rounds": event["round"],
        "mean-test-accuracy": {kind: mean[f"{kind}.accuracy"] for kind in kinds if f"{kind}.accuracy" in mean},
        "models": {kind: _of_kind(kind, mean, metrics) for kind in kinds},
        "clients": clients,
        "not-tested": dict(event["not-tested"])
        | {name: "not connected" for name in clients if name not in metrics and name not in event["not-tested"]},
    }


def privacy_of(config: Mapping[str, Value], epsilon: Mapping[str, float]) -> dict[str, Any]:
    """The mode, and what it guarantees: for dp-sgd (epsilon, delta) of every client that trained, for noisy weights nothing."""
    mode = config["privacy.mode"]
    if mode == "weights":
        return {"mode": mode, "guarantee": "none"}
    return {"mode": mode, "guarantee": "(epsilon, delta)", "delta": config["privacy.delta"], "epsilon": dict(epsilon)}


def _of_kind(kind: str, mean: Mapping[str, float], metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    def strip(values: Mapping[str, float]) -> dict[str, float]:
        return {name.removeprefix(f"{kind}."): value for name, value in values.items() if name.startswith(f"{kind}.")}

    return {"mean": strip(mean), "clients": {name: strip(values) for name, values in metrics.items()}}
