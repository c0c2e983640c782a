"""From the cells of a table to a network's inputs, by a schema that all clients agreed on.

scikit-learn's ColumnTransformer does it. Its parameters come from the schema and not from the rows at hand: each step is
fitted to two made-up rows that have just the agreed mean and deviation. So nothing has to be unpickled, ever.

    number, yes/no, ordered   fill, transform, (x - mean) / std, kept within +-LIMIT
    category                  fill, one-hot, with one more place for every other category
    missing                   1 where the cell was missing, for columns that have such cells
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.tasks.cells import Cells, key, shortened
from coterie.tasks.kinds import CATEGORY, NUMBER
from coterie.tasks.reading import Table
from coterie.tasks.samples import DataError, Dataset
from coterie.tasks.schema import Column, Schema

LIMIT = 10.0  # standard deviations
FAR = 6.0  # from which on a value is told to be outside of what was seen
PIECE = 20_000  # rows prepared at a time


def signed_log(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(x) * np.log1p(np.abs(x)))


def _signed_exp(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(x) * np.expm1(np.abs(x)))


def _clip(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(x, -LIMIT, LIMIT))


def prepared(schema: Schema, table: Table, new: bool = False) -> np.ndarray:
    """The inputs for each row, (rows, features) float32, all finite."""
    encoded = schema.encode(table, new)
    transformer = _transformer(schema.to_json())
    x = np.empty((len(encoded), len(schema.features)), np.float32)
    for start in range(0, len(encoded), PIECE):
        x[start : start + PIECE] = transformer.transform(encoded[start : start + PIECE])
    return x


def dataset_of(schema: Schema, table: Table) -> Dataset:
    """The prepared samples with their labels."""
    x = prepared(schema, table)
    width = x.shape[1]
    return Dataset(
        x,
        schema.targets(table),
        len(schema.classes),
        np.zeros(width, np.float32),
        np.ones(width, np.float32),
        label_names=schema.classes,
        source=table.source,
    )


@lru_cache(maxsize=4)
def _transformer(schema_text: str) -> Any:
    """The ColumnTransformer of a schema; its features are those of `Schema.features`, in that order."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator

    schema = Schema.from_json(schema_text)
    if not schema.is_prepared:
        raise DataError("schema: says what the columns are, and not yet how they are prepared; a run finds that out.")
    steps: list[tuple[str, Any, list[int]]] = []
    rows = np.empty((2, len(schema.columns)))
    for place, column in enumerate(schema.columns):
        steps.append((str(place), _steps(column), [place]))
        rows[:, place] = _made_up(column)
        if column.indicator:
            steps.append((f"{place} missing", MissingIndicator(features="all"), [place]))
    return ColumnTransformer(steps, sparse_threshold=0.0).fit(rows)


def _steps(column: Column) -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    fill = ("fill", SimpleImputer(strategy="constant", fill_value=column.fill, keep_empty_features=True))
    if column.kind == CATEGORY:
        places = [np.arange(len(column.categories) + 1, dtype=np.float64)]
        return Pipeline(
            [fill, ("one-hot", OneHotEncoder(categories=places, sparse_output=False, handle_unknown="ignore"))]
        )
    transform = [("log", FunctionTransformer(signed_log))] if column.transform == "log" else []
    return Pipeline([fill, *transform, ("scale", StandardScaler()), ("limit", FunctionTransformer(_clip))])


def _made_up(column: Column) -> np.ndarray:
    """Two cells whose mean and deviation, after the transform, are the agreed ones."""
    if column.kind == CATEGORY:
        return np.zeros(2)
    pair = np.array([column.mean - column.std, column.mean + column.std])
    return _signed_exp(pair) if column.transform == "log" else pair


def at_home(schema: Schema, table: Table) -> Schema:
    """The same with fill, mean and deviation of this table's own numbers, where it has enough of them."""
    encoded = schema.encode(table)
    columns = []
    for place, column in enumerate(schema.columns):
        values = encoded[~np.isnan(encoded[:, place]), place]
        if column.kind == NUMBER and len(values) > 1:
            turned = signed_log(values) if column.transform == "log" else values
            if turned.std() > 1e-9 * max(1.0, abs(turned.mean())):
                fill, mean, std = float(np.median(values)), float(turned.mean()), float(turned.std())
                column = replace(column, fill=fill, mean=mean, std=std)
        columns.append(column)
    return replace(schema, columns=tuple(columns))


@dataclass(frozen=True)
class Outside:
    """A cell that is not like what was seen in training."""

    line: int
    column: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.text}"


def outside(schema: Schema, table: Table) -> list[Outside]:
    """Numbers far from those seen, and words that nobody had; the first of each column."""
    encoded = schema.encode(table, new=True)
    found = []
    for place, column in enumerate(schema.columns):
        if column.kind == NUMBER:
            rows, said = _far(column, encoded[:, place])
        else:
            rows, said = _unknown(column, table.columns[key(column.name)])
        if len(rows):
            more = f"; {len(rows)} such cells" if len(rows) > 1 else ""
            found.append(Outside(int(table.lines[rows[0]]), column.name, said + more))
    return found


def out_of_range(schema: Schema, table: Table) -> list[Outside]:
    """Numbers that are outside of the range that the schema tells; the first of each column."""
    ranged = replace(schema, columns=tuple(column for column in schema.columns if column.range))
    return outside(ranged, table) if ranged.columns else []


def _far(column: Column, values: np.ndarray) -> tuple[np.ndarray, str]:
    if column.range:
        low, high = column.range
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero((values < low) | (values > high))
        return rows, f"{values[rows[0]]:g} is outside of {low:g} to {high:g}" if len(rows) else ""
    turned = signed_log(values) if column.transform == "log" else values
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(np.abs(turned - column.mean) > FAR * column.std)
    seen = f"mean {column.mean:.4g}, deviation {column.std:.4g}" + ", of the logarithm" * (column.transform == "log")
    return rows, f"{values[rows[0]]:g} is far from what was seen in training ({seen})" if len(rows) else ""


def _unknown(column: Column, cells: Cells) -> tuple[np.ndarray, str]:
    rows = np.flatnonzero(cells.coded(column.categories) == len(column.categories))
    if not len(rows):
        return rows, ""
    text = shortened(cells.text(int(rows[0])))
    if column.kind == CATEGORY:
        return rows, f"{text} was not told in training, and counts as (other)"
    return rows, f"{text} is none of {', '.join(column.categories[:5])}, and counts as missing"
