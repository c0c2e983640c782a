"""Tables in files: .csv (also .tsv, .txt, and each with .gz), and .parquet where pyarrow is installed.

Delimiter and decimal sign are found if they are not told. A file is read piece by piece, and nothing of it is guessed
silently: what cannot be read is refused with file, line and column.
"""

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from coterie.tasks.cells import MISSING, Cells, Column, key, number, told_codes
from coterie.tasks.samples import DataError

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet")
DELIMITERS = (",", ";", "\t", "|")
PIECE = 5000  # rows
SAMPLE = 100  # lines that are looked at for the delimiter
TOLD = re.compile(r"sep=(.)\s*", re.I)
COMMA, POINT = re.compile(r"[-+]?\d*,\d+"), re.compile(r"[-+]?\d*\.\d+")


@dataclass(frozen=True)
class Reading:
    """How a table is written; what is empty is found."""

    delimiter: str = ""
    decimal: str = ""
    encoding: str = "utf-8"
    missing: str = ""  # further codes for missing cells, of all columns or of one: "-1,chol=0"

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1 and self.delimiter != "\\t":
            raise DataError(f"delimiter = {self.delimiter!r}: must be one character, for example ';' or '\\t'.")
        if self.decimal not in ("", ".", ","):
            raise DataError(f"decimal = {self.decimal!r}: must be '.' or ','.")
        try:
            "".encode(self.encoding)
        except LookupError:
            raise DataError(f"encoding = {self.encoding!r}: is unknown; try utf-8 or latin-1.") from None


@dataclass(frozen=True)
class Table:
    """Columns by `key` of their names, and the line in the file of each row."""

    source: str
    columns: dict[str, Cells]
    lines: np.ndarray
    named: bool = True  # the file has a line of names

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: np.ndarray) -> "Table":
        columns = {name: cells.take(rows) for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[rows])


def is_table(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIXES)


def read_table(path: str | Path, reading: Reading | None = None) -> Table:
    """The table in this file."""
    path, reading = Path(path).expanduser(), reading or Reading()
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    if not is_table(path):
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; give one of {', '.join(SUFFIXES)}.")
    if path.suffix.lower() == ".parquet":
        names, batches = _parquet(path)
        return _table(path, names, batches, replace(reading, decimal="."), named=True)
    try:
        with _opened(path) as binary:
            start = binary.peek(4)[:4]
            if start[:2] == b"PK":
                raise DataError(f"{path}: is a spreadsheet or an archive, not text. Save the sheet as CSV.")
            if start[:2] in (b"\xff\xfe", b"\xfe\xff") and reading.encoding == "utf-8":
                raise DataError(f"{path}: is in UTF-16. Save it in UTF-8, or say --encoding utf-16.")
            encoding = "utf-8-sig" if reading.encoding.lower().replace("_", "-") == "utf-8" else reading.encoding
            return _text_table(path, io.TextIOWrapper(binary, encoding=encoding, newline=""), reading)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {_undecodable(path, reading.encoding)}: is not in {reading.encoding} ({error.reason}). Say how it is "
            "written, for example --encoding latin-1."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}). Is the file complete?") from None


