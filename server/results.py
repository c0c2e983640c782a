"""What a run comes to: `result.json`, the same for the same seed wherever the clients ran."""

from collections.abc import Mapping
from typing import Any

from coterie.strategies.judging import Judged
from coterie.strategies.rounds import mean_metrics
from coterie.tasks.metrics import FEW
from coterie.wire.config import Value

IN_WORDS = {"gains": "gain", "loses": "lose", "cannot tell": "cannot tell"}  # of several clients


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


def judgement_of(judged: Judged) -> dict[str, Any]:
    """What the clients said of their own models after the last round (docs/reference/metrics.md)."""
    told = {"metric": judged.metric, "baseline": judged.baseline, "judged": dict(judged.figures)}
    return told | ({"not-judged": dict(judged.failed)} if judged.failed else {})


def judged_in_words(result: Mapping[str, Any]) -> list[str]:
    """Who gains, and whose figures say little."""
    judged: Mapping[str, Mapping[str, Any]] = result.get("judged", {})
    words = [told["verdict"] for told in judged.values() if "verdict" in told]
    lines = []
    if words:
        counts = ", ".join(f"{words.count(word)} {text}" for word, text in IN_WORDS.items() if word in words)
        lines.append(f"{result['metric']} beside training alone: {counts}")
    few = {client: told["few"] for client, told in judged.items() if told.get("few")}
    if few:
        client, labels = next(iter(few.items()))
        lines.append(
            f"{len(few)} of {len(judged)} clients have labels with fewer than {FEW} test samples (client {client}: "
            f"{len(labels)}): their figures by label, such as balanced accuracy, AUROC and F1, say little"
        )
    return lines


def privacy_of(config: Mapping[str, Value], epsilon: Mapping[str, float]) -> dict[str, Any]:
    """The mode, and what it guarantees: for dp-sgd (epsilon, delta) of every client that trained, for noisy weights nothing."""
    mode = config["privacy.mode"]
    if mode == "weights":
        return {"mode": mode, "guarantee": "none"}
    return {"mode": mode, "guarantee": "(epsilon, delta)", "delta": config["privacy.delta"], "epsilon": dict(epsilon)}


def privacy_in_words(result: Mapping[str, Any]) -> list[str]:
    """What a run with privacy guarantees, of the client that has spent most."""
    told = result.get("privacy")
    if not told:
        return []
    if told["guarantee"] == "none":
        return ["privacy: noise without a guarantee (mode weights)"]
    most = max(told["epsilon"], key=lambda client: told["epsilon"][client], default=None)
    spent = f"epsilon is at most {told['epsilon'][most]:.3g} (client {most})" if most else "nobody trained"
    return [f"privacy: {spent}, delta {told['delta']:g}"]


def _of_kind(kind: str, mean: Mapping[str, float], metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    def strip(values: Mapping[str, float]) -> dict[str, float]:
        return {name.removeprefix(f"{kind}."): value for name, value in values.items() if name.startswith(f"{kind}.")}

    return {"mean": strip(mean), "clients": {name: strip(values) for name, values in metrics.items()}}
