"""`findings.json`: what a method found out about clients (strategies/findings.py), beside what a simulation knows of them.

The truth about pairs is the overlap of their labels; how well a matrix ranks it is Spearman's correlation over all pairs of
different clients. The truth about suspects is who was told to do harm.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.server.checkpoints import write_json
from coterie.strategies.findings import Finding, as_json, from_json

PairMatrix = tuple[Sequence[str], np.ndarray]  # the clients, and a value for each pair of them: (clients, clients)
FILE = "findings.json"


def write_findings(
    run_dir: Path, findings: Iterable[Finding], overlap: PairMatrix | None, bad: Collection[str] | None
) -> None:
    """`overlap` and `bad` are the truth, where it is known."""
    checked = [beside_the_truth(finding, overlap, bad) for finding in findings]
    if checked:
        write_json(run_dir / FILE, as_json(checked))


def found(run_dir: Path) -> dict[str, Finding]:
    """What was found out in a run; nothing, where there is no such file."""
    path = run_dir / FILE
    return from_json(json.loads(path.read_text())) if path.exists() else {}


def beside_the_truth(finding: Finding, overlap: PairMatrix | None, bad: Collection[str] | None) -> Finding:
    facts: dict[str, Any] = {}
    comparable = finding.kind == "pairs" and not finding.facts.get("distance")  # what is far apart is not alike
    if comparable and overlap is not None and finding.clients:
        truth = _select(overlap, finding.clients)
        facts["label-overlap"] = truth.tolist()
        if (value := correlation(finding.values, truth)) is not None:
            facts["correlation-with-label-overlap"] = value
        if finding.name == "relevance":  # its sign means something
            facts["clients-whose-positive-scores-are-exactly-the-label-sharers"] = exact_rows(finding.values, truth)
    if finding.name == "suspects" and bad is not None:
        facts["bad-clients"] = [client for client in finding.values if client in bad]
        facts |= precision_and_recall(finding.facts["suspects"], bad)
    return replace(finding, facts={**finding.facts, **facts})


def correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Spearman's correlation of the entries off the diagonal; None where one of them does not vary."""
    from scipy.stats import spearmanr  # a second of start-up that only who asks should pay for

    off_diagonal = ~np.eye(len(one), dtype=bool)
    x, y = one[off_diagonal], other[off_diagonal]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(spearmanr(x, y).statistic)


def exact_rows(values: np.ndarray, overlap: np.ndarray) -> float:
    """The share of clients whose positive values are exactly those of the clients that share a label with them."""
    right = ((values > 0) == (overlap > 0)) | np.eye(len(values), dtype=bool)
    return float(right.all(axis=1).mean())


def _select(matrix: PairMatrix, clients: Sequence[str]) -> np.ndarray:
    place = {client: i for i, client in enumerate(matrix[0])}
    chosen = [place[client] for client in clients]
    return matrix[1][np.ix_(chosen, chosen)]


def precision_and_recall(suspects: Collection[str], bad: Collection[str]) -> dict[str, float | None]:
    """Share of the suspects that are bad, and share of the bad that are suspects; None where there are none."""
    both = len(set(suspects) & set(bad))
    return {"precision": both / len(suspects) if suspects else None, "recall": both / len(bad) if bad else None}


def suspects_in_words(finding: Finding) -> str:
    """One line for a terminal."""
    facts = finding.facts
    text = f"suspects, with a score below {facts['score-below']:g}: {', '.join(facts['suspects']) or 'none'}"
    if "bad-clients" not in facts:
        return text
    rates = [f"{name} {facts[name]:.2f}" for name in ("precision", "recall") if facts[name] is not None]
    return f"{text} (bad are {', '.join(facts['bad-clients'])}{''.join(f'; {rate}' for rate in rates)})"
