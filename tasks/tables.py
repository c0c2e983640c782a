"""Tables in CSV files: features, and a label in each row."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.samples import DataError, check_finite

LABEL_COLUMNS = ("label", "target")


def read_csv(path: Path, classes: str) -> dict[str, Any]:
    """The label is the column `label` (classes) or `target` (regression), or else the last one; a column `owner` names the
    natural clients.
    """
    names, rows = _rows(path)
    if len(names) < 2:
        raise DataError(f"{path}: needs at least one row and two columns, separated by commas.")
    label = next((names.index(name) for name in LABEL_COLUMNS if name in names), len(names) - 1)
    fields: dict[str, Any] = {
        "x": _numbers(path, names, rows, [i for i, name in enumerate(names) if i != label and name != "owner"]),
        "y": _labels([row[label] for _, row in rows], names[label], classes, path),
    }
    if "owner" in names:
        fields["owner"] = [row[names.index("owner")] for _, row in rows]
    return fields


def csv_inputs(path: Path, shape: tuple[int, ...]) -> list[list[float]]:
    """All columns but those for labels and owners; a last one too many is a label without a name."""
    names, rows = _rows(path)
    features = [i for i, name in enumerate(names) if name not in (*LABEL_COLUMNS, "owner")]
    if len(features) == shape[0] + 1 and len(features) == len(names):
        features.pop()
    return _numbers(path, names, rows, features)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Cells separated by commas, with or without a line of names: the names, in small letters, and the lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV file in UTF-8 ({error}).") from None
    if not rows:
        raise DataError(f"{path}: the file is empty.")
    names = [name.lower() for name in rows[0][1]]
    if set(names) & set(LABEL_COLUMNS) or not all(_is_number(cell) for cell in names[:-1]):
        rows = rows[1:]
    else:
        names = [str(i) for i in range(len(names))]
    if not rows:
        raise DataError(f"{path}: needs at least one row and two columns, separated by commas.")
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(f"{path}, line {line}: {len(row)} columns instead of {len(names)}.")
    return names, rows


def _numbers(path: Path, names: list[str], rows: list[tuple[int, list[str]]], columns: list[int]) -> list[list[float]]:
    return [[_number(row[i], path, line, names[i]) for i in columns] for line, row in rows]


def _labels(values: list[str], column: str, classes: str, path: Path) -> np.ndarray:
    if "" in values:
        raise DataError(f"{path}: row {values.index('')} (counted from 0, without the names) has no {column!r}.")
    if not all(_is_number(value) for value in values) or set(values) <= {name.strip() for name in classes.split(",")}:
        return np.array(values)
    numbers = np.array(values, dtype=np.float64)
    check_finite(numbers, path, column)
    whole = bool((numbers == np.round(numbers)).all())
    if column == "label" and not (whole and np.abs(numbers).max(initial=0) < 2**63):
        raise DataError(f"{path}: labels must be whole numbers or names; call the column 'target' for regression.")
    return numbers.astype(np.int64) if whole and column != "target" else numbers


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, path: Path, line: int, column: str) -> float:
    value = float(text) if _is_number(text) else np.nan
    if not np.isfinite(value):
        raise DataError(
            f"{path}, line {line}, column {column}: {text!r} is not a finite number. Remove or fill in the row."
        )
    return value
