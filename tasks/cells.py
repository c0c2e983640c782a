"""The cells of a table's columns: numbers, or few different texts, kept small while a file is read piece by piece.

A column begins as codes of its different texts. One with more than `MOST_TEXTS` of them becomes numbers if that is what
they are; of any other only the first texts are kept, to say what it is (ids, dates, free text).
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.tasks.samples import DataError

MOST_TEXTS = 1000
LARGEST = 1e15  # of a number; its cube is still exact enough to reckon with
MISSING = ("", "na", "n/a", "nan", "null", "?", "-", ".", "#n/a")
MISSING_NUMBERS = (-9.0, -99.0, -999.0, -9999.0)  # where a column has no other negative number
SPOILT = re.compile(r"=[A-Za-z(+-].*|#(REF|DIV/0|VALUE|NAME|NUM|NULL)[!?]?", re.S)
LONGEST_CELL = 10_000  # characters
SHOWN = 40  # characters of a cell in a message


@dataclass(frozen=True)
class Cells:
    """One column. Either `numbers` (NaN: missing), or `codes` (-1: missing) of `texts`; neither for a mass of texts."""

    name: str
    numbers: np.ndarray | None = None  # float64
    codes: np.ndarray | None = None  # int32
    texts: tuple[str, ...] = ()  # as written, without blanks around them; of a mass of texts the first ones
    coded_missing: tuple[str, ...] = ()  # numbers that were taken for missing cells
    decimal: str = "."

    def take(self, rows: np.ndarray) -> "Cells":
        numbers = None if self.numbers is None else self.numbers[rows]
        codes = None if self.codes is None else self.codes[rows]
        return replace(self, numbers=numbers, codes=codes)

    @cached_property
    def values(self) -> np.ndarray | None:
        """As numbers, NaN where a cell is missing; None if they are not numbers."""
        if self.numbers is not None or self.codes is None:
            return self.numbers
        parsed = [number(text, self.decimal) for text in self.texts]
        if None in parsed:
            return None
        found: np.ndarray = np.array([*parsed, math.nan], np.float64)[self.codes]
        return found

    def text(self, row: int) -> str:
        """A cell that is there, as it is written; a number as `as_written` has it."""
        return as_written(repr(float(self.numbers[row]))) if self.codes is None else self.texts[self.codes[row]]  # type: ignore[index]

    def coded(self, categories: Sequence[str]) -> np.ndarray:
        """The place of each cell among `categories`; len(categories) for any other text, -1 for a missing cell."""
        known = {plain(category): place for place, category in enumerate(categories)}
        if self.codes is not None:
            places = [known.get(plain(text, self.decimal), len(categories)) for text in self.texts]
            coded: np.ndarray = np.array([*places, -1], np.int64)[self.codes]
            return coded
        if self.numbers is None:
            raise DataError(f"column {self.name!r} is a mass of different texts, not a category.")
        found = np.full(len(self.numbers), len(categories), np.int64)
        found[np.isnan(self.numbers)] = -1
        for text, place in known.items():
            if (value := number(text)) is not None:
                found[self.numbers == value] = place
        return found

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each text is there; numbers as `plain` writes them. Only of columns with few different texts."""
        if self.codes is None:
            return {}
        often = np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))
        found: dict[str, int] = {}
        for text, count in zip(self.texts, often.tolist(), strict=True):
            if count:
                shown = as_written(text, self.decimal)
                found[shown] = found.get(shown, 0) + count
        return found


def key(name: str) -> str:
    """By which columns are matched: blanks and large letters are forgiven."""
    return "".join(name.split()).casefold()


def number(text: str, decimal: str = ".") -> float | None:
    """The finite number that a cell is; None if it is none."""
    if decimal == ",":
        text = text.replace(",", ".") if "." not in text else "no"
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def as_written(text: str, decimal: str = ".") -> str:
    """A category's name: 1.0 and 1 are the same."""
    value = number(text, decimal)
    if value is None:
        return text
    return str(int(value)) if value == int(value) and abs(value) < LARGEST else repr(value)


