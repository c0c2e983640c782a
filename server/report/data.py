"""What the page of a report is drawn from: one dict for a run, made from the files of its directory. It fits into JSON.

Clients are named once; everything else goes by their places. Large arrays are numbers of 16 bits, matrices beyond
`SMALL_MATRIX` clients of 8.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.server.checkpoints import read_events
from coterie.server.findings import found
from coterie.server.report.order import is_signed, ordered
from coterie.server.report.trouble import trouble
from coterie.server.report.words import by_name
from coterie.server.status import Status, read_status
from coterie.strategies.findings import Finding
from coterie.tasks.metrics import LOWER_IS_BETTER, UNBOUNDED
from coterie.wire.errors import ConfigError

SMALL_MATRIX = 300  # clients
QUANTILES = (10, 50, 90)  # percent of the clients
Events = Sequence[Mapping[str, Any]]
Column = list[float | None]


def read_run(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings and the events of a run."""
    if not (run_dir / "config.json").is_file():
        raise ConfigError(f"{run_dir}: is not a run directory, it has no config.json")
    config = json.loads((run_dir / "config.json").read_text())
    return config, read_events(run_dir)


def run_data(run_dir: Path) -> dict[str, Any]:
    """All that a page says of a run."""
    config, events = read_run(run_dir)
    tested = [event for event in events if event.get("evaluate")]
    if not tested:
        raise ConfigError(f"{run_dir}: no round of this run was evaluated, so there is nothing to report yet")
    result = json.loads(path.read_text()) if (path := run_dir / "result.json").exists() else {}
    status, findings = read_status(run_dir), found(run_dir)
    clients = sorted({name for event in events for name in _names(event)} | set(result.get("clients", [])), key=by_name)
    wanted = (result.get("metric") or config.get("metric", "auto"), "accuracy", "loss")
    metric = next((name for name in wanted if any(f"personal.{name}" in event["mean"] for event in tested)), "loss")
    last: Mapping[str, Mapping[str, float]] = tested[-1]["evaluate"]

    def column(values: Mapping[str, Any]) -> Column:
        return [_number(values.get(name)) for name in clients]

    run: dict[str, Any] = {
        "strategy": config["strategy"],
        "task": config["task"],
        "seed": config["seed"],
        "rounds-done": len(events),
        "rounds-planned": config["num-server-rounds"],
        "unfinished": "" if result else _unfinished(status),
        "metric": metric,
        "percent": metric not in UNBOUNDED,
        "lower": metric in LOWER_IS_BETTER,
        "clients": clients,
        "train-samples": column(_last(events, "num-samples")),
        "test-samples": column({name: told.get("num-samples") for name, told in last.items()}),
        **{kind: column(_of(last, f"{kind}.{metric}")) for kind in ("personal", "global")},
        **_gains(result, clients),
        "rounds": [event["round"] for event in tested],
        "curves": {kind: _curve(tested, clients, f"{kind}.{metric}") for kind in ("personal", "global")},
        **_who_with_whom(findings, clients),
        "worth": _worth(events, findings, clients),
        "over-rounds": _over_rounds(events, clients),
        "trouble": trouble(events, findings, result, clients),
        "suspects": list(findings["suspects"].facts["suspects"]) if "suspects" in findings else None,
        "truly-bad": findings["suspects"].facts.get("bad-clients") if "suspects" in findings else None,
        "cost": _cost(events, column),
        "privacy": _privacy(config, events, clients),
        "settings": sorted((key, _text(value)) for key, value in config.items()),
        "versions": status.versions,
    }
    return run


def _names(event: Mapping[str, Any]) -> Iterable[str]:
    return (name for key in ("train", "left-out", "evaluate") for name in event.get(key, {}))


