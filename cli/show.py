"""Tables and remarks in a terminal: results on standard output, all else on standard error."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from coterie.rows import Table

WIDEST = 200  # columns of a table that goes to a file
NUMBER = re.compile(r"[+-]?\d[\d.]*( ± [\d.]+| of \d+| %| to [+-][\d.]+)?")


def show(tables: Iterable[Table]) -> None:
    """Columns of numbers stand to the right."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDEST
    for table in tables:
        printed = Printed(title=table.title, caption=table.caption or None)
        for i, name in enumerate(table.head):
            numbers = any(NUMBER.fullmatch(row[i]) for row in table.rows) and i > 0
            printed.add_column(name, justify="right" if numbers else "left", no_wrap=i == 0, overflow="fold")
        for row in table.rows:
            printed.add_row(*map(Text, row))  # not as markup: names and reasons come from strangers
        console.print(printed)


def say(text: str, *, stderr: bool = True) -> None:
    Console(stderr=stderr).print(text, highlight=False, markup=False, soft_wrap=True)


MOST_DRAWN = 24  # clients of a matrix in a terminal
SHADES = " ░▒▓█"


def show_matrix(run: Mapping[str, Any]) -> None:
    """Who trains with whom, a line for each client of a run of server/report/data.py, in the order of the coalitions."""
    clients, matrices = run["clients"], run["matrices"]
    if not matrices or len(clients) > MOST_DRAWN or not run["groups"]:
        return
    values, width = shades(matrices[0]), max(map(len, clients))
    mates = {i: [clients[j] for j in members if j != i] for members in run["groups"] for i in members}
    lines = []
    for place, row in zip(matrices[0]["order"], values, strict=True):
        drawn = "".join(SHADES[shade] * 2 for shade in row)
        with_whom = f"trains with {' '.join(mates[place])}" if mates.get(place) else "trains alone"
        lines.append(f"{clients[place]:>{width}} {drawn}  {with_whom}")
    say("\n".join(lines), stderr=False)


def shades(matrix: Mapping[str, Any]) -> list[list[int]]:
    """How dark each cell is, 0 to 4: what helps much, or what is near; what hurts is left white."""
    from coterie.server.report.data import unpacked

    values = unpacked(matrix["values"])
    if matrix["distance"]:
        values = np.nanmax(values) - values
    low = 0.0 if matrix["signed"] else float(np.nanmin(values))
    above = values[values > low]
    high = float(np.quantile(above, 0.9)) if len(above) else low + 1.0  # one that is far above all would pale the rest
    levels = np.clip(np.ceil(np.nan_to_num((values - low) / (high - low)) * 4), 0, 4)
    return [[int(level) for level in row] for row in levels]
