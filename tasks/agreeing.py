"""From what the clients told of their tables (facts.py) to one schema for all, with the numbers to prepare cells by.

A column belongs to it if more than half of the clients have it, in the kind that most of them have. A client that lacks it,
or has another kind in it, is told so when it gets the schema. Who gives what may be a stranger: only counts and sums are used.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.tasks.cells import category_order, key, number, plain
from coterie.tasks.facts import MOST_CATEGORIES, ColumnFacts, Facts, Moments, middles_of, places_of
from coterie.tasks.kinds import CATEGORY, LEFT_OUT, NUMBER, ORDERED, YES_NO, taken_for_missing
from coterie.tasks.samples import DataError
from coterie.tasks.schema import Column, Schema

SKEWED = 2.0  # skewness from which on the logarithm is tried
OTHER_UNITS = 3.0  # times the others' middle
FEWEST = 10  # values of a client that are compared with others
Told = Mapping[str, ColumnFacts]  # by client


@dataclass(frozen=True)
class Agreed:
    schema: Schema
    warnings: list[str]
    refused: dict[str, str] = field(default_factory=dict)  # clients that cannot take part, and why


def agree(
    facts: Mapping[str, Facts], *, classes: str = "", ignore: str = "", missing: str = "", min_count: int = 5
) -> Agreed:
    """One schema for these clients, but those whose label is of another kind than that of most."""
    if not facts:
        raise DataError("task = 'own': no client told what its table is like.")
    refused = _other_labels(facts, classes)
    facts = {client: fact for client, fact in facts.items() if client not in refused}
    ignored = {key(name) for name in ignore.split(",") if name.strip()}
    warnings: list[str] = []
    left_out: dict[str, str] = {}
    codes = [missing] if missing else []
    columns = []
    label = key(next(iter(facts.values())).label.name)
    of = {client: {key(column.name): column for column in fact.columns} for client, fact in facts.items()}
    for name in sorted({name for columns_of in of.values() for name in columns_of} - ignored - {label}):
        told = {client: columns_of[name] for client, columns_of in of.items() if name in columns_of}
        column, why = _agreed_column(told, len(facts))
        if column is None:
            left_out[next(iter(told.values())).name] = why
            continue
        columns.append(column)
        found = sorted({code for f in told.values() for code in f.codes})
        codes += [f"{column.name}={code}" for code in found]
        warnings += [f"column {column.name}: {taken_for_missing(found)}"] if found else []
        warnings += [*_odd_kinds(column, told), *_odd_units(column, told)]
    if not columns:
        raise DataError(f"no column is left to learn from: {_in_words(left_out)}. Look at them with `coterie schema`.")
    warnings += [f"column {name}: {why}; left out" for name, why in left_out.items()]
    schema = Schema("", tuple(columns), missing=",".join(codes), left_out=left_out)
    schema = _with_label(schema, facts, classes, warnings)
    about = {"clients": len(facts), "rows": sum(fact.rows for fact in facts.values()), "min-count": min_count}
    return Agreed(replace(schema, facts=about), warnings, refused)


def _other_labels(facts: Mapping[str, Facts], classes: str) -> dict[str, str]:
    """Clients that would learn something else than most: another column, or classes where most have values."""
    names = Counter(key(fact.label.name) for fact in facts.values())
    label = max(names, key=lambda name: names[name])
    written = next(fact.label.name for fact in facts.values() if key(fact.label.name) == label)
    found = {
        client: f"its label is {fact.label.name!r}, and that of most clients {written!r}; say which with --label"
        for client, fact in facts.items()
        if key(fact.label.name) != label
    }
    rest = {client: fact for client, fact in facts.items() if client not in found}
    if classes == "regression":
        odd = {client for client, fact in rest.items() if not fact.label.numeric}
    elif classes:
        odd = set()  # whoever has a label that is none of them is told so when it gets the schema
    else:
        values = {client for client, fact in rest.items() if fact.regression}
        odd = set(rest) - values if 2 * len(values) > len(rest) else values
    for client in sorted(odd):
        mine, theirs = ("a value", "classes") if rest[client].regression else ("a class", "values")
        found[client] = (
            f"its label {written!r} is {mine}, and most clients have {theirs}; mend it, or say with --classes whether it is "
            "'regression'"
        )
    return found


def _in_words(left_out: Mapping[str, str]) -> str:
    return (
        "; ".join(f"{name}: {why}" for name, why in list(left_out.items())[:5]) or "the tables have none but the label"
    )


def _agreed_column(told: Told, clients: int) -> tuple[Column | None, str]:
    """The column with all it needs, or None and why."""
    if 2 * len(told) <= clients:
        return None, f"only {', '.join(told)} has it" if len(told) == 1 else f"only {', '.join(told)} have it"
    out = [column.kind for column in told.values() if column.kind in LEFT_OUT]
    usable = {client: column for client, column in told.items() if column.kind not in LEFT_OUT}
    if len(out) >= max(len(usable), 1):
        return None, LEFT_OUT[max(set(out), key=out.count)]
    saying = [column for column in usable.values() if column.values or column.counts]
    if not saying:
        return None, "no client has enough cells in it"
    name = next(iter(told.values())).name
    texts = sum(not column.numeric for column in saying)
    if 2 * texts > len(saying):
        return _agreed_category(name, [column for column in saying if not column.numeric])
    numeric = [column for column in saying if column.numeric]
    different = {plain(text) for column in numeric for text in column.counts}
    if all(column.kind != NUMBER for column in numeric) and len(different) <= 2:
        return _agreed_category(name, numeric)
    return _agreed_number(name, [column for column in numeric if column.values])


def _agreed_number(name: str, told: Sequence[ColumnFacts]) -> tuple[Column | None, str]:
    values = logs = Moments(count=0, mean=0.0, squares=0.0, cubes=0.0)
    for column in told:
        values = values.joined(column.values) if column.values else values
        logs = logs.joined(column.logs) if column.logs else logs
    if values.std <= 1e-9 * max(abs(values.mean), 1e-9):
        return None, "has the same value in every row"
    skewed = abs(values.skewness) > SKEWED and abs(logs.skewness) < abs(values.skewness) / 2
    used = logs if skewed else values
    middles = [(column.middle, column.values.count) for column in told if column.middle is not None and column.values]
    return Column(
        name,
        NUMBER,
        fill=weighted_median(middles),
        indicator=any(column.missing for column in told),
        transform="log" if skewed else "none",
        mean=used.mean,
        std=used.std,
    ), ""


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The value with half of the weight on either side: one client in other units does not move it far."""
    ordered = sorted(values)
    reached, half = 0.0, sum(weight for _, weight in ordered) / 2
    for i, (value, weight) in enumerate(ordered):
        reached += weight
        if reached == half and i + 1 < len(ordered):
            return (value + ordered[i + 1][0]) / 2
        if reached >= half:
            return value
    return 0.0


