"""What the groups look like from outside: who trains with whom, and how far clients are from their own and other groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.games.prototypes import Kinds, Prototypes, to_groups
from coterie.strategies.findings import Finding

MOST_NAMED = 12  # groups, and clients of a group, that are told of by name in a line


def groups_found(
    clients: Sequence[str],
    told: Sequence[Prototypes],
    groups: Mapping[str, Sequence[str]],
    threshold: float,
    unknown: Sequence[str] = (),
) -> list[Finding]:
    """`groups`, with each client's T to its own and to the nearest other one, and `kinds`, T between all pairs. Of some members
    of groups, and of those who are `unknown`, nothing can be compared."""
    if not clients:
        return []
    kinds = Kinds(told)
    place = {client: row for row, client in enumerate(clients)}
    members = [list(group) for group in groups.values()]
    rows = [[place[client] for client in group if client in place] for group in members]
    facts: dict[str, dict[str, Any]] = {}
    for client, row in place.items():
        distances = to_groups(kinds, row, rows)
        own = next(number for number, group in enumerate(members) if client in group)
        others = {n: float(t) for n, t in enumerate(distances) if n != own and not np.isnan(t)}
        nearest = min(others, key=lambda number: others[number], default=None)
        facts[client] = {
            "own": None if np.isnan(distances[own]) else float(distances[own]),
            "nearest": [] if nearest is None else members[nearest],
            "to-nearest": None if nearest is None else others[nearest],
        }
    alone = [group[0] for group in members if len(group) == 1]
    table = np.nan_to_num(kinds.all_distances(), nan=-1.0)
    words = "; ".join([in_words(members), *how_near(facts), *with_the_largest(unknown)])
    more = {"clients": facts, "alone": alone, "unknown": list(unknown), "in-words": words}
    return [
        Finding("groups", "groups", members, facts=more),
        Finding.pairs("kinds", list(clients), table, bound=threshold, distance=True),
    ]


def in_the_event(findings: Sequence[Finding]) -> dict[str, Any]:
    """What the event line tells in a round in which groups were formed or joined."""
    if not findings:
        return {}
    groups, kinds = findings
    return {
        "alone": groups.facts["alone"],
        "unknown": groups.facts["unknown"],
        "distances": groups.facts["clients"],
        "kinds": {"clients": list(kinds.clients), "values": kinds.values.round(3).tolist()},
    }


def how_near(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Who is furthest from the own group, and who nearest to another one."""
    own = {client: fact["own"] for client, fact in facts.items() if fact["own"] is not None}
    other = {client: fact["to-nearest"] for client, fact in facts.items() if fact["to-nearest"] is not None}
    words = []
    if own and (client := max(own, key=lambda one: own[one])):
        words.append(f"T is at most {own[client]:.1f} within groups ({client})")
    if other and (client := min(other, key=lambda one: other[one])):
        near = facts[client]["nearest"]
        words.append(f"T is at least {other[client]:.1f} to other groups ({client} to that of {near[0]})")
    return words


def with_the_largest(unknown: Sequence[str]) -> list[str]:
    if not unknown:
        return []
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    return [f"with the largest group, because their samples tell too little: {' '.join(unknown[:MOST_NAMED])}{more}"]


def in_words(groups: Sequence[Sequence[str]]) -> str:
    """A1 trains with A2 A3; B1 trains alone"""
    lines = []
    for first, *others in groups[:MOST_NAMED]:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        lines.append(f"{first} trains " + (f"with {' '.join(others[:MOST_NAMED])}{more}" if others else "alone"))
    if len(groups) > MOST_NAMED:
        lines.append(f"{len(groups) - MOST_NAMED} more groups")
    return "; ".join(lines)
