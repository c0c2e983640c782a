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
TAKES = "takes, does not give"
HELPERS, FEWEST, FAR = 3, 6, 7.0  # of a client; clients to compare with; deviations from the median
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
    return [*_suspects(findings), *_takers(findings), *told, *_slow(events, clients)]


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


def _takers(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Who is helped far more than is usual, by clients whom its own model hurts: its data differ from theirs, or are bad."""
    told = findings.get("relevance")
    if told is None or len(told.clients) < FEWEST:
        return []
    values = np.nan_to_num(np.asarray(told.values, dtype=float))
    np.fill_diagonal(values, -np.inf)
    helpers = np.argsort(-values, axis=1)[:, :HELPERS]  # (clients, helpers)
    here = np.arange(len(values))[:, None]
    gets, gives = values[here, helpers].mean(axis=1), values[helpers, here].mean(axis=1)
    usual = float(np.median(gets))
    spread = 1.4826 * float(np.median(np.abs(gets - usual)))
    if spread == 0:
        return []  # most are helped by nobody: what is usual is not known
    rows = []
    for i in np.flatnonzero((gives < 0) & (gets > max(0.0, usual + FAR * spread))).tolist():
        names = ", ".join(told.clients[j] for j in helpers[i].tolist())
        why = f"the models of {names} add {gets[i]:+.2g} to its own on average, and its model {gives[i]:+.2g} to theirs"
        rows.append(_row(told.clients[i], TAKES, why))
    return rows


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
