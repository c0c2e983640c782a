"""In which order clients stand in a matrix, and who stands together.

Neighbours are found by average linkage (scipy), the number of groups by the best silhouette, if that is one to speak of.
Where it is not and the values have a sign, clients stand together while they help each other on average.
"""

from collections.abc import Sequence

import numpy as np

from coterie.strategies.findings import Finding

Groups = list[list[int]]  # places of clients, each client once
CLEAR = 0.25  # the silhouette from which on groups are told of
MOST_GROUPS, LEAST_SIZE = 20, 20  # more groups are tried where they still have this many clients on average


def is_signed(values: np.ndarray) -> bool:
    off = values[~np.eye(len(values), dtype=bool)]
    return bool(len(off)) and bool((off < 0).any())


def ordered(finding: Finding, given: Sequence[Sequence[str]]) -> tuple[list[int], Groups]:
    """The clients in the order of a picture, and the groups among them: the given ones, else those that the values show."""
    number = len(finding.clients)
    if number < 3:
        return list(range(number)), [list(range(number))] if given and number > 1 else []
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    distances = _distances(finding)
    condensed = squareform(distances, checks=False)
    tree = linkage(condensed, "average")
    if number <= 200:
        tree = optimal_leaf_ordering(tree, condensed)
    leaves = leaves_list(tree).tolist()
    groups = _given(finding.clients, given) or _cut(tree, finding, distances)
    if leaves.index(0) > number // 2:
        leaves.reverse()  # as good an order, and the first client is rather at the top
    turn = {client: place for place, client in enumerate(leaves)}
    groups = sorted(
        (sorted(members, key=turn.__getitem__) for members in groups),
        key=lambda members: np.mean([turn[member] for member in members]),
    )
    return [client for members in groups for client in members] or leaves, groups


def _distances(finding: Finding) -> np.ndarray:
    values = np.nan_to_num(np.asarray(finding.values, dtype=float))
    if finding.facts.get("distance"):
        far = values.max() if len(values) else 0.0
        distances = np.where(values < 0, far, values)  # below zero: not known
    else:
        distances = values.max() - values
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0.0)
    return np.asarray(distances)


def _given(clients: Sequence[str], given: Sequence[Sequence[str]]) -> Groups:
    """Every client in the largest of its groups; alone, if it is in none."""
    if not given:
        return []
    largest = sorted(given, key=len, reverse=True)
    home = {name: next((i for i, members in enumerate(largest) if name in members), -1) for name in clients}
    groups: dict[object, list[int]] = {}
    for place, name in enumerate(clients):
        groups.setdefault(home[name] if home[name] >= 0 else name, []).append(place)
    return list(groups.values())


def _cut(tree: np.ndarray, finding: Finding, distances: np.ndarray) -> Groups:
    from scipy.cluster.hierarchy import fcluster
    from sklearn.metrics import silhouette_score

    best, found = CLEAR, np.ones(len(distances))
    most = max(MOST_GROUPS, len(distances) // LEAST_SIZE)
    for number in range(2, min(most, len(distances) - 1) + 1):
        labels = fcluster(tree, number, "maxclust")
        if 1 < len(set(labels.tolist())) < len(labels):
            score = silhouette_score(distances, labels, metric="precomputed")
            if score > best:
                best, found = score, labels
    if len(set(found.tolist())) > 1:
        return _grouped(found)
    values = np.asarray(finding.values, dtype=float)
    if finding.facts.get("distance") or not is_signed(values):
        return []
    return _grouped(fcluster(tree, np.nextafter(values.max(), -np.inf), "distance"))


def _grouped(labels: np.ndarray) -> Groups:
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
