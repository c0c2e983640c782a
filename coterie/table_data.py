"""Tables of several owners as data of a run, and what they have in common.

tables = coterie.tables({"north": "n.csv", "south": "s.csv"}, label="ill")
print(tables.schema().to_json(indent=2))
coterie.run("fedper", data=tables)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.rows import Table
from coterie.tasks.agreeing import agree
from coterie.tasks.cells import key
from coterie.tasks.facts import facts_of
from coterie.tasks.kinds import CATEGORY, NUMBER
from coterie.tasks.preparing import out_of_range
from coterie.tasks.samples import DataError
from coterie.tasks.schema import Schema, read_schema
from coterie.tasks.sources import pool_of
from coterie.wire.config import RunConfig, Value


@dataclass(frozen=True)
class Tables:
    """Files by their owners, the column to learn, and further settings of a run about tables."""

    settings: Mapping[str, Value]

    def schema(self) -> Schema:
        """Columns, kinds, categories and label that all files agree on."""
        return look_at(RunConfig.parse({"task": "own", **self.settings}))[0]

    def __str__(self) -> str:
        return str(self.settings["data"])


def tables(
    files: Mapping[str, str | Path] | Sequence[str | Path],
    label: str = "",
    *,
    ignore: Sequence[str] = (),
    missing: str = "",
    schema: str | Path = "",
    **keys: Value,
) -> Tables:
    """Data for `coterie.run`: a file for each owner, by its name, or a list of files, which give clients their names.

    `label` is the column to learn, `ignore` are columns to leave out, `missing` codes for missing cells ("-1,chol=0"),
    `schema` a file of `coterie schema`. `keys` are further keys of a run: delimiter, decimal, encoding, classes, ...
    """
    if isinstance(files, Mapping):
        data = ",".join(f"{name}={path}" for name, path in files.items())
    else:
        data = ",".join(str(path) for path in files)
    told = {"label": label, "ignore": ",".join(ignore), "missing": missing, "table-schema": str(schema)}
    settings: dict[str, Value] = {"data": data, **{key: value for key, value in told.items() if value}}
    return Tables(settings | {key.replace("_", "-"): value for key, value in keys.items()})


def look_at(config: RunConfig) -> tuple[Schema, list[str], list[str]]:
    """The schema of the tables that `config` names, what the owner of one should know, and what is to be known of all, which
    the agreement of a run says as well; refuses a table that does not fit."""
    pool = pool_of(config)
    names = pool.outline().label_names
    remarks = {remark: looked.table.source for looked in pool.tables.values() for remark in looked.remarks}
    warnings: list[str] = []
    if config.table_schema:
        schema = read_schema(config.table_schema)
    else:
        classes = config.classes or ("" if any("," in name for name in names) else ",".join(names))
        facts = {
            name: facts_of(looked, np.arange(len(looked.table)), config.min_count)
            for name, looked in pool.tables.items()
        }
        agreed = agree(facts, classes=classes, ignore=config.ignore, missing=config.missing, min_count=config.min_count)
        for client, why in agreed.refused.items():
            raise DataError(f"{pool.tables[client].table.source}: {why}.")
        schema, warnings = agreed.schema, agreed.warnings
    said = {key(warning) for warning in warnings}
    of_one = [remark for remark, file in remarks.items() if key(remark.removeprefix(f"{file}, ")) not in said]
    for looked in pool.tables.values():
        schema.encode(looked.table)
        schema.targets(looked.table)
        of_one += [f"{looked.table.source}, {cell}" for cell in out_of_range(schema, looked.table)]
    return schema, of_one, warnings


def shown(schema: Schema) -> Table:
    """A schema for people."""
    rows = []
    for column in schema.columns:
        values = ", ".join(column.categories) + ", (other)" * (column.kind == CATEGORY)
        if column.kind == NUMBER:
            values = " to ".join(f"{bound:g}" for bound in column.range) if column.range else ""
            values += f"{' ' if values else ''}{column.unit}"
        how = {"log": "logarithm, scaled", "none": "one-hot" if column.kind == CATEGORY else "scaled"}[column.transform]
        rows.append([column.name, column.kind, values, how + (", is missing" if column.indicator else "")])
    learned = "a value" if schema.regression else f"classes {', '.join(schema.classes)}"
    title = f"{len(schema.columns)} columns, {len(schema.features)} features; label {schema.label}: {learned}"
    return Table(title, ["column", "kind", "values", "prepared"], rows)
