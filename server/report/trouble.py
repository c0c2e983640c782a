"""What went wrong in a run, a row for each client, kind of trouble and reason."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.strategies.findings import Finding

KINDS = {  # keys of an event: client -> why
    "left-out": "left out",
    "not-tested": "not tested",
    "not-admitted": "not admitted",
    "not-personalised": "kept its own model",
    "not-searched": "not searched",
    "left-game": "left the game",
}
SLOW = 3.0  # times the usual CPU seconds of a round
MOST_ROWS = 2000


def trouble(
    events: Sequence[Mapping[str, Any]],
    findings: Mapping[str, Finding],
    result: Mapping[str, Any],
    clients: Sequence[str],
) -> list[dict[str, Any]]:
    """`what` happened to `client`, `why`, in how many `rounds`, from the `first` to the `last`."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for event in events:
        for key, what in KINDS.items():
            for client, why in event.get(key, {}).items():
                if key != "not-tested" or client not in event.get("left-out", {}):
                    rows.setdefault((client, what, str(why)), []).append(event["round"])
        if back := event.get("rolled-back"):
            rows.setdefault(("", f"ruined: back to round {back['to-round']}", back["why"]), []).append(event["round"])
    for client, why in result.get("not-tested", {}).items():
        if why == "not connected":
            rows[client, "lost", why] = [events[-1]["round"]]
    told = [
        {"client": client, "what": what, "why": why, "rounds": len(when), "first": when[0], "last": when[-1]}
        for (client, what, why), when in list(rows.items())[:MOST_ROWS]
    ]
    return [*_suspects(findings), *told, *_slow(events, clients)]


def _row(client: str, what: str, why: str) -> dict[str, Any]:
    return {"client": client, "what": what, "why": why, "rounds": None, "first": None, "last": None}


def _suspects(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    if "suspects" not in findings:
        return []
    scores, facts = findings["suspects"].values, findings["suspects"].facts
    bad = facts.get("bad-clients")
    rows = []
    for client in facts["suspects"]:
        truth = "" if bad is None else "; it is bad" if client in bad else "; it is honest"
        rows.append(_row(client, "suspect", f"score {scores[client]:.1f}, below {facts['score-below']:g}{truth}"))
    missed = [client for client in bad or [] if client not in facts["suspects"]]
    return rows + [_row(client, "bad, not suspected", "by the run's configuration") for client in missed]


def _slow(events: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {}
    for event in events:
        for client, told in event.get("train", {}).items():
            if "cpu-seconds" in told:
                seconds.setdefault(client, []).append(told["cpu-seconds"])
    means = {client: float(np.mean(several)) for client, several in seconds.items()}
    usual = float(np.median(list(means.values()))) if means else 0.0
    return [
        _row(client, "slow", f"{mean:.2g} CPU s a round, {mean / usual:.1f} times the usual")
        for client, mean in means.items()
        if usual > 0 and mean > SLOW * usual and mean > 0.1
    ]