def _undecodable(path: Path, encoding: str) -> int:
    """The first line that is not written so."""
    with _opened(path) as binary:
        for count, line in enumerate(binary, 1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError:
                return count
    return 1


def _opened(path: Path) -> io.BufferedReader:
    if path.name.lower().endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"))
    return path.open("rb")


def _text_table(path: Path, file: IO[str], reading: Reading) -> Table:
    lines = _checked_lines(path, file)
    sample = list(itertools.islice(lines, SAMPLE))
    if not any(line.strip() for line in sample):
        raise DataError(f"{path}: the file is empty.")
    if told := TOLD.fullmatch(sample[0]):  # as some spreadsheets write it above the names
        sample[0] = "\n"
        reading = replace(reading, delimiter=reading.delimiter or told[1])
    delimiter = "\t" if reading.delimiter == "\\t" else reading.delimiter or _delimiter(path, sample)
    rows = _rows(path, itertools.chain(sample, lines), delimiter)
    line, names = next(rows)
    first = list(itertools.islice(_rows(path, sample, delimiter, partial=True), 1, None))
    decimal = reading.decimal or _decimal([row for _, row in first], delimiter)
    named = len(names) < 2 or not all(
        number(name.strip(), decimal) is not None or _is_missing(name) for name in names[:-1]
    )
    if not named:
        rows = itertools.chain([(line, names)], rows)
        names = [str(i + 1) for i in range(len(names))]
    width = len(names)
    pieces = _pieces(path, rows, width)
    return _table(path, _names(path, line, names), pieces, replace(reading, decimal=decimal), named)


def _is_missing(text: str) -> bool:
    return text.strip().casefold() in MISSING and bool(text.strip())


def _checked_lines(path: Path, file: IO[str]) -> Iterator[str]:
    for count, line in enumerate(file, 1):
        if "\0" in line:
            raise DataError(
                f"{path}, line {count}, column {line[: line.index(chr(0))].count(',') + 1}: a NUL byte. The file is "
                "damaged or no text; export it again."
            )
        yield line


def _rows(path: Path, lines: Iterable[str], delimiter: str, partial: bool = False) -> Iterator[tuple[int, list[str]]]:
    """The line on which each row ends, and its cells; empty lines are left out. Of a `partial` file the end may be missing."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if partial:
                return
            raise DataError(
                f"{path}, line {reader.line_num}: cannot be read ({error}). Look for a quotation mark that is not closed, or "
                "a cell that is far too long."
            ) from None
        if row:
            yield reader.line_num, row


def _pieces(path: Path, rows: Iterator[tuple[int, list[str]]], width: int) -> Iterator[tuple[list[int], list[Any]]]:
    while piece := list(itertools.islice(rows, PIECE)):
        for line, row in piece:
            if len(row) != width:
                raise DataError(
                    f"{path}, line {line}, column {min(len(row), width)}: {len(row)} cells instead of {width}. Mend the line; a "
                    "delimiter inside a cell needs quotation marks around the cell."
                )
        yield [line for line, _ in piece], list(zip(*(row for _, row in piece), strict=True))


def _names(path: Path, line: int, names: Sequence[str]) -> list[str]:
    """Every column has a name of its own. A first one without is a row's number, as some programs write it."""
    found = [" ".join(name.split()) for name in names]
    if not found[0]:
        found[0] = "column 1"
    seen: dict[str, int] = {}
    for place, name in enumerate(found):
        if not name:
            raise DataError(f"{path}, line {line}, column {place + 1}: has no name. Name it, or take the column out.")
        if len(name) > 200 or not name.isprintable():
            raise DataError(
                f"{path}, line {line}, column {place + 1}: {name[:40]!r} is no name. Is this the line of names?"
            )
        if key(name) in seen:
            raise DataError(
                f"{path}, line {line}, column {place + 1}: {name!r} is also the name of column {seen[key(name)] + 1} (blanks and "
                "large letters do not count). Rename one."
            )
        seen[key(name)] = place
    return found


def _delimiter(path: Path, sample: Sequence[str]) -> str:
    """Which gives the first line at least two cells, most lines as many, and then the most cells."""
    best, score = ",", (0.0, 0)
    below = 1  # cells that all lines but the first have
    for candidate in DELIMITERS:
        rows = [row for _, row in _rows(path, sample, candidate, partial=True)]
        width = len(rows[0]) if rows else 0
        if len(rows) > 2 and len({len(row) for row in rows[1:]}) == 1:
            below = max(below, len(rows[1]))
        if width > 1:
            alike = sum(len(row) == width for row in rows) / len(rows)
            if (alike, width) > score:
                best, score = candidate, (alike, width)
    if not score[1] and below > 1:
        raise DataError(
            f"{path}, line 1: one cell, and all lines below have {below}. Is it a title above the names? Take it out."
        )
    return best


def _decimal(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    cells = [cell.strip() for row in rows for cell in row]
    commas = any(COMMA.fullmatch(cell) for cell in cells)
    return "," if commas and not any(POINT.fullmatch(cell) for cell in cells) else "."


def _table(
    path: Path, names: Sequence[str], pieces: Iterable[tuple[list[int], list[Any]]], how: Reading, named: bool
) -> Table:
    codes = told_codes(how.missing)
    everywhere = codes.get("", ())
    columns = [Column(name, str(path), how.decimal, (*everywhere, *codes.get(key(name), ()))) for name in names]
    numbers: list[np.ndarray] = []
    for lines, cells in pieces:
        for column, of_column in zip(columns, cells, strict=True):
            column.add(of_column)
        numbers.append(np.array(lines, np.int32))
    if not numbers:
        raise DataError(f"{path}: has names and no rows. Is the file complete?")
    lines_of = np.concatenate(numbers)
    return Table(str(path), {key(column.name): column.cells(lines_of) for column in columns}, lines_of, named)


def _parquet(path: Path) -> tuple[list[str], Iterator[tuple[list[int], list[Any]]]]:
    """The rows as texts, as a CSV file would have them; a row's number stands for its line."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(
            f"{path}: pyarrow is not installed here; pip install pyarrow, or save the table as CSV."
        ) from None
    try:
        file = parquet.ParquetFile(path)
        names = _names(path, 0, file.schema_arrow.names)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a readable .parquet file ({error}).") from None

    def pieces() -> Iterator[tuple[list[int], list[Any]]]:
        start = 1
        for batch in file.iter_batches(PIECE):
            cells = [[_cell(value) for value in column.to_pylist()] for column in batch.columns]
            yield list(range(start, start + len(batch))), cells
            start += len(batch)

    return names, pieces()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
