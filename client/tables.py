"""A client's table: what it tells of it before the run, and how it uses what all agreed on.

query.describe   what is your table like?       -> statistics of its columns (tasks/facts.py)
query.hello      with the schema of all         -> the client checks that its table fits, keeps the schema, says hello
"""

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import RecordDict

from coterie.client.accountant import Accountant
from coterie.client.owner import LARGEST_DELTA, check_epsilon
from coterie.client.store import Note, Store
from coterie.tasks.facts import Facts, facts_by, facts_of, noisy_facts
from coterie.tasks.kinds import Looked
from coterie.tasks.preparing import at_home, dataset_of, out_of_range
from coterie.tasks.reading import Table
from coterie.tasks.samples import DataError, Dataset
from coterie.tasks.schema import Schema
from coterie.tasks.sources import is_table_run
from coterie.tasks.splits import Split
from coterie.wire.config import RunConfig
from coterie.wire.errors import Refused
from coterie.wire.messages import DescribeOrder, Description, reply
from coterie.wire.privacy import PrivacySettings
from coterie.wire.randomness import derive_seed

log = logging.getLogger(__name__)

TOPIC = "table"
ANY_ROUND = 2**62


@dataclass(frozen=True)
class TableShare:
    """The rows of a client, and which of them are for what."""

    looked: Looked
    table: Table  # its rows alone
    rows: np.ndarray  # where they stand in the file
    split: Split  # places in `table`
    num_partitions: int  # 0: the file is its own


def describe(me: Any, order: DescribeOrder, records: RecordDict) -> RecordDict:
    """The answer to a DescribeOrder."""
    if not me.has_table:
        from coterie.client.images import told_pixels

        if me.privacy.mode != "off":
            raise Refused("pixels: with privacy nothing is told of images")
        pixels = told_pixels(me.data())
        return reply({"num-rows": 1}, record=Description(order.round, pixels.model_dump_json()))
    share = me.table_share()
    if not share.num_partitions:  # in a simulation all is said once, of all tables
        for remark in share.looked.remarks:
            log.warning("%s", remark)
    facts = told_facts(share, me)
    return reply({"num-rows": facts.rows}, record=Description(order.round, facts.model_dump_json()))


def told_facts(share: TableShare, me: Any) -> Facts:
    config, privacy = me.config, me.privacy
    train = share.table.take(share.split.train)
    schema = Schema.from_json(config.table_schema) if config.table_schema else None
    if privacy.mode != "off":
        if schema is None:
            raise DataError(
                "table-schema: with privacy columns must be agreed on beforehand; make one with `coterie schema`."
            )
        noise = table_noise(privacy)
        same_noise_in = 0 if share.num_partitions else None
        accountant = Accountant.load(me.store, same_noise_in, "table").after(noise, 1.0, 1)
        check_epsilon(me.context.node_config, accountant.epsilon(min(privacy.delta, LARGEST_DELTA)))
        accountant.save(me.store, same_noise_in)  # before anything is told
        seed = (
            derive_seed(config.seed, "table", client=me.name) if share.num_partitions else None
        )  # else nobody knows it
        return noisy_facts(schema, train, noise, np.random.default_rng(seed))
    if schema is not None:
        return facts_by(schema, train, config.min_count)
    return facts_of(share.looked, share.rows[share.split.train], config.min_count)


def table_noise(privacy: PrivacySettings) -> float:
    """Of the counts that are told of a table, in units of what one row can change."""
    return Accountant().noise_for(privacy.table_epsilon, 1.0, 1, privacy.delta)


def keep_schema(me: Any, text: str) -> None:
    """What all agreed on, for the rest of this run; refuses it if the own table does not fit."""
    schema = Schema.from_json(text, "the schema that the server sent")
    if not schema.is_prepared:
        raise DataError("the schema that the server sent does not say how columns are prepared.")
    share = me.table_share()
    schema.encode(share.table)
    schema.targets(share.table)
    for cell in out_of_range(schema, share.table) if not share.num_partitions else ():
        log.warning("%s, %s", share.table.source, cell)
    me.store.remember(TOPIC, Note(1, {}, {"schema": text}))


def with_schema(config: RunConfig, store: Store) -> RunConfig:
    """The configuration of a run with tables, once the clients have agreed on their columns."""
    if not is_table_run(config):
        return config
    found = store.find(TOPIC, ANY_ROUND)
    return agreed_config(config, found.facts["schema"]) if found else config


def agreed_config(config: RunConfig, text: str) -> RunConfig:
    features, classes = _sizes(text)
    return config.model_copy(update={"table_schema": text, "input_shape": str(features), "classes": classes})


@lru_cache(maxsize=4)
def _sizes(text: str) -> tuple[int, str]:
    schema = Schema.from_json(text)
    return len(schema.features), "regression" if schema.regression else str(len(schema.classes))


def prepared_share(share: TableShare, config: RunConfig) -> tuple[Dataset, Schema]:
    """The samples of a client, and the schema by which they were made: that of all, or with its own numbers."""
    rows = share.split.train.tobytes() if config.scaling == "site" else b""
    found = (share.table.source, share.table.lines.tobytes(), config.table_schema, rows)
    if found not in _prepared:
        schema = Schema.from_json(config.table_schema)
        if config.scaling == "site":
            schema = at_home(schema, share.table.take(share.split.train))
        while len(_prepared) >= MOST_PREPARED:
            _prepared.pop(next(iter(_prepared)))
        _prepared[found] = (dataset_of(schema, share.table), schema)
    return _prepared[found]


MOST_PREPARED = 64  # shares that a process keeps in memory
_prepared: dict[tuple[str, bytes, str, bytes], tuple[Dataset, Schema]] = {}
