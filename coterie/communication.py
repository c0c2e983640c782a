"""What travels in a run, in parameters and bytes, up and down, per client and round; and what it would be for larger models.

Parameters are counted from the models that were really sent (`models-sent` in the event lines, or the others that a FedFomo
client weighed), times the size of their parts; bytes are those of the messages. For models that are not trained here, the same
numbers of models are multiplied by the sizes of that network's parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from coterie.rows import Table
from coterie.runs import Run
from coterie.tasks.models import build_network
from coterie.wire.config import Value

LARGE = {"resnet34": (3, 32, 32), "vgg19": (3, 32, 32)}
CLASSES = 10
Sizes = dict[str, int]  # part -> parameters


def sizes_of(model: str, input_shape: tuple[int, ...], classes: int = CLASSES) -> Sizes:
    """The parts of a network, without memory for its numbers."""
    with torch.device("meta"):
        network = build_network(model, input_shape, classes, seed=0, device="meta")
    return {part: vector.numel() for part, vector in network.parts.items()}


def communication(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """A row for each method and model; runs that are the same but for seed or cell once."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        config, events = run.config, run.events
        method = _title(config)
        if method in {row["method"] for row in rows}:
            continue
        rows.append({"method": method, "model": f"{config['model']}, measured", **_measured(events)})
        for model, input_shape in LARGE.items():
            rows.append({"method": method, "model": model, **counted(config, events, sizes_of(model, input_shape))})
    return rows


def _title(config: Mapping[str, Value]) -> str:
    shared = config["strategy"] == "pfedsv" and config["pfedsv.shared-extractor"]
    return f"{config['strategy']}, shared extractor" if shared else str(config["strategy"])


def _measured(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over all clients and rounds."""
    exchanges = sum(len(event["train"]) for event in events)
    down, up = (sum(sum(event[key].values()) for event in events) / exchanges for key in ("bytes-down", "bytes-up"))
    return {"parameters-down": down / 4, "parameters-up": up / 4, "bytes-down": down, "bytes-up": up}


def counted(config: Mapping[str, Value], events: Sequence[Mapping[str, Any]], sizes: Sizes) -> dict[str, float]:
    """What the same run would have sent with parts of these sizes."""
    whole = sum(sizes.values())
    exchanges = sum(len(event["train"]) for event in events)
    down = 0.0
    for event in events:
        for client in event["train"]:
            down += _parameters_down(config, event, client, sizes) / exchanges
    integers = sizes.get("counters", 0)  # eight bytes each; far too few to matter in what goes down
    return {
        "parameters-down": down,
        "parameters-up": whole,
        "bytes-down": 4 * down,
        "bytes-up": 4 * whole + 4 * integers,
    }


def _parameters_down(config: Mapping[str, Value], event: Mapping[str, Any], client: str, sizes: Sizes) -> int:
    whole = sum(sizes.values())
    if config["strategy"] == "fedfomo":
        return len(event["weights"].get(client, {})) * whole
    if config["strategy"] != "pfedsv":
        return whole
    models = int(event["models-sent"].get(client, 0))
    if not config["pfedsv.shared-extractor"]:
        return models * whole
    return models * sizes["classifier"] + whole - sizes["classifier"]


def communication_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("model", "method", "million numbers down", "million numbers up", "MB down", "MB up", "of FedAvg")
    texts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        group = [row for row in rows if row["model"] == model]
        base = next((_both(row) for row in group if row["method"] == "fedavg"), 0.0)
        for row in group:
            megabytes = [f"{row[key] / 1e6:.2f}" for key in ("bytes-down", "bytes-up")]
            ratio = f"{_both(row) / base:.3f}" if base else "-"
            parameters = [f"{row[key] / 1e6:.3f}" for key in ("parameters-down", "parameters-up")]
            texts.append([model, row["method"], *parameters, *megabytes, ratio])
    return Table("What travels per client and round", head, texts)


def _both(row: Mapping[str, Any]) -> float:
    return float(row["bytes-down"] + row["bytes-up"])
