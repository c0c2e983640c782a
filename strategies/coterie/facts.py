"""What the groups look like from outside: who trains with whom, and how far clients are from their own and other groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.games.prototypes import Kinds, Prototypes, to_groups
from coterie.strategies.findings import Finding

MOST_NAMED = 12  # groups, and clients of a group, that are told of by name in a line


def groups_found(
    clients: Sequence[str], told: Sequence[Prototypes], groups: Mapping[str, Sequence[str]], threshold: float
) -> list[Finding]:
    """`groups`, with each client's T to its own and to the nearest other one, and `kinds`, T between all pairs."""
    if not clients:
        return []
    kinds = Kinds(told)
    members = [list(group) for group in groups.values()]
    rows = [[clients.index(client) for client in group] for group in members]
    facts: dict[str, dict[str, Any]] = {}
    for i, client in enumerate(clients):
        distances = to_groups(kinds, i, rows)
        own = next(number for number, row in enumerate(rows) if i in row)
        others = {n: float(t) for n, t in enumerate(distances) if n != own and not np.isnan(t)}
        nearest = min(others, key=lambda number: others[number], default=None)
        facts[client] = {
            "own": None if np.isnan(distances[own]) else float(distances[own]),
            "nearest": [] if nearest is None else members[nearest],
            "to-nearest": None if nearest is None else others[nearest],
        }
    alone = [group[0] for group in members if len(group) == 1]
    table = np.nan_to_num(kinds.all_distances(), nan=-1.0)
    return [
        Finding("groups", "groups", members, facts={"clients": facts, "alone": alone, "in-words": in_words(members)}),
        Finding.pairs("kinds", list(clients), table, bound=threshold, distance=True),
    ]


def in_words(groups: Sequence[Sequence[str]]) -> str:
    """A1 trains with A2 A3; B1 trains alone"""
    lines = []
    for first, *others in groups[:MOST_NAMED]:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        lines.append(f"{first} trains " + (f"with {' '.join(others[:MOST_NAMED])}{more}" if others else "alone"))
    if len(groups) > MOST_NAMED:
        lines.append(f"{len(groups) - MOST_NAMED} more groups")
    return "; ".join(lines)
