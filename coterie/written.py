"""The tables of a comparison as files: numbers for a program, and what is printed, for a page or a paper.

comparison.csv   a row for each method and cell, every figure in full
comparison.md    the printed tables in Markdown
comparison.tex   the same in LaTeX
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.rows import Rows, Table
from coterie.wire.files import write_atomically

IN_LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def write_tables(path: Path, rows: Rows, tables: Sequence[Table]) -> None:
    texts = {"csv": in_csv(rows), "md": in_markdown(tables), "tex": in_latex(tables)}
    for ending, text in texts.items():
        write_atomically(path / f"comparison.{ending}", text.encode())


def in_csv(rows: Rows) -> str:
    table, text = [_without_mappings(row) for row in rows.flat()], io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in table for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _without_mappings(row: Mapping[str, Any]) -> dict[str, Any]:
    """`gain` with a mean becomes `gain.mean`."""
    plain = {key: value for key, value in row.items() if not isinstance(value, Mapping)}
    nested = {key: value for key, value in row.items() if isinstance(value, Mapping)}
    return plain | {f"{key}.{inner}": value for key, values in nested.items() for inner, value in values.items()}


def in_markdown(tables: Sequence[Table]) -> str:
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    lines = [_line(table.head), _line(["---"] * len(table.head)), *(_line(row) for row in table.rows)]
    caption = [table.caption, ""] if table.caption else []
    return "\n".join([f"**{table.title}**", "", *lines, "", *caption])


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def in_latex(tables: Sequence[Table]) -> str:
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    head, *rows = (" & ".join(text.translate(IN_LATEX) for text in row) + r" \\" for row in (table.head, *table.rows))
    caption = ". ".join(text for text in (table.title, table.caption) if text).translate(IN_LATEX)
    columns = "l" + "r" * (len(table.head) - 1)
    begin = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}", r"\hline"]
    end = [r"\hline", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*begin, head, r"\hline", *rows, *end])
