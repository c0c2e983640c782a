"""Tables: `Rows` has values to reckon with, `Table` has texts to look at, in a terminal, a report or a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from coterie.wire.errors import CoterieError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.head)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in self.rows)
        below = f"<p><small>{escape(self.caption)}</small></p>" if self.caption else ""
        return f"<p><b>{escape(self.title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"


class Rows(list[dict[str, Any]]):
    """A list of rows, each a dict with the same keys; what is not known is None.

    >>> rows = Rows([{"client": "0", "accuracy": 0.91}, {"client": "1", "accuracy": None}])
    >>> rows.column("client")
    ['0', '1']
    """

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self]

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas DataFrame; a mean with its standard deviation makes two columns, `accuracy` and `accuracy-std`."""
        try:
            import pandas
        except ImportError:
            raise CoterieError(
                "to_pandas: pandas is not installed; pip install pandas, or use the rows as they are"
            ) from None
        return pandas.DataFrame(self.flat())

    def flat(self) -> list[dict[str, Any]]:
        """Plain values: a mean with its standard deviation is two of them."""
        return [_flat(row) for row in self]

    def as_table(self, title: str = "") -> Table:
        rows = self.flat()
        head = list(dict.fromkeys(name for row in rows for name in row))
        return Table(title, head, [[_text(row.get(name)) for name in head] for row in rows])

    def _repr_html_(self) -> str:
        return self.as_table()._repr_html_()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and set(value) == {"mean", "std"}:
            flat |= {key: value["mean"], f"{key}-std": value["std"]}
        else:
            flat[key] = value
    return flat


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
