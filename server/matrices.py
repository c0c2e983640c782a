"""What a method says about pairs of clients, beside what a simulation knows of them: tables, a picture, one number.

How well a matrix ranks the true label overlap is Spearman's correlation over all pairs of different clients.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from coterie.server.pictures import heatmaps
from coterie.wire.files import write_atomically
from scipy.stats import spearmanr

PairMatrix = tuple[Sequence[str], np.ndarray]  # the clients, and a value for each pair of them: (clients, clients)


def write_matrices(run_dir: Path, matrices: Mapping[str, PairMatrix], overlap: PairMatrix | None) -> dict[str, float]:
    """`<name>.csv` and `<name>.png` for each; returns the correlation with the label overlap, where that is known."""
    correlations: dict[str, float] = {}
    for name, (clients, values) in matrices.items():
        if not clients:
            continue
        write_atomically(run_dir / f"{name}.csv", _as_csv(clients, values).encode())
        shown = {name: values}
        if overlap is not None:
            truth = _select(overlap, clients)
            shown["label overlap"] = truth
            if (value := correlation(values, truth)) is not None:
                correlations[name] = value
        heatmaps(run_dir / f"{name}.png", shown, clients)
    return correlations


def correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Spearman's correlation of the entries off the diagonal; None where one of them does not vary."""
    off_diagonal = ~np.eye(len(one), dtype=bool)
    x, y = one[off_diagonal], other[off_diagonal]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(spearmanr(x, y).statistic)


def exact_rows(values: np.ndarray, overlap: np.ndarray) -> float:
    """The share of clients whose positive values are exactly those of the clients that share a label with them."""
    right = ((values > 0) == (overlap > 0)) | np.eye(len(values), dtype=bool)
    return float(right.all(axis=1).mean())


def label_sharing(matrix: PairMatrix, overlap: PairMatrix) -> float:
    """`exact_rows` of a matrix, with the truth about the same clients in the same order."""
    return exact_rows(matrix[1], _select(overlap, matrix[0]))


def _select(matrix: PairMatrix, clients: Sequence[str]) -> np.ndarray:
    place = {client: i for i, client in enumerate(matrix[0])}
    chosen = [place[client] for client in clients]
    return matrix[1][np.ix_(chosen, chosen)]


def _as_csv(clients: Sequence[str], values: np.ndarray) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", *clients])
    for client, row in zip(clients, values, strict=True):
        writer.writerow([client, *[f"{value:.6g}" for value in row]])
    return text.getvalue()
