"""What a client tells of its table before a run: statistics of each column, never a cell.

    number       count, mean, sums of squared and cubed deviations, the same of the logarithms, and the middle: the mean of
                 the middle fifth of the values, which is close to the median and no single cell
    category     how often each one is there, if at least `min_count` rows have it; nobody is told of the others

Of numbers, too, nothing is told where fewer than `min_count` rows have one. They are of the rows that the client trains with.

With privacy (`noisy`) the columns and categories must be agreed beforehand in a schema. Then every row falls into one place
of each column, and the counts of all places are told with Gaussian noise: a row changes sqrt(columns) of them by one.
"""

import math
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from coterie.tasks.cells import Cells, key
from coterie.tasks.kinds import LEFT_OUT, NUMBER, Looked
from coterie.tasks.preparing import signed_log
from coterie.tasks.reading import Table
from coterie.tasks.schema import Column, Schema

MOST_CATEGORIES = 100
LARGEST_COUNT = 10**9
LINEAR_PLACES = 16  # of a column whose range is told
DECADES = np.arange(-3, 6.001, 0.25)  # powers of ten that bound the places of any other number
EDGES = np.concatenate([-(10.0 ** DECADES[::-1]), 10.0**DECADES])

_strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Moments(BaseModel):
    model_config = _strict

    count: int = Field(ge=0, le=LARGEST_COUNT)
    mean: float = Field(ge=-1e16, le=1e16)
    squares: float = Field(ge=0, le=1e45)
    cubes: float = Field(ge=-1e60, le=1e60)

    @classmethod
    def of(cls, values: np.ndarray) -> "Moments":
        mean = float(values.mean())
        away = values - mean
        return cls(count=len(values), mean=mean, squares=float((away**2).sum()), cubes=float((away**3).sum()))

    def joined(self, other: "Moments") -> "Moments":
        """Those of both groups of values together (Chan, Golub and LeVeque 1983)."""
        n = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        gap, a, b = other.mean - self.mean, self.count, other.count
        squares = self.squares + other.squares + gap**2 * a * b / n
        cubes = self.cubes + other.cubes + gap**3 * a * b * (a - b) / n**2
        cubes += 3 * gap * (a * other.squares - b * self.squares) / n
        return Moments(count=n, mean=self.mean + gap * b / n, squares=squares, cubes=cubes)

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def skewness(self) -> float:
        return self.cubes / self.count / self.std**3 if self.std > 1e-9 * max(abs(self.mean), 1e-9) else 0.0


class ColumnFacts(BaseModel):
    """What is told of one column. `kind` is one of kinds.py, in this client's file."""

    model_config = _strict

    name: str = Field(min_length=1, max_length=200)
    kind: str = Field(max_length=20)
    numeric: bool = False
    missing: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    values: Moments | None = None
    logs: Moments | None = None
    middle: float | None = Field(default=None, ge=-1e16, le=1e16)
    counts: dict[str, int] = Field(default_factory=dict, max_length=MOST_CATEGORIES)
    codes: list[Literal["-9", "-99", "-999", "-9999"]] = Field(default_factory=list, max_length=4)  # for missing cells
    noisy: list[float] = Field(default_factory=list, max_length=2 * MOST_CATEGORIES)


class Facts(BaseModel):
    model_config = _strict

    rows: int = Field(ge=1, le=LARGEST_COUNT)
    regression: bool
    label: ColumnFacts
    columns: list[ColumnFacts] = Field(max_length=10_000)


def facts_of(looked: Looked, rows: np.ndarray, min_count: int) -> Facts:
    """What is told of a table; numbers are those of `rows`."""
    table = looked.table.take(rows)
    columns = []
    for name, kind in looked.kinds.items():
        cells = table.columns[name]
        if kind in LEFT_OUT:
            columns.append(ColumnFacts(name=cells.name, kind=kind))
        else:
            columns.append(_column_facts(cells, kind, min_count))
    label = table.columns[looked.label]
    kind = NUMBER if looked.regression else "category"
    return Facts(
        rows=len(table),
        regression=looked.regression,
        label=_column_facts(label, kind, min_count),
        columns=columns,
    )


