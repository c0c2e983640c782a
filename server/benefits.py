"""Who is helped by whom, as a drawn graph: an arrow from each collaborator to the client it helps."""

import io
import math
from collections.abc import Mapping, Sequence

MOST_NAMES = 60  # clients up to which each is labelled
ALONE = "#c9d1dc"


def benefit_graph(collaborators: Mapping[str, Sequence[str]], coalitions: Sequence[Sequence[str]]) -> bytes:
    """Clients of a coalition stand together in one colour and inside one line; without coalitions all stand on a circle."""
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state
    from matplotlib.patches import Circle, FancyArrowPatch

    groups = [list(members) for members in coalitions] or [list(collaborators)]
    places, rings = positions(groups)
    size = max(5.0, 1.1 * math.sqrt(len(collaborators)) + 3)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    dots: dict[str, Circle] = {}
    for i, (members, (x, y, width)) in enumerate(zip(groups, rings, strict=True)):
        colour = f"C{i % 10}" if coalitions and len(members) > 1 else ALONE
        if coalitions and len(members) > 1:
            axes.add_patch(Circle((x, y), width, facecolor=colour, alpha=0.12, edgecolor=colour, lw=1.5))
        for name in members:
            dots[name] = Circle(places[name], 0.34, facecolor=colour, edgecolor="white", lw=1.5, zorder=3)
            axes.add_patch(dots[name])
            if len(collaborators) <= MOST_NAMES:
                axes.text(*places[name], name[:12], ha="center", va="center", fontsize=8, zorder=4, parse_math=False)
    for client, helpers in collaborators.items():
        for helper in helpers:
            if helper != client:
                arrow = FancyArrowPatch(
                    places[helper], places[client], patchA=dots[helper], patchB=dots[client], shrinkA=1, shrinkB=1,
                    arrowstyle="-|>", mutation_scale=11, color="#5a6475", lw=0.9, connectionstyle="arc3,rad=0.13", zorder=2,
                )  # fmt: skip
                axes.add_patch(arrow)
    axes.set_title("who helps whom" + (", and the coalitions" if coalitions else ""))
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.margins(0.08)
    axes.axis("off")
    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "coterie"}):  # same picture, same file
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def positions(
    groups: Sequence[Sequence[str]],
) -> tuple[dict[str, tuple[float, float]], list[tuple[float, float, float]]]:
    """Where each client stands, and for each group the middle and the radius of the line around it."""
    inner = [0.0 if len(members) == 1 else 0.62 / math.sin(math.pi / len(members)) for members in groups]
    widths = [radius + 0.6 for radius in inner]
    around = sum(2 * width for width in widths) / (2 * math.pi)
    outer = 0.0 if len(groups) == 1 else max(around * 1.15, max(widths) * 1.6)
    places: dict[str, tuple[float, float]] = {}
    rings: list[tuple[float, float, float]] = []
    turn = 0.0
    for members, radius, width in zip(groups, inner, widths, strict=True):
        middle = turn + width / sum(2 * w for w in widths)
        turn += 2 * width / sum(2 * w for w in widths)
        x, y = outer * math.cos(2 * math.pi * middle), outer * math.sin(2 * math.pi * middle)
        rings.append((x, y, width))
        for i, name in enumerate(members):
            angle = 2 * math.pi * i / len(members) + math.pi / 2
            places[name] = (x + radius * math.cos(angle), y + radius * math.sin(angle))
    return places, rings