def _agreed_category(name: str, told: Sequence[ColumnFacts]) -> tuple[Column | None, str]:
    counts: dict[str, int] = {}
    written: dict[str, str] = {}
    for column in told:
        for text, count in column.counts.items():
            counts[plain(text)] = counts.get(plain(text), 0) + count
            written.setdefault(plain(text), text)
    often = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_CATEGORIES]
    if len(often) < 2 and all(column.kind not in (CATEGORY, YES_NO) for column in told):
        return None, "has the same value in every row" if often else "has no category that enough rows have"
    if not often:
        return None, "has no category that enough rows of a client have"
    known = sorted(often, key=category_order)
    yes_no = len(known) == 2 and all(column.kind != CATEGORY for column in told)
    agreed = Column(
        name,
        YES_NO if yes_no else CATEGORY,
        tuple(written[text] for text in known),
        fill=float(known.index(often[0])),
        indicator=any(column.missing for column in told),
    )
    return scaled(agreed, np.array([float(counts[text]) for text in known])), ""


def scaled(column: Column, counts: np.ndarray) -> Column:
    """With mean and deviation of the places, for kinds whose place is a number."""
    if column.kind == CATEGORY:
        return column
    places, total = np.arange(len(counts)), max(counts.sum(), 1.0)
    mean = float(counts @ places / total)
    std = math.sqrt(max(float(counts @ (places - mean) ** 2 / total), 0.0))
    return replace(column, mean=mean, std=std or 1.0)