def plain(text: str, decimal: str = ".") -> str:
    """By which categories are matched."""
    return as_written(" ".join(text.split()).casefold(), decimal)


def category_order(text: str) -> tuple[bool, float, str]:
    """Sorts categories: numbers by their size, before all others."""
    value = number(text)
    return (value is None, value or 0.0, text)


def shortened(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


class Column:
    """A column while it is read."""

    def __init__(self, name: str, source: str, decimal: str, missing: Iterable[str]) -> None:
        self.name, self.source, self.decimal = name, source, decimal
        self.missing = {plain(code) for code in missing}
        self.index: dict[str, int] | None = {}  # raw text -> code; None: these are numbers, or a mass of texts
        self.is_mass = False
        self.pieces: list[np.ndarray] = []
        self.wrong: list[tuple[int, str]] = []  # row and text of cells among numbers that are none
        self.first: tuple[str, ...] = ()
        self.rows = 0

    def add(self, cells: Sequence[str]) -> None:
        if self.index is not None:
            for cell in dict.fromkeys(cells):
                self.index.setdefault(cell, len(self.index))
            self.pieces.append(np.fromiter(map(self.index.__getitem__, cells), np.int32, len(cells)))
            if len(self.index) > MOST_TEXTS:
                self._decide()
        elif not self.is_mass:
            self.pieces.append(self._numbers(cells))
        self.rows += len(cells)

    def _decide(self) -> None:
        """Too many texts: are they numbers?"""
        assert self.index is not None
        texts = [text.strip() for text in self.index]
        parsed = [math.nan if self._is_missing(text) else number(text, self.decimal) for text in texts]
        self.first = tuple(text for text in texts if not self._is_missing(text))
        self.is_mass = parsed.count(None) > len(parsed) // 10
        if self.is_mass:
            self.pieces = []
        else:
            table = np.array([math.nan if value is None else value for value in parsed])
            codes = np.concatenate(self.pieces)
            for code in [code for code, value in enumerate(parsed) if value is None]:
                self.wrong.append((int(np.flatnonzero(codes == code)[0]), texts[code]))
            self.pieces = [table[codes]]
        self.index = None

    def _numbers(self, cells: Sequence[str]) -> np.ndarray:
        """Fast where all cells are numbers, empty or `nan`; else one by one."""
        if self.decimal == "." and "_" not in "".join(cells):
            try:
                values = np.array([float(cell or "nan") for cell in cells])
                if not np.isinf(values).any():
                    return values
            except ValueError:
                pass
        return np.array([self._number(cell, self.rows + i) for i, cell in enumerate(cells)])

    def _number(self, cell: str, row: int) -> float:
        cell = cell.strip()
        value = number(cell, self.decimal)
        if value is None and not self._is_missing(cell):
            self.wrong.append((row, cell))
        return math.nan if value is None else value

    def _is_missing(self, text: str) -> bool:
        return not text or text.casefold() in MISSING or plain(text, self.decimal) in self.missing

    def cells(self, lines: np.ndarray) -> Cells:
        """What was read; refuses a column of numbers with a few cells that are none."""
        if self.is_mass:
            return Cells(self.name, texts=self.first)
        joined = np.concatenate(self.pieces) if self.pieces else np.empty(0, np.int32)
        if self.index is not None:
            return self._few(joined, lines)
        if self.wrong:
            row, text = min(self.wrong)
            raise self._not_a_number(int(lines[row]), text, len(self.wrong))
        for code in self.missing:
            if (value := number(code)) is not None:
                joined[joined == value] = math.nan
        return self._without_codes(Cells(self.name, numbers=joined), lines)

    def _few(self, codes: np.ndarray, lines: np.ndarray) -> Cells:
        assert self.index is not None
        different: dict[str, int] = {}
        places = []
        for raw in self.index:
            text = raw.strip()
            places.append(-1 if self._is_missing(text) else different.setdefault(text, len(different)))
        found = np.array([*places, -1], np.int32)[codes]
        cells = Cells(self.name, codes=found, texts=tuple(different), decimal=self.decimal)
        self._check_texts(cells, lines)
        return self._without_codes(cells, lines) if cells.values is not None else cells

    def _check_texts(self, cells: Cells, lines: np.ndarray) -> None:
        assert cells.codes is not None
        parsed = [number(text, self.decimal) for text in cells.texts]
        often = np.bincount(cells.codes[cells.codes >= 0], minlength=len(cells.texts)).tolist()
        texts = [code for code, value in enumerate(parsed) if value is None]
        for code in texts:
            line = int(lines[np.flatnonzero(cells.codes == code)[0]])
            if len(cells.texts[code]) > LONGEST_CELL:
                raise DataError(
                    f"{self._place(line)}: a cell of {len(cells.texts[code])} characters (at most "
                    f"{LONGEST_CELL}). Is a quotation mark not closed?",
                    place=self._place(line),
                )
            if SPOILT.fullmatch(cells.texts[code]):
                raise DataError(
                    f"{self._place(line)}: {shortened(cells.texts[code])} is a formula or an error of "
                    "a spreadsheet, not a value. Save the values, or empty the cell.",
                    cell=shortened(cells.texts[code]),
                    place=self._place(line),
                )
        numbers = len(parsed) - len(texts)
        cells_of_text = sum(often[code] for code in texts)
        if texts and numbers > 10 and cells_of_text < sum(often) / 2:
            first = min(texts, key=lambda code: int(np.flatnonzero(cells.codes == code)[0]))
            line = int(lines[np.flatnonzero(cells.codes == first)[0]])
            raise self._not_a_number(line, cells.texts[first], cells_of_text)

    def _not_a_number(self, line: int, text: str, count: int) -> DataError:
        hint = " Is the decimal sign another (--decimal)?" if re.fullmatch(r"[-+\d.,]+", text) else ""
        return DataError(
            f"{self._place(line)}: {shortened(text)} is not a finite number, as most of the column "
            f"are ({count} such cells).{hint} Mend it, or say that it means a missing cell (--missing), or --ignore "
            f"{self.name}.",
            cell=shortened(text),
            place=self._place(line),
        )

    def _place(self, line: int) -> str:
        return f"{self.source}, line {line}, column {self.name}"

    def _without_codes(self, cells: Cells, lines: np.ndarray) -> Cells:
        """Numbers in bounds, and those that stand for missing cells taken out."""
        values = cells.values
        assert values is not None
        with np.errstate(invalid="ignore"):
            large = np.flatnonzero(np.abs(values) > LARGEST)
            if len(large):
                raise DataError(
                    f"{self._place(int(lines[large[0]]))}: {values[large[0]]:g} is too large for a "
                    f"measurement (largest: {LARGEST:g}). Mend it, or --ignore {self.name}.",
                    cell=f"{values[large[0]]:g}",
                    place=self._place(int(lines[large[0]])),
                )
            coded = np.isin(values, MISSING_NUMBERS)
            if not coded.any() or (values[~coded] < 0).any() or not np.isfinite(values[~coded]).any():
                return cells
        told = tuple(as_written(repr(value)) for value in sorted(set(values[coded].tolist())))
        if cells.codes is not None:
            return replace(cells, codes=np.where(coded, -1, cells.codes).astype(np.int32), coded_missing=told)
        return replace(cells, numbers=np.where(coded, math.nan, values), coded_missing=told)


def told_codes(text: str) -> dict[str, tuple[str, ...]]:
    """`-9,chol=0` as the codes for all columns, under "", and those of one."""
    found: dict[str, tuple[str, ...]] = {}
    for part in text.split(",") if text else []:
        name, equals, code = part.rpartition("=")
        where = key(name) if equals else ""
        found[where] = (*found.get(where, ()), code.strip())
    return found
