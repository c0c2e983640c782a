"""Tables and remarks in a terminal: results on standard output, all else on standard error."""

import re
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from coterie.rows import Table

WIDEST = 200  # columns of a table that goes to a file
NUMBER = re.compile(r"-?\d[\d.]*( ± [\d.]+| of \d+| %)?")


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