def _column_facts(cells: Cells, kind: str, min_count: int) -> ColumnFacts:
    values = cells.values
    counts = {text: count for text, count in cells.counts.items() if count >= min_count}
    often = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CATEGORIES])
    if values is None:
        missing = 0 if cells.codes is None else int((cells.codes < 0).sum())
        return ColumnFacts(name=cells.name, kind=kind, missing=_told(missing, min_count), counts=often)
    there = values[~np.isnan(values)]
    few = len(there) < max(min_count, 1)
    return ColumnFacts(
        name=cells.name,
        kind=kind,
        numeric=True,
        missing=_told(len(values) - len(there), min_count),
        values=None if few else Moments.of(there),
        logs=None if few else Moments.of(signed_log(there)),
        middle=None if few else middle(there, min_count),
        counts=often if kind != NUMBER else {},
        codes=list(cells.coded_missing),  # type: ignore[arg-type]
    )


def _told(count: int, min_count: int) -> int:
    return count if count >= min_count else 0


def middle(values: np.ndarray, min_count: int) -> float:
    """The mean of the middle fifth of the values, and of at least `min_count` of them."""
    width = min(len(values), max(min_count, len(values) // 5))
    start = (len(values) - width) // 2
    return float(np.sort(values)[start : start + width].mean())


def places_of(column: Column) -> int:
    """How many counts are told of a column under privacy: places of its values, other, missing."""
    if column.kind != NUMBER:
        return len(column.categories) + 2
    return (LINEAR_PLACES if column.range else len(EDGES) + 1) + 1


def noisy_facts(schema: Schema, table: Table, noise: float, rng: np.random.Generator) -> Facts:
    """The counts of every place with noise; `noise` is in units of what one row can change."""
    encoded = schema.encode(table)
    told = len(schema.columns) + schema.regression
    columns = [_noisy(column, encoded[:, i], noise * math.sqrt(told), rng) for i, column in enumerate(schema.columns)]
    label = ColumnFacts(name=schema.label, kind="category")
    if schema.regression:
        values = table.columns[key(schema.label)].values
        assert values is not None
        label = _noisy(Column(schema.label, NUMBER), values, noise * math.sqrt(told), rng)
    return Facts(rows=1, regression=schema.regression, label=label, columns=columns)


def _noisy(column: Column, values: np.ndarray, deviation: float, rng: np.random.Generator) -> ColumnFacts:
    number = places_of(column)
    there = ~np.isnan(values)
    if column.kind != NUMBER:
        places = values[there].astype(np.int64)
    elif column.range:
        low, high = column.range
        places = np.clip((values[there] - low) / (high - low) * LINEAR_PLACES, 0, LINEAR_PLACES - 1).astype(np.int64)
    else:
        places = np.searchsorted(EDGES, values[there])
    counts = np.bincount(places, minlength=number).astype(np.float64)
    counts[-1] = (~there).sum()
    noisy = (counts + rng.normal(0.0, deviation, number)).tolist()
    return ColumnFacts(name=column.name, kind=column.kind, numeric=column.kind == NUMBER, noisy=noisy)


def middles_of(column: Column) -> np.ndarray:
    """The value that stands for each place of a number under privacy."""
    if column.range:
        low, high = column.range
        return low + (np.arange(LINEAR_PLACES) + 0.5) * (high - low) / LINEAR_PLACES
    between = np.sign(EDGES[:-1]) * np.sqrt(np.abs(EDGES[:-1] * EDGES[1:]))
    between[len(DECADES) - 1] = 0.0
    return np.concatenate([EDGES[:1], between, EDGES[-1:]])


def facts_by(schema: Schema, table: Table, min_count: int) -> Facts:
    """What is told of a table whose columns were agreed on beforehand; refuses one that does not fit."""
    encoded = schema.encode(table)
    columns = []
    for place, column in enumerate(schema.columns):
        values = encoded[:, place]
        if column.kind == NUMBER:
            columns.append(_column_facts(Cells(column.name, numbers=values), NUMBER, min_count))
            continue
        there = values[~np.isnan(values)].astype(np.int64)
        often = np.bincount(there, minlength=len(column.categories) + 1)[: len(column.categories)].tolist()
        counts = {name: count for name, count in zip(column.categories, often, strict=True) if count >= min_count}
        missing = _told(len(values) - len(there), min_count)
        columns.append(ColumnFacts(name=column.name, kind=column.kind, missing=missing, counts=counts))
    label = table.columns[key(schema.label)]
    schema.targets(table)
    told = _column_facts(label, NUMBER if schema.regression else "category", min_count)
    return Facts(rows=len(table), regression=schema.regression, label=told, columns=columns)
