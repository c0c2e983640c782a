"""Pictures of a run. matplotlib is imported only when one is drawn."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_TICKS = 30


def heatmaps(matrices: Mapping[str, np.ndarray], clients: Sequence[str]) -> bytes:
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
    return png(figure)


def curves(events: Sequence[Mapping[str, Any]]) -> bytes:
    """How the models did over the rounds: the mean over clients as a line, from the worst to the best client as a band."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    metric = "accuracy" if any("personal.accuracy" in event["mean"] for event in events) else "loss"
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for kind, colour in (("global", "tab:orange"), ("personal", "tab:blue")):
        name = f"{kind}.{metric}"
        shown = [event for event in events if name in event["mean"]]
        rounds = [event["round"] for event in shown]
        values = [[client[name] for client in event["evaluate"].values() if name in client] for event in shown]
        if rounds:
            axes.plot(
                rounds, [event["mean"][name] for event in shown], color=colour, marker=".", label=f"{kind} models"
            )
            axes.fill_between(
                rounds, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15, lw=0
            )
    axes.set_xlabel("round")
    axes.set_ylabel(f"test {metric}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.legend()
    return png(figure)


def compared_curves(lines: Mapping[str, Sequence[Mapping[int, float]]], metric: str) -> bytes:
    """Methods over the rounds: name -> round -> mean over clients, for each seed. A line is the mean over seeds, a band one
    standard deviation on both sides."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (name, seeds) in enumerate(lines.items()):
        rounds = sorted(set.intersection(*[set(seed) for seed in seeds]))
        values = np.array([[seed[r] for r in rounds] for seed in seeds])  # (seeds, rounds)
        colour, line = f"C{i % 10}", "-" if i < 10 else "--"
        axes.plot(rounds, values.mean(axis=0), color=colour, linestyle=line, marker=".", label=name)
        if len(seeds) > 1:
            spread = values.std(axis=0, ddof=1)
            low, high = values.mean(axis=0) - spread, values.mean(axis=0) + spread
            axes.fill_between(rounds, low, high, color=colour, alpha=0.12, lw=0)
    axes.set_xlabel("round")
    axes.set_ylabel(f"test {metric}, personal models")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return png(figure)


def client_lines(events: Sequence[Mapping[str, Any]], key: str, bad: Sequence[str]) -> bytes:
    """What the events tell of each client under `key`, over the rounds; those known to be bad in red."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for client in sorted({name for event in events for name in event[key]}, key=lambda name: name in bad):
        points = [(event["round"], event[key][client]) for event in events if client in event[key]]
        colour = "tab:red" if client in bad else "tab:blue"
        axes.plot(*zip(*points, strict=True), color=colour, alpha=0.6, lw=1, marker="." if len(points) == 1 else None)
    axes.set_xlabel("round")
    axes.set_ylabel(key)
    axes.set_title("every client" + (", red: bad" if bad else ""))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    return png(figure)


def png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