def _with_label(schema: Schema, facts: Mapping[str, Facts], classes: str, warnings: list[str]) -> Schema:
    """The label's name and classes, or mean and deviation of the values to learn."""
    first = next(iter(facts.values())).label
    schema = replace(schema, label=first.name)
    if classes == "regression" or (not classes and any(fact.regression for fact in facts.values())):
        values = Moments(count=0, mean=0.0, squares=0.0, cubes=0.0)
        for fact in facts.values():
            values = values.joined(fact.label.values) if fact.label.values else values
        if values.std <= 0:
            raise DataError(f"label = {first.name!r}: has the same value in every row; there is nothing to learn.")
        return replace(schema, label_mean=values.mean, label_std=values.std)
    counts = {client: {plain(text): text for text in fact.label.counts} for client, fact in facts.items()}
    written = {name: text for told in counts.values() for name, text in told.items()}
    names = tuple(written[name] for name in sorted(written, key=category_order))
    if classes and not classes.isdecimal():
        names = tuple(name.strip() for name in classes.split(","))
    if classes.isdecimal():
        names = _commonest(names, int(classes), counts)
    if classes.isdecimal() and len(names) != int(classes):
        raise DataError(
            f"classes = {classes}: the label {first.name!r} has {len(names)} ({', '.join(names)}); give their names."
        )
    if len(names) < 2:
        raise DataError(
            f"label = {first.name!r}: only one class{f', {names[0]!r}' if names else ''}. There is nothing to tell apart; name "
            "all classes with --classes, or learn another column (--label)."
        )
    for name in written:
        having = [client for client, told in counts.items() if name in told]
        if len(having) == 1 and len(facts) > 1 and len(facts) > 2:
            warnings.append(f"label {written[name]!r}: only client {having[0]} has it (or enough rows of it)")
    return _counted(replace(schema, classes=names), facts)


def _counted(schema: Schema, facts: Mapping[str, Facts]) -> Schema:
    """With the number of rows of each class that were told."""
    told: Counter[str] = Counter()
    for fact in facts.values():
        told.update({plain(text): count for text, count in fact.label.counts.items()})
    return replace(schema, class_counts=tuple(told[plain(name)] for name in schema.classes))


