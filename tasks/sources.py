"""Whose tables a run has: one file, several, or a folder of them, each a client of the name of the file.

`north.csv,south.csv`, `north=n.csv,south=/srv/s.csv`, a folder, or one file, whose rows are dealt out or have an `owner`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.tasks.cells import category_order, key, plain, told_codes
from coterie.tasks.kinds import OWNER, Looked, look
from coterie.tasks.reading import Reading, Table, is_table, read_table
from coterie.tasks.samples import DataError, Dataset, did_you_mean

if TYPE_CHECKING:
    from coterie.wire.config import RunConfig


def is_table_data(data: str) -> bool:
    """Whether `data` names tables, and not arrays, images or a program."""
    path = Path(data).expanduser()
    if path.is_dir():
        return any(is_table(file) for file in path.iterdir() if file.is_file())
    return is_table(data) or any(is_table(part.strip()) for part in data.split(","))


def is_table_run(config: "RunConfig") -> bool:
    """Whether the clients of this run have tables whose columns they still have to agree on."""
    return config.task == "own" and not config.input_shape and (not config.data or is_table_data(config.data))


def named_files(data: str) -> dict[str, Path]:
    """The files that `data` names, by the names of their clients, in the order of the names."""
    path = Path(data).expanduser()
    if path.is_dir():
        parts = [("", file) for file in sorted(path.iterdir()) if file.is_file() and is_table(file)]
        if not parts:
            raise DataError(f"data = {data!r}: there is no table in this folder; give .csv files.")
    elif path.exists() or "," not in data:
        parts = [_part(data)] if not path.exists() else [("", path)]
    else:
        parts = [_part(part.strip()) for part in data.split(",") if part.strip()]
    found: dict[str, Path] = {}
    for name, file in parts:
        name = name or client_name(_stem(file))
        if name in found:
            raise DataError(
                f"data = {data!r}: two clients would be called {name!r}. Name them: {name}-1=FILE,{name}-2=FILE."
            )
        found[name] = file.absolute()
    return dict(sorted(found.items()))


def several(data: str) -> dict[str, Path]:
    """The files or folders in a list of them, by the names of their clients; none if `data` is one place."""
    return named_files(data) if "," in data and not Path(data).expanduser().exists() else {}


def _part(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return "", Path(text).expanduser()
    if client_name(name) != name:
        raise DataError(f"data: {name!r} is no name of a client; use up to 64 letters, digits, '-', '_' and '.'.")
    return name, Path(path).expanduser()


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def client_name(text: str) -> str:
    """A name that a client can have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).lstrip("-_.")[:64] or "client"


def reading_of(config: "RunConfig") -> Reading:
    return Reading(config.delimiter, config.decimal, config.encoding, config.missing)


def looked_at(path: str | Path, config: "RunConfig", alone: bool) -> Looked:
    """The table in a file, and what it is in this run; kept in memory until the file changes."""
    path = Path(path).expanduser()
    stat = path.stat() if path.is_file() else None
    stamp = (stat.st_mtime_ns, stat.st_size) if stat else None
    return _looked_at(path, reading_of(config), config.label, config.classes, config.ignore, alone, stamp)


@lru_cache(maxsize=64)
def _looked_at(
    path: Path, reading: Reading, label: str, classes: str, ignore: str, alone: bool, stamp: tuple[int, int] | None
) -> Looked:
    return look(_read(path, reading, stamp), label=label, classes=classes, ignore=ignore, alone=alone)


@lru_cache(maxsize=64)
def _read(path: Path, reading: Reading, stamp: tuple[int, int] | None) -> Table:
    return read_table(path, reading)


@dataclass(frozen=True)
class Pool:
    """All tables of a simulation; rows are counted through all of them."""

    tables: dict[str, Looked]  # by client; one alone may be dealt out

    def outline(self) -> Dataset:
        """Labels and owners of all rows, which is what partitions go by; inputs come when the columns are agreed on."""
        first = next(iter(self.tables.values()))
        for looked in self.tables.values():
            if (looked.regression, looked.label) != (first.regression, first.label):
                raise DataError(
                    f"{looked.table.source}: the label is {looked.name!r}, {_kind(looked)}; in {first.table.source} it is "
                    f"{first.name!r}, {_kind(first)}. Say which with --label, and with --classes whether it is 'regression'."
                )
        owners = tuple(self.tables)
        owner = np.repeat(np.arange(len(owners)), [len(looked.table) for looked in self.tables.values()])
        if len(owners) == 1:
            owners, owner = owners_in(first.table)
        names, y = _labels(list(self.tables.values()))
        if not first.regression and len(names) < 2:
            raise DataError(
                f"{first.table.source}: only one class, {names[0]!r}, in column {first.name}. There is nothing to tell apart; "
                "learn another column (--label)."
            )
        nothing = np.zeros((len(y), 1), np.float32)
        one = np.ones(1, np.float32)
        source = ", ".join(looked.table.source for looked in self.tables.values())
        return Dataset(
            nothing, y, len(names), one * 0, one, owner if owners else None, owners, label_names=names, source=source
        )

    def rows(self, which: np.ndarray) -> list[tuple[Looked, np.ndarray]]:
        """The tables that have these rows, and the rows in each."""
        found, start = [], 0
        for looked in self.tables.values():
            mine = which[(which >= start) & (which < start + len(looked.table))] - start
            start += len(looked.table)
            if len(mine):
                found.append((looked, mine))
        return found


def _kind(looked: Looked) -> str:
    return "a value" if looked.regression else "a class"


def pool_of(config: "RunConfig") -> Pool:
    files = named_files(config.data)
    pool = Pool({name: looked_at(file, config, alone=len(files) == 1) for name, file in files.items()})
    names = {name: cells.name for looked in pool.tables.values() for name, cells in looked.table.columns.items()}
    told = {"ignore": config.ignore.split(","), "missing": list(told_codes(config.missing))}
    for setting, wanted in told.items():
        for name in wanted:
            if name.strip() and key(name) not in names:
                raise DataError(f"{setting}: no table has a column {name!r}. {did_you_mean(name, names.values())}")
    return pool


def owners_in(table: Table) -> tuple[tuple[str, ...], np.ndarray]:
    cells = table.columns.get(OWNER)
    if cells is None:
        return (), np.empty(0, np.int64)
    if cells.codes is None or (cells.codes < 0).any():
        raise DataError(
            f"{table.source}, column {cells.name}: must say for every row whose it is, with few different names."
        )
    owners = sorted(cells.counts)
    called = [client_name(owner) for owner in owners]
    if len(set(called)) < len(called):
        raise DataError(
            f"{table.source}, column {cells.name}: two owners would be called alike ({', '.join(owners[:5])})."
        )
    return tuple(called), cells.coded(owners)


def _labels(tables: Sequence[Looked]) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes of all tables and the place of each row's, or no classes and the values."""
    cells = [looked.table.columns[looked.label] for looked in tables]
    if tables[0].regression:
        return (), np.concatenate([column.values for column in cells if column.values is not None]).astype(np.float32)
    written = {plain(text): text for column in cells for text in column.counts}
    names = tuple(written[name] for name in sorted(written, key=category_order))
    return names, np.concatenate([column.coded(names) for column in cells])
