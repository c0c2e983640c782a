"""What all clients of a table agree on: columns by name, their kinds and categories, the label, and how cells are prepared.

A schema is plain data. It is kept with the run (`schema.json`) and inside every model, so that `predict` needs nothing else.
Columns stand in the order of their names: the order in a file changes nothing.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.cells import Cells, key, number, plain, shortened
from coterie.tasks.kinds import CATEGORY, KINDS, NUMBER, YES_NO, not_a_number
from coterie.tasks.reading import Table
from coterie.tasks.samples import DataError, did_you_mean

VERSION = 1
LARGEST_SCHEMA = 2**22  # characters
MOST_COLUMNS = 10_000
TRANSFORMS = ("none", "log")  # log: sign(x) log(1 + |x|)


@dataclass(frozen=True)
class Column:
    name: str
    kind: str
    categories: tuple[str, ...] = ()  # of all kinds but numbers; whatever is none of them is "other"
    unit: str = ""
    range: tuple[float, ...] = ()  # least and largest, where told
    fill: float | None = None  # for a missing cell: a value, or the place of a category
    indicator: bool = False  # a feature says whether the cell is missing
    transform: str = "none"
    mean: float = 0.0  # after the transform
    std: float = 1.0

    def features(self) -> list[str]:
        names = [self.name]
        if self.kind == CATEGORY:
            names = [f"{self.name} = {category}" for category in (*self.categories, "(other)")]
        return [*names, f"{self.name} is missing"] if self.indicator else names


@dataclass(frozen=True)
class Schema:
    label: str
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()  # () is regression
    label_mean: float = 0.0  # of a value that is learned
    label_std: float = 1.0
    class_counts: tuple[int, ...] = ()  # rows of each class that the clients told of; () if they did not
    missing: str = ""  # codes for missing cells, as in the setting of that name; `predict` reads new tables by them
    left_out: Mapping[str, str] = field(default_factory=dict)  # column -> why
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was agreed: clients, rows, min-count, noise

    @property
    def regression(self) -> bool:
        return not self.classes

    @cached_property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features()]

    @property
    def is_prepared(self) -> bool:
        return all(column.fill is not None for column in self.columns)

    def bare(self) -> "Schema":
        """What the columns are, without how they are prepared, which a run finds out."""
        columns = tuple(
            Column(column.name, column.kind, column.categories, column.unit, column.range) for column in self.columns
        )
        return Schema(self.label, columns, self.classes, missing=self.missing, left_out=self.left_out)

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, ensure_ascii=False, indent=indent)

    @classmethod
    def from_json(cls, text: str, source: str = "schema") -> "Schema":
        try:
            if len(text) > LARGEST_SCHEMA:
                raise ValueError(f"more than {LARGEST_SCHEMA} characters")
            values = json.loads(text)
            if not isinstance(values, dict) or values.pop("version", None) != VERSION:
                raise ValueError(f"not version {VERSION}")
            columns = tuple(_column(column) for column in values.pop("columns"))
            tuples = {name: tuple(values.get(name, ())) for name in ("classes", "class_counts")}
            schema = cls(columns=columns, **{**values, **tuples})
            _check(schema)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{source}: not a schema of a table ({error}). Make one with `coterie schema`.") from None
        return schema

    def encode(self, table: Table, new: bool = False) -> np.ndarray:
        """The cells as numbers, NaN where one is missing, (rows, columns); refuses a table that does not fit. `new`: it is
        not one of a federation, but for a model that is asked."""
        self._must_have_all(table, new)
        encoded = np.empty((len(table), len(self.columns)))
        for place, column in enumerate(self.columns):
            encoded[:, place] = _encoded(column, table.columns[key(column.name)], table, new)
        return encoded

    def targets(self, table: Table) -> np.ndarray:
        """The labels as places among the classes, or the values, scaled."""
        if key(self.label) not in table.columns:
            raise DataError(
                f"{table.source}: has no column {self.label!r}, the label. Add it, or rename the one that is.",
                place=f"{table.source}, column {self.label}",
            )
        cells = table.columns[key(self.label)]
        if self.regression:
            values = cells.values
            if values is None:
                raise DataError(
                    f"{table.source}, column {cells.name}: the label must be a number, as the other clients' is.",
                    place=f"{table.source}, column {cells.name}",
                )
            return ((values - self.label_mean) / self.label_std).astype(np.float32)
        places = cells.coded(self.classes)
        wrong = np.flatnonzero((places < 0) | (places == len(self.classes)))
        if len(wrong):
            text = cells.text(int(wrong[0]))
            place = f"{table.source}, line {int(table.lines[wrong[0]])}, column {cells.name}"
            raise DataError(
                f"{place}: the label {shortened(text)} is none of the classes {', '.join(self.classes)}. Name all classes of all "
                "clients with --classes, or mend the row.",
                cell=shortened(text),
                place=place,
            )
        return places

    def _must_have_all(self, table: Table, new: bool) -> None:
        for column in self.columns:
            if key(column.name) not in table.columns:
                known = [cells.name for cells in table.columns.values()]
                others, leave = _others(column, new)
                raise DataError(
                    f"{table.source}: has no column {column.name!r}, a {column.kind} that {others}. Add it (its cells may be "
                    f"empty), {'or ' * new}rename the one that is it{leave}. {did_you_mean(column.name, known)}",
                    place=f"{table.source}, column {column.name}",
                )


def _others(column: Column, new: bool) -> tuple[str, str]:
    """Who has the column, and what else can be done about one that does not fit."""
    if new:
        return "the model has", ""
    return "the other clients have", f", or leave it out everywhere with --ignore {column.name}"


def _encoded(column: Column, cells: Cells, table: Table, new: bool) -> np.ndarray:
    where = f"{table.source}, column {cells.name}"
    others, leave = _others(column, new)
    if column.kind == NUMBER:
        values = cells.values
        if values is None:
            leave = leave.replace(" it ", " the column ")
            why = f"and {others} numbers in this column. Mend it, {'or ' * new}say which codes mean missing (--missing){leave}."
            raise not_a_number(table, cells, why)
        return values
    if cells.codes is None and cells.numbers is None:
        raise DataError(
            f"{where}: is free text or an id, and {others} a {column.kind} in this column. Rename it.",
            place=where,
        )
    places = cells.coded(column.categories).astype(np.float64)
    numeric = cells.values is not None and not np.isnan(cells.values).all()
    if numeric and not any(number(category) is not None for category in column.categories):
        raise DataError(
            f"{where}: has numbers, and {others} a {column.kind} of {', '.join(column.categories[:5])}. Write the "
            f"same words, {'or ' * new}rename the column{leave}.",
            place=where,
        )
    unknown = (
        len(column.categories) if column.kind != CATEGORY else -1
    )  # without a place of its own it counts as missing
    places[(places == -1) | (places == unknown)] = np.nan
    return places


def _column(values: Mapping[str, Any]) -> Column:
    return Column(
        **{**values, "categories": tuple(values.get("categories", ())), "range": tuple(values.get("range", ()))}
    )


def _check(schema: Schema) -> None:
    """Types and bounds: it may come from a stranger, or from an editor."""
    if not 0 < len(schema.columns) <= MOST_COLUMNS or not isinstance(schema.label, str) or not schema.label:
        raise ValueError("it needs a label and at least one column")
    keys = [key(column.name) for column in schema.columns]
    if len({*keys, key(schema.label)}) != len(keys) + 1:
        raise ValueError("two columns have the same name")
    if len(schema.classes) == 1 or len({plain(name) for name in schema.classes}) != len(schema.classes):
        raise ValueError("classes must be two or more different names, or none for regression")
    counts = schema.class_counts
    if counts and (len(counts) != len(schema.classes) or not all(type(n) is int and 0 <= n < 2**53 for n in counts)):
        raise ValueError("class_counts must be a number of rows for each class, or empty")
    if not isinstance(schema.missing, str):
        raise ValueError("missing must be a text")
    if not all(_is_finite(value) for value in (schema.label_mean, schema.label_std)) or schema.label_std <= 0:
        raise ValueError("label_mean and label_std must be finite, and label_std above 0")
    for column in schema.columns:
        _check_column(column)


def _check_column(column: Column) -> None:
    where = f"column {column.name!r}"
    if column.kind not in KINDS or column.transform not in TRANSFORMS:
        raise ValueError(f"{where}: kind is one of {', '.join(KINDS)}, transform one of {', '.join(TRANSFORMS)}")
    texts = (column.unit, *column.categories)
    if not all(isinstance(text, str) for text in texts) or not isinstance(column.indicator, bool):
        raise ValueError(f"{where}: unit and categories are texts, indicator is true or false")
    wanted = {NUMBER: len(column.categories) == 0, YES_NO: len(column.categories) == 2}
    if not wanted.get(column.kind, len(column.categories) > 0):
        raise ValueError(f"{where}: a number has no categories, a yes/no has two, any other kind at least one")
    if len({plain(text) for text in column.categories}) != len(column.categories):
        raise ValueError(f"{where}: two categories are alike")
    numbers = (column.mean, column.std, *column.range, *(() if column.fill is None else (column.fill,)))
    if not all(_is_finite(value) for value in numbers) or column.std <= 0 or len(column.range) not in (0, 2):
        raise ValueError(f"{where}: mean, std, fill and range must be finite, std above 0, range two numbers")
    if column.range and not column.range[0] < column.range[1]:
        raise ValueError(f"{where}: range must be the least and the largest value")
    if column.kind == CATEGORY and column.fill is not None and column.fill not in range(len(column.categories) + 1):
        raise ValueError(f"{where}: fill must be the place of a category")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def read_schema(text: str) -> Schema:
    """A schema from its text, or from a file by its path."""
    if text.lstrip().startswith("{"):
        return Schema.from_json(text)
    path = Path(text).expanduser()
    try:
        return Schema.from_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"table-schema = {text!r}: cannot be read ({error}). Make one with `coterie schema`.") from None