def _commonest(names: tuple[str, ...], number: int, counts: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The `number` classes that more clients have than any other; all, if it is not clear which."""
    having = [sum(plain(name) in told for told in counts.values()) for name in names]
    least = sorted(having, reverse=True)[number - 1] if 0 < number < len(names) else 0
    chosen = tuple(name for name, clients in zip(names, having, strict=True) if clients >= least)
    return chosen if len(chosen) == number else names


def _odd_kinds(column: Column, told: Told) -> list[str]:
    """Clients that will be refused, because they have texts among numbers, or numbers among texts."""
    coded = any(number(category) is not None for category in column.categories)
    odd = [
        client
        for client, facts in told.items()
        if facts.kind not in LEFT_OUT and (facts.values or facts.counts) and not coded
        if facts.numeric != (column.kind == NUMBER)
    ]
    return [f"column {column.name}: is a {column.kind}, but not in the file of client {client}" for client in odd]


def _odd_units(column: Column, told: Told) -> list[str]:
    """Clients whose values look like those of another unit."""
    if column.kind != NUMBER:
        return []
    found = []
    many = {c: f for c, f in told.items() if f.middle is not None and f.values and f.values.count >= FEWEST}
    for client, facts in many.items():
        others = [
            (f.middle, f.values.count) for c, f in many.items() if c != client and f.values and f.middle is not None
        ]
        if not others or facts.middle is None or not facts.values:
            continue
        usual, mine = weighted_median(others), facts.middle
        spread = max(facts.values.std, min(f.values.std for c, f in many.items() if c != client and f.values))
        ratio = mine / usual if usual else 1.0
        if ratio > 0 and max(ratio, 1 / ratio) > OTHER_UNITS and abs(mine - usual) > 2 * spread:
            found.append(
                f"column {column.name}: the middle value of client {client} is {mine:.4g}, that of the others {usual:.4g}; are "
                "these the same units?"
            )
    return found


def agree_noisy(schema: Schema, facts: Mapping[str, Facts], deviation: float) -> Schema:
    """The schema that was told, prepared by counts with noise of this standard deviation in each of them."""
    columns = []
    noise = deviation * math.sqrt(len(facts))
    for place, column in enumerate(schema.columns):
        counts = np.sum([fact.columns[place].noisy for fact in facts.values()], axis=0)
        columns.append(_from_counts(column, np.where(counts > _sure(column) * noise, counts, 0.0)))
    if schema.regression:
        counts = np.sum([fact.label.noisy for fact in facts.values()], axis=0)
        column = Column(schema.label, NUMBER)
        label = _from_counts(column, np.where(counts > _sure(column) * noise, counts, 0.0))
        schema = replace(schema, label_mean=label.mean, label_std=label.std)
    return replace(schema, columns=tuple(columns))


def _sure(column: Column) -> float:
    """From how many deviations on a count is no noise: far places of a number without a range must not appear by chance."""
    return 4.5 if column.kind == NUMBER and not column.range else 2.0


def _from_counts(column: Column, counts: np.ndarray) -> Column:
    there, missing = counts[:-1], counts[-1]
    column = replace(column, indicator=bool(missing > 0))
    if column.kind != NUMBER:
        column = replace(column, fill=float(np.argmax(there[: len(column.categories)])))
        return scaled(column, there[: len(column.categories)]) if column.kind in (YES_NO, ORDERED) else column
    middles, total = middles_of(column), float(there.sum())
    if not total:
        return replace(column, fill=0.0)
    mean = float(there @ middles / total)
    std = math.sqrt(float(there @ (middles - mean) ** 2 / total))
    fill = weighted_median([(float(value), float(count)) for value, count in zip(middles, there, strict=True) if count])
    return replace(column, fill=fill, mean=mean, std=std or max(abs(mean), 1.0))


def check_noisy(facts: Facts, schema: Schema) -> None:
    """That what was told under privacy is of this schema."""
    told: list[tuple[ColumnFacts, Any]] = list(zip(facts.columns, schema.columns, strict=False))
    if len(facts.columns) != len(schema.columns) or any(len(f.noisy) != places_of(c) for f, c in told):
        raise ValueError("the counts are not those of the schema's columns")
    if schema.regression and len(facts.label.noisy) != places_of(Column(schema.label, NUMBER)):
        raise ValueError("the counts are not those of the schema's label")


def agree_told(schema: Schema, facts: Mapping[str, Facts], min_count: int) -> Agreed:
    """The schema that was told, prepared by what the clients told of its columns."""
    columns, warnings = [], []
    for place, column in enumerate(schema.columns):
        told = {client: fact.columns[place] for client, fact in facts.items() if place < len(fact.columns)}
        if column.kind == NUMBER:
            found, why = _agreed_number(column.name, [facts for facts in told.values() if facts.values])
            if found is None:
                warnings.append(f"column {column.name}: {why}")
                found = Column(column.name, NUMBER, fill=0.0)
            columns.append(replace(found, unit=column.unit, range=column.range))
            warnings += _odd_units(column, told)
            continue
        counts = np.array([float(sum(f.counts.get(name, 0) for f in told.values())) for name in column.categories])
        column = replace(column, fill=float(counts.argmax()), indicator=any(f.missing for f in told.values()))
        columns.append(scaled(column, counts))
    agreed = replace(schema, columns=tuple(columns))
    agreed = _with_label(agreed, facts, "regression", warnings) if schema.regression else _counted(agreed, facts)
    about = {"clients": len(facts), "rows": sum(fact.rows for fact in facts.values()), "min-count": min_count}
    return Agreed(replace(agreed, facts=about), warnings)
