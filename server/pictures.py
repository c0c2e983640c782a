"""Pictures of a run. matplotlib is imported only when one is drawn."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tasks.files import write_atomically

MAX_TICKS = 30


def heatmaps(path: Path, matrices: Mapping[str, np.ndarray], clients: Sequence[str]) -> None:
    """Matrices of clients by clients, side by side. The diagonal is left blank: a client's likeness to itself says nothing."""
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    figure = Figure(figsize=(5.6 * len(matrices), 5.0), layout="constrained")
    step = max(1, -(-len(clients) // MAX_TICKS))
    ticks = range(0, len(clients), step)
    for axes, (title, matrix) in zip(np.atleast_1d(figure.subplots(1, len(matrices))), matrices.items(), strict=True):
        shown = np.array(matrix, dtype=float)
        np.fill_diagonal(shown, np.nan)
        image = axes.imshow(shown, cmap="viridis", interpolation="nearest")
        axes.set_title(title)
        axes.set_xticks(ticks, [clients[i] for i in ticks], rotation=90, fontsize=7)
        axes.set_yticks(ticks, [clients[i] for i in ticks], fontsize=7)
        axes.set_xlabel("client")
        figure.colorbar(image, ax=axes, shrink=0.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
