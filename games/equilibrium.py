"""Collaboration equilibrium: a partition of the clients that nobody has reason to leave (Cui et al. 2022).

Client i's optimal collaborator set OCS(i) is the smallest set of clients that gives it its best model. The benefit
graph has an edge j → i for every j in OCS(i). A strongly connected component without incoming edges is a stable
coalition: its members need each other and nobody else. Take these out, ask the others again whom they would choose
among themselves, and repeat until all clients are placed.

With U_i(C) the best that client i can do with the help of C, the partition satisfies both axioms of the paper:

    inner agreement   no part of a coalition serves all its members as well as the whole
    outer agreement   no other coalition serves all its members better than those they are in

Equal utilities (accuracies on few samples) can break them: use losses, prefer fewer collaborators when equal, and call
`check_axioms` afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.games import checks
from coterie.games.checks import FloatArray

if TYPE_CHECKING:
    import networkx as nx

Coalition = frozenset[int]
OptimalSet = Callable[[int, Coalition], Collection[int]]
ClientUtility = Callable[[int, Coalition], float]

MOST_CLIENTS = 16  # check_axioms looks at every coalition of so many clients, beyond them a largest size must be given


class Violation(NamedTuple):
    """A coalition whose members would rather be on their own."""

    axiom: str  # "inner agreement" or "outer agreement"
    coalition: Coalition


def collaboration_equilibrium(optimal_set: OptimalSet, n: int) -> list[Coalition]:
    """The coalitions in the order they become stable; `optimal_set(client, remaining)` is asked anew each time."""
    remaining = frozenset(range(checks.whole_number("n, the number of clients,", n, least=1)))
    coalitions: list[Coalition] = []
    while remaining:
        wishes: dict[int, Collection[int]] = {}
        for client in sorted(remaining):
            wishes[client] = frozenset(optimal_set(client, remaining)) | {client}
            strangers = frozenset(wishes[client]) - remaining
            if strangers:
                raise ValueError(
                    f"optimal_set of client {client} holds {sorted(strangers, key=str)[0]!r}, "
                    f"who is not among the remaining {sorted(remaining)}: choose among these"
                )
        stable = stable_coalitions(benefit_graph(wishes))
        coalitions += stable
        remaining -= frozenset().union(*stable)
    return coalitions


def benefit_graph(optimal_sets: Mapping[int, Collection[int]]) -> nx.DiGraph:
    """An edge j → i for every j in client i's optimal collaborator set."""
    import networkx as nx  # here: a client has none, and may import this file

    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(optimal_sets)
    graph.add_edges_from((other, client) for client, wish in optimal_sets.items() for other in wish if other != client)
    return graph


def stable_coalitions(graph: nx.DiGraph) -> list[Coalition]:
    """The strongly connected components that no edge enters, by their smallest client."""
    import networkx as nx

    components = [frozenset(component) for component in nx.strongly_connected_components(graph)]
    closed = [part for part in components if all(set(graph.predecessors(client)) <= part for client in part)]
    return sorted(closed, key=min)


def exhaustive_optimal_set(utility: ClientUtility) -> OptimalSet:
    """An `optimal_set` that tries every coalition of the remaining clients; of equally good ones it takes a smallest.

    For few clients: it asks for 2^(remaining - 1) utilities. Higher is better: pass minus a loss.
    """

    def optimal_set(client: int, remaining: Coalition) -> Coalition:
        candidates = (part | {client} for part in _subsets(remaining - {client}, len(remaining), least=0))
        return max(candidates, key=lambda part: _value(utility, client, part))  # the first, thus smallest, of the best

    return optimal_set


