"""What a column is, by its cells in one file: something to learn from, or something to leave out, and why."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.tasks.cells import Cells, key, number, shortened
from coterie.tasks.reading import Table
from coterie.tasks.samples import DataError, did_you_mean

NUMBER, YES_NO, CATEGORY, ORDERED = KINDS = ("number", "yes/no", "category", "ordered")
CONSTANT, EMPTY = "constant", "empty"  # here; other clients may have more in this column
LEFT_OUT = {
    "id": "looks like an id: every row has another",
    "date": "is a date or a time",
    "text": "is free text, with hardly a cell like another",
    "leak": "is the label in other words: each of its values goes with one label, and each label with one value",
    "owner": "says whose row it is",
    "ignored": "is to be ignored",
}
LABELS = ("label", "target")
OWNER = "owner"
FEW_ROWS = 10  # from which on a pattern is not chance
MOST_CLASSES = 20  # different whole numbers in a label; more are values
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*|\d{1,2}:\d{2}(:\d{2})?")
ID = re.compile(r"(.*[ _-])?(id|nr|no|index|uuid|key)|.*(Id|ID)|column 1|row", re.S)


@dataclass(frozen=True)
class Looked:
    """A table that was looked at: its label, and the kind of every column, by key."""

    table: Table
    label: str  # key
    regression: bool
    kinds: dict[str, str]
    remarks: list[str] = field(default_factory=list)  # what its owner should know

    @property
    def features(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind not in LEFT_OUT]

    @property
    def name(self) -> str:
        return self.table.columns[self.label].name


def look(table: Table, *, label: str = "", classes: str = "", ignore: str = "", alone: bool = True) -> Looked:
    """What the columns of a file are. `alone`: no other file has to be understood alike, so the last column may be the label."""
    if len(table.columns) < 2:
        raise DataError(
            f"{table.source}, line 1: only one column. Say what separates the cells, for example --delimiter ';' (tried: comma, "
            "semicolon, tab, |)."
        )
    ignored = {key(name) for name in ignore.split(",") if name.strip()}
    target = label_of(table, label, ignored, alone)
    regression = is_regression(table, target, classes)
    kinds, remarks = {}, []
    if not table.named:
        remarks.append(
            f"{table.source}: has no line of names; its columns are called 1, 2, ..., so all files must have them in one order"
        )
    for name, cells in table.columns.items():
        if name == target:
            continue
        kind = OWNER if name == OWNER else "ignored" if name in ignored else kind_of(cells)
        if kind not in LEFT_OUT and _is_leak(cells, table.columns[target], regression):
            kind = "leak"
        kinds[name] = kind
        if kind in LEFT_OUT and kind not in (OWNER, "ignored"):
            remarks.append(f"{table.source}, column {cells.name}: {LEFT_OUT[kind]}; left out")
        if kind == CATEGORY and cells.codes is not None and (words := _among_numbers(cells)):
            remarks.append(
                f"{table.source}, column {cells.name}: has numbers and words, such as {shortened(words)}, and is taken for "
                "categories; if it is a number, mend the words, or tell them with --missing"
            )
        if cells.coded_missing:
            remarks.append(f"{table.source}, column {cells.name}: {taken_for_missing(cells.coded_missing)}")
    found = Looked(table, target, regression, kinds, remarks)
    if not any(kind not in (*LEFT_OUT, EMPTY) for kind in kinds.values()):
        why = "; ".join(
            f"{table.columns[name].name}: {LEFT_OUT.get(kind, kind)}" for name, kind in list(kinds.items())[:3]
        )
        raise DataError(f"{table.source}: no column is left to learn from ({why}).")
    return found


def taken_for_missing(codes: Sequence[str]) -> str:
    return f"{', '.join(codes)} is taken for a missing cell; nothing else is negative"


def label_of(table: Table, label: str, ignored: set[str], alone: bool) -> str:
    """The key of the column with the label."""
    names = [cells.name for cells in table.columns.values()]
    if label:
        if key(label) not in table.columns:
            raise DataError(f"label = {label!r}: {table.source} has no such column. {did_you_mean(label, names)}")
        if key(label) in ignored:
            raise DataError(f"label = {label!r}: is also among the columns to ignore; take it out of one.")
        return key(label)
    there = [name for name in LABELS if name in table.columns]
    if len(there) > 1:
        raise DataError(
            f"{table.source}: two labels, the columns 'label' and 'target'. Say which with --label, and --ignore the other."
        )
    if there:
        return there[0]
    if not alone:
        raise DataError(f"{table.source}: say which column is to be learned, for example --label {names[-1]}.")
    return list(table.columns)[-1]


def is_regression(table: Table, target: str, classes: str) -> bool:
    """Whether the label is a value; else it is a class. Refuses a label that is neither."""
    cells = table.columns[target]
    where = f"{table.source}, column {cells.name}"
    missing = np.isnan(cells.numbers) if cells.numbers is not None else None if cells.codes is None else cells.codes < 0
    if missing is not None and missing.any():
        line = int(table.lines[np.flatnonzero(missing)[0]])
        place = f"{table.source}, line {line}, column {cells.name}"
        raise DataError(f"{place}: no label. Fill it in, or take the row out.", place=place)
    values = cells.values
    if classes == "regression" or (key(cells.name) == "target" and not classes and values is not None):
        if values is None:
            raise not_a_number(table, cells, "and regression needs numbers. Mend it, or set classes.")
        return True
    if (
        not classes
        and values is not None
        and ((values != np.round(values)).any() or len(set(values.tolist())) > MOST_CLASSES)
    ):
        return True
    few = len(table) >= FEW_ROWS and len(cells.counts) > len(table) / 2
    if cells.codes is None or (few and not classes):
        raise DataError(f"{where}: hardly a label like another; it is no class. Is another column the label (--label)?")
    return False


def not_a_number(table: Table, cells: Cells, why: str) -> DataError:
    """The first cell of a column that is none; `why` it should be one."""
    place, text = f"{table.source}, column {cells.name}", shortened(cells.texts[0])
    if cells.codes is not None:
        wrong = [code for code, text in enumerate(cells.texts) if number(text, cells.decimal) is None]
        rows = np.flatnonzero(np.isin(cells.codes, wrong))
        row = int(rows[0]) if len(rows) else 0
        place = f"{table.source}, line {int(table.lines[row])}, column {cells.name}"
        text = shortened(cells.texts[cells.codes[row]])
    return DataError(f"{place}: {text} is not a number, {why}", cell=text, place=place)


def kind_of(cells: Cells) -> str:
    """What one column is, apart from the label."""
    values = cells.values
    if values is None:
        return _kind_of_texts(cells)
    there = values[~np.isnan(values)]
    different = np.unique(there)
    if len(different) < 2:
        return CONSTANT if len(different) else EMPTY
    whole = bool((there == np.round(there)).all())
    if whole and len(there) >= FEW_ROWS and len(different) == len(there):
        steps = np.diff(there)
        if ID.fullmatch(cells.name) or bool((steps == steps[0]).all()):
            return "id"
    return YES_NO if len(different) == 2 else NUMBER


def _kind_of_texts(cells: Cells) -> str:
    texts = cells.texts[:200]
    dates = sum(bool(DATE.fullmatch(text)) for text in texts)
    if texts and dates >= 0.9 * len(texts):
        return "date"
    counts = cells.counts
    rows = sum(counts.values())
    if cells.codes is None or (rows >= FEW_ROWS and len(counts) > max(rows / 2, 5)):
        words = sum(" " in text for text in texts)
        return "text" if words > len(texts) / 2 else "id"
    if len(counts) < 2:
        return CONSTANT if counts else EMPTY
    return YES_NO if len(counts) == 2 else CATEGORY


def _among_numbers(cells: Cells) -> str:
    """The first text that is no number in a column where most are; empty if there is none."""
    texts = [text for text in cells.texts if number(text, cells.decimal) is None]
    return texts[0] if 0 < len(texts) < len(cells.texts) / 2 else ""


def _is_leak(cells: Cells, label: Cells, regression: bool) -> bool:
    if regression:
        values, target = cells.values, label.values
        if values is None or target is None:
            return False
        both = ~np.isnan(values)
        if both.sum() < FEW_ROWS or np.ptp(values[both]) == 0 or np.ptp(target[both]) == 0:
            return False
        return abs(float(np.corrcoef(values[both], target[both])[0, 1])) > 1 - 1e-9
    if cells.codes is None or label.codes is None:
        return False
    there = cells.codes >= 0
    if there.sum() < FEW_ROWS or not there.mean() > 0.5:
        return False
    mine, theirs = cells.codes[there].astype(np.int64), label.codes[there].astype(np.int64)
    pairs = len(np.unique(mine * (len(label.texts) + 1) + theirs))
    return 1 < pairs == len(np.unique(mine)) == len(np.unique(theirs))