def _unfinished(status: Status) -> str:
    if status.state == "running":
        return f"This run is still running, in round {status.round} of {status.rounds}"
    return "This run did not finish" + (f" ({status.state}: {status.why})" if status.why else "")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _of(told: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    return {client: values[name] for client, values in told.items() if name in values}


def _last(events: Events, key: str) -> dict[str, float]:
    """What each client said of its training last."""
    return {name: told[key] for event in events for name, told in event.get("train", {}).items() if key in told}


def packed(values: np.ndarray, bits: int = 16) -> dict[str, Any]:
    """Numbers as `low + step * code`; the highest code stands for what is not known."""
    values = np.asarray(values, dtype=float)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    top = 2**bits - 2
    step = (high - low) / top or 1.0
    codes = np.where(np.isfinite(values), np.round((np.nan_to_num(values) - low) / step), top + 1)
    data = codes.astype(f"<u{bits // 8}").tobytes()
    return {
        "shape": list(values.shape),
        "bits": bits,
        "low": low,
        "step": step,
        "data": base64.b64encode(data).decode(),
    }


def unpacked(told: Mapping[str, Any]) -> np.ndarray:
    codes = np.frombuffer(base64.b64decode(told["data"]), f"<u{told['bits'] // 8}").reshape(told["shape"])
    return np.where(codes == 2 ** told["bits"] - 1, np.nan, told["low"] + told["step"] * codes)


def _curve(tested: Events, clients: Sequence[str], name: str) -> dict[str, Any] | None:
    """Quantiles over clients for each round, and every client's own values, (rounds, clients)."""
    told = [_of(event["evaluate"], name) for event in tested]
    values = np.array([[one.get(client, np.nan) for client in clients] for one in told])
    if not np.isfinite(values).any():
        return None
    quantiles = [np.nanpercentile(row, QUANTILES).tolist() if np.isfinite(row).any() else [None] * 3 for row in values]
    return {"quantiles": quantiles, "clients": packed(values)}


def _gains(result: Mapping[str, Any], clients: Sequence[str]) -> dict[str, Any]:
    """What training alone comes to for each client, where the run has tried it."""
    told: Mapping[str, Mapping[str, Any]] = {
        client: one for client, one in result.get("judged", {}).items() if "gain" in one
    }
    if not told:
        return {}
    columns = {
        key: [_number(told.get(client, {}).get(key)) for client in clients]
        for key in ("local", "gain", "gain-low", "gain-high")
    }
    return {
        **columns,
        "personal": [_number(told.get(client, {}).get("own")) for client in clients],
        "verdict": [told.get(client, {}).get("verdict", "") for client in clients],
    }


def _who_with_whom(findings: Mapping[str, Finding], clients: Sequence[str]) -> dict[str, Any]:
    place = {name: i for i, name in enumerate(clients)}
    told = next((finding for finding in findings.values() if finding.kind == "groups"), None)
    given: Sequence[Sequence[str]] = told.values if told else []
    matrices, groups = [], [[place[name] for name in members if name in place] for members in given]
    for finding in findings.values():
        if finding.kind == "pairs" and finding.clients and set(finding.clients) <= set(place):
            order, shown = ordered(finding, given)
            matrices.append(_matrix(finding, order, shown, place))
            if len(matrices) == 1 and sum(map(len, groups)) <= len(
                clients
            ):  # no client twice: in the order of the picture
                groups = [sorted(place[finding.clients[i]] for i in members) for members in shown]
    of_kind = {finding.kind: finding.values for finding in findings.values()}
    links, places = of_kind.get("links", {}), of_kind.get("places", {})
    return {
        "matrices": matrices,
        "groups": groups,
        "groups-in-words": told.facts.get("in-words", "") if told else "",
        "axioms": _axioms(told),
        "apart": _apart(told),
        "links": [[place[name], place[other]] for name, others in links.items() for other in others
                  if name in place and other in place and name != other],
        "places": {str(place[name]): point for name, point in places.items() if name in place},
    }  # fmt: skip


def _apart(told: Finding | None) -> list[list[Any]]:
    """How far each client is from its own group, and from the nearest other one, whose first is named."""
    facts: Mapping[str, Mapping[str, Any]] = told.facts.get("clients", {}) if told else {}
    return [
        [client, _number(fact["own"]), _number(fact["to-nearest"]), next(iter(fact["nearest"]), "")]
        for client, fact in facts.items()
    ]


def _axioms(told: Finding | None) -> dict[str, Any] | None:
    if told is None or "violations" not in told.facts:
        return None
    rows = [[violation["axiom"], ", ".join(violation["clients"])] for violation in told.facts["violations"]]
    return {"rows": rows, "up-to": told.facts["axioms-checked-up-to"]}


def _matrix(finding: Finding, order: list[int], groups: list[list[int]], place: Mapping[str, int]) -> dict[str, Any]:
    bits = 16 if len(order) <= SMALL_MATRIX else 8
    values = np.array(finding.values, dtype=float)
    if finding.facts.get("distance"):
        values[values < 0] = np.nan
    np.fill_diagonal(values, np.nan)  # what a client is to itself says nothing
    turned = np.ix_(order, order)
    truth = finding.facts.get("label-overlap")
    if truth is not None:
        truth = np.array(truth, dtype=float)
        np.fill_diagonal(truth, np.nan)
    return {
        "name": finding.name,
        "signed": not finding.facts.get("distance") and is_signed(np.asarray(finding.values)),
        "distance": bool(finding.facts.get("distance")),
        "order": [place[finding.clients[i]] for i in order],
        "sizes": [len(members) for members in groups],
        "values": packed(values[turned], bits),
        "truth": None if truth is None else packed(truth[turned], bits),
        "truth-correlation": finding.facts.get("correlation-with-label-overlap"),
    }


WORTH = {
    "shapley": "Mean Shapley value of its updates on the server's data, over rounds, with standard error.",
    "values": "Mean Shapley value of its model for those who used it, with standard error.",
    "pairs": "Mean over the others of what they think of it, with standard error.",
}


def _worth(events: Events, findings: Mapping[str, Finding], clients: Sequence[str]) -> dict[str, Any] | None:
    """What each client is worth to the others, by the method's own game."""
    seen: dict[str, list[float]] = {}
    for event in events:
        for name, value in event.get("shapley", {}).items():
            seen.setdefault(name, []).append(value)
        for judge, told in event.get("values", {}).items():
            for name, value in told.items():
                if name != judge:
                    seen.setdefault(name, []).append(value)
    source = "shapley" if any("shapley" in event for event in events) else "values"
    if not seen and (pairs := findings.get("relevance")) is not None:
        source, off = "pairs", ~np.eye(len(pairs.clients), dtype=bool)
        seen = {name: pairs.values[off[:, i], i].tolist() for i, name in enumerate(pairs.clients)}
    if not any(name in seen for name in clients):
        return None
    few = {name: np.array([value for value in seen.get(name, []) if np.isfinite(value)]) for name in clients}
    return {
        "text": WORTH[source],
        "values": [float(few[name].mean()) if len(few[name]) else None for name in clients],
        "errors": [float(v.std(ddof=1) / len(v) ** 0.5) if len(v := few[name]) > 1 else None for name in clients],
        "seen": [len(few[name]) for name in clients],
    }


OVER_ROUNDS = {
    "contribution": "What each client is worth so far",
    "explained": "Share of each update that right labels explain",
}


def _over_rounds(events: Events, clients: Sequence[str]) -> list[dict[str, Any]]:
    """What else is told of every client in some rounds, (rounds, clients)."""
    found = []
    for key, title in OVER_ROUNDS.items():
        if told := [event for event in events if event.get(key)]:
            values = np.array([[event[key].get(name, np.nan) for name in clients] for event in told])
            found.append({"title": title, "rounds": [event["round"] for event in told], "clients": packed(values)})
    return found


def _cost(events: Events, column: Callable[[Mapping[str, Any]], Column]) -> dict[str, Any]:
    def total(told: Iterable[Mapping[str, float]]) -> Column:
        sums: dict[str, float] = {}
        for one in told:
            for name, value in one.items():
                sums[name] = sums.get(name, 0) + value
        return column(sums)

    trained = [event.get("train", {}) for event in events]
    return {
        "rounds": [event["round"] for event in events],
        "train-seconds": [event["seconds"] for event in events],
        "test-seconds": [event.get("evaluate-seconds", 0.0) for event in events],
        "bytes-down": total(event.get("bytes-down", {}) for event in events),
        "bytes-up": total(event.get("bytes-up", {}) for event in events),
        "cpu-seconds": total({n: told.get("cpu-seconds", 0.0) for n, told in one.items()} for one in trained),
        "trained": total({name: 1 for name in one} for one in trained),
    }


def _privacy(config: Mapping[str, Any], events: Events, clients: Sequence[str]) -> dict[str, Any] | None:
    """What every client has spent, round by round; or that nothing is guaranteed."""
    mode = config.get("privacy.mode", "off")
    if mode != "dp-sgd":
        return {"mode": mode, "text": "Noise on uploaded weights: no formal guarantee."} if mode != "off" else None
    spent, so_far = np.full((len(events), len(clients)), np.nan), np.full(len(clients), np.nan)
    for row, event in zip(spent, events, strict=True):
        for i, name in enumerate(clients):
            so_far[i] = event.get("train", {}).get(name, {}).get("epsilon", so_far[i])
        row[:] = so_far
    last = [None if np.isnan(value) else float(value) for value in so_far]
    return {
        "mode": mode,
        "text": f"ε that each client has spent with DP-SGD, at δ = {config['privacy.delta']:g}.",
        "epsilon": last,
        "rounds": packed(spent),
    }