def collaborators_from_weights(weights: ArrayLike, client: int, *, threshold: float = 0.1) -> Coalition:
    """The optimal collaborators in a preference vector d on the simplex: d_j ≥ threshold · max d, and the client."""
    d = _preferences(weights)
    if d.ndim != 1:
        raise ValueError(f"weights has the shape {d.shape}: give one weight per client")
    client = checks.whole_number("client", client, least=0, most=d.size - 1)
    threshold = checks.fraction("threshold", threshold)
    chosen = np.flatnonzero((d > 0) & (d >= threshold * d.max()))
    return frozenset(chosen.tolist()) | {client}


def check_axioms(
    utility: ClientUtility, coalitions: Collection[Collection[int]], *, largest: int | None = None
) -> list[Violation]:
    """Every coalition that breaks an axiom, by brute force; an empty list means an equilibrium.

    `utility(client, coalition)` is the best the client can do with the coalition's help, higher is better. With
    `largest` only coalitions of at most so many clients are tried as deviations.
    """
    clients = sorted(client for coalition in coalitions for client in coalition)
    if clients != list(range(len(clients))) or not clients:
        raise ValueError(f"coalitions hold the clients {clients}: every client from 0 on must be in exactly one")
    if largest is None and len(clients) > MOST_CLIENTS:
        raise ValueError(f"{len(clients)} clients have 2^{len(clients)} coalitions: give largest, for example 3")
    size = len(clients) if largest is None else checks.whole_number("largest", largest, least=1)
    home = {client: checks.members("a coalition", c, len(clients)) for c in coalitions for client in c}
    current = {client: _value(utility, client, home[client]) for client in clients}
    violations = []
    for part in _subsets(frozenset(clients), size):
        whole = home[min(part)]
        if part == whole:
            continue
        if part < whole:
            if all(_value(utility, client, part) >= current[client] for client in part):
                violations.append(Violation("inner agreement", part))
        elif all(_value(utility, client, part) > current[client] for client in part):
            violations.append(Violation("outer agreement", part))
    return violations


def linear_pareto_front(grams: ArrayLike, moments: ArrayLike, preferences: ArrayLike) -> FloatArray:
    """The Pareto optimal linear models θ(d) = (Σ d_i A_i)⁻¹ Σ d_i b_i, exactly.

    grams A_i = X_iᵀX_i / n_i, (clients, features, features); moments b_i = X_iᵀy_i / n_i, (clients, features);
    preferences d, (clients,) or (points, clients), not negative. Returns (features,) or (points, features).
    """
    a, b = checks.finite_array("grams", grams, ndim=3), checks.finite_array("moments", moments, ndim=2)
    d = _preferences(preferences)
    if a.shape != (*b.shape, b.shape[1]) or d.shape[-1] != len(b):
        raise ValueError(f"grams {a.shape}, moments {b.shape} and preferences {d.shape} do not fit together")
    mixed = np.einsum("...i,ijk->...jk", d, a)
    if (np.linalg.cond(mixed) > 1 / np.finfo(float).eps).any():
        raise ValueError("Σ d_i A_i is singular: these clients have too few samples, give weight to more of them")
    points: FloatArray = np.linalg.solve(mixed, (d @ b)[..., None])[..., 0]
    return points


def _value(utility: ClientUtility, client: int, coalition: Coalition) -> float:
    value = utility(client, coalition)
    if not np.isfinite(value):
        raise ValueError(f"utility of client {client} in coalition {sorted(coalition)} is {value}: it must be finite")
    return value


def _preferences(weights: ArrayLike) -> FloatArray:
    d = checks.finite_array("preferences", weights, ndim=np.ndim(weights))
    if d.ndim not in (1, 2) or (d < 0).any() or (d.sum(axis=-1) == 0).any():
        raise ValueError(f"preferences must be vectors of weights ≥ 0, not all 0, but they are {d.tolist()}")
    return d


def _subsets(clients: Coalition, most: int, *, least: int = 1) -> Iterator[Coalition]:
    """Subsets by size, smallest first."""
    for size in range(least, min(most, len(clients)) + 1):
        yield from map(frozenset, itertools.combinations(sorted(clients), size))
