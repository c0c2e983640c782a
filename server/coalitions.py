"""Who trains with whom, as pictures. matplotlib is imported only when one is drawn."""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.server.pictures import png

MOST_NAMES = 40  # clients up to which a picture names them


def circles(places: Mapping[str, Sequence[float]], coalitions: Sequence[Sequence[str]]) -> bytes:
    """Every client's model as a point, every coalition as a circle around its members."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.subplots()
    points = np.array(list(places.values()))
    margin = 0.015 * float(np.ptp(points, axis=0).max() or 1.0)
    colours = colormaps["tab20"]
    for i, members in enumerate(coalitions):
        inside = np.array([places[member] for member in members if member in places])
        centre = (inside.min(axis=0) + inside.max(axis=0)) / 2
        radius = float(np.linalg.norm(inside - centre, axis=1).max()) + margin
        axes.add_patch(Circle((centre[0], centre[1]), radius, fill=False, lw=1.2, alpha=0.7, color=colours(i % 20)))
    axes.scatter(points[:, 0], points[:, 1], s=14, color="black", zorder=3)
    if len(places) <= MOST_NAMES:
        for name, (x, y) in places.items():
            axes.annotate(name, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    axes.set_title(f"models of {len(places)} clients, {len(coalitions)} coalitions")
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second")
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    return png(figure)


def errors_by_mechanism(errors: Mapping[str, np.ndarray]) -> bytes:
    """Every client's error under every mechanism; clients in the order of their error alone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    order = np.argsort(next(iter(errors.values())))
    for name, values in errors.items():
        axes.plot(values[order], marker=".", ms=4, lw=1, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(f"clients, by {next(iter(errors))} error")
    axes.set_ylabel("squared error of the parameters")
    axes.grid(alpha=0.3)
    axes.legend()
    return png(figure)


def share_by_sweeps(sweeps: Sequence[int]) -> bytes:
    """Which share of the games had ended after how many sweeps."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    most = max(sweeps) + 1
    axes.step(
        range(most + 1), [np.mean([s <= k for s in sweeps]) for k in range(most + 1)], where="post", color="tab:blue"
    )
    axes.set_xlabel("sweeps over all clients")
    axes.set_ylabel(f"share of {len(sweeps)} games that have ended")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    return png(figure)


def mixing_curves(samples: Sequence[int], weights: np.ndarray, labels: Sequence[str]) -> bytes:
    """The share of every model in a client's mixture, (numbers of samples, models)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, column in zip(labels, weights.T, strict=True):
        axes.plot(samples, column, lw=2 if label == "own model" else 1, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("training samples of the client")
    axes.set_ylabel("weight in its mixture")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return png(figure)
