"""Whom a method found out to do harm, beside the truth where a simulation knows it."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.server.rundir import write_json
from coterie.wire.attack import AttackSettings, bad_clients


def write_suspects(run_dir: Path, judgement: Mapping[str, Any], bad: Collection[str] | None) -> dict[str, Any]:
    """`suspects.json`; returns what is in it. `bad` None: the truth is not known."""
    if not judgement:
        return {}
    found = dict(judgement)
    if bad is not None:
        found["bad-clients"] = [client for client in judgement["scores"] if client in bad]
        found |= precision_and_recall(judgement["suspects"], bad)
    write_json(run_dir / "suspects.json", found)
    return found


def precision_and_recall(suspects: Collection[str], bad: Collection[str]) -> dict[str, float | None]:
    """Share of the suspects that are bad, and share of the bad that are suspects; None where there are none."""
    both = len(set(suspects) & set(bad))
    return {"precision": both / len(suspects) if suspects else None, "recall": both / len(bad) if bad else None}


def known_bad_clients(attack: AttackSettings, clients: Sequence[str], seed: int) -> set[str] | None:
    """Who is bad by the run configuration; None where it does not say, or clients have names of their own."""
    if attack.kind == "none" or not (attack.clients or set(clients) == {str(i) for i in range(len(clients))}):
        return None
    return bad_clients(attack, clients, seed)


def in_words(found: Mapping[str, Any]) -> str:
    """One line for a terminal."""
    text = f"suspects, with a score below {found['score-below']:g}: {', '.join(found['suspects']) or 'none'}"
    if "bad-clients" not in found:
        return text
    rates = [f"{name} {found[name]:.2f}" for name in ("precision", "recall") if found[name] is not None]
    return f"{text} (bad are {', '.join(found['bad-clients'])}{''.join(f'; {rate}' for rate in rates)})"
