"""Before the first round of a run with tables: the clients tell what theirs are like, and get one schema for all.

It is kept with the run as `schema.json`. A run that goes on takes the schema that is there; so does a client that joins later.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

from coterie.client.tables import agreed_config, table_noise
from coterie.strategies.federation import Federation
from coterie.strategies.observer import Observer, Waiting
from coterie.tasks.agreeing import Agreed, agree, agree_noisy, agree_told, check_noisy
from coterie.tasks.facts import Facts
from coterie.tasks.schema import LARGEST_SCHEMA, Schema
from coterie.wire.checks import records_of
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError, Refused, RunFailed
from coterie.wire.files import write_atomically
from coterie.wire.messages import ORDER, DescribeOrder, Description, Sent
from coterie.wire.privacy import PrivacySettings

log = logging.getLogger(__name__)

FILE = "schema.json"


def agree_on_tables(
    grid: Grid,
    config: RunConfig,
    privacy: PrivacySettings,
    code: str,
    run_dir: Path,
    observers: Sequence[Observer] = (),
) -> tuple[RunConfig, dict[str, str]]:
    """The configuration of the run with the schema in it, whose text is what clients are told; and who must not take part."""
    kept = run_dir / FILE
    told = Schema.from_json(config.table_schema) if config.table_schema else None
    if kept.exists():
        schema = Schema.from_json(kept.read_text(encoding="utf-8"), str(kept))
    elif told is not None and told.is_prepared:
        schema = told
    else:
        federation = Federation(grid, code=code, join_timeout=config.join_timeout, quorum=config.quorum)
        federation.on_wait = partial(tell_waiting, observers)
        federation.gather(config.num_clients)
        schema = ask(federation, config, privacy, told, observers)
    write_atomically(kept, (schema.to_json(indent=2) + "\n").encode())
    facts = dict(schema.facts)
    refused = facts.pop("refused", {})
    return agreed_config(config, replace(schema, facts=facts).to_json()), refused


def tell_waiting(observers: Sequence[Observer], waiting: Waiting) -> None:
    for observer in observers:
        observer.waiting(waiting)


def check_tables(config: RunConfig, privacy: PrivacySettings) -> None:
    if config.test_data == "published" or config.long_tail > 1 or config.shift != "none":
        raise ConfigError("test-data, long-tail, shift: are for data sets of experiments; these tables are your own")
    if privacy.mode != "off" and not config.table_schema:
        raise ConfigError(
            f"privacy.mode = {privacy.mode!r}: which columns and categories there are must be agreed on beforehand; make a "
            "schema with `coterie schema FILE --output schema.json`, look at it, and give it with --table-schema schema.json"
        )


def ask(
    federation: Federation,
    config: RunConfig,
    privacy: PrivacySettings,
    told: Schema | None,
    observers: Sequence[Observer] = (),
) -> Schema:
    """What the clients' tables have in common. Its facts name those that must not take part, and why."""

    def tell(answered: int, asked: int) -> None:
        for observer in observers:
            observer.progress(0, DescribeOrder.kind.rpartition(".")[2], answered, asked)

    clients = federation.clients
    order = Sent(DescribeOrder(0))
    replies, _ = federation.exchange(dict.fromkeys(clients, order), 0, config.round_timeout, tell)
    facts: dict[str, Facts] = {}
    refused: dict[str, str] = {}
    silent = {name: f"no answer within {config.round_timeout:g} seconds" for name in clients if name not in replies}
    for name in [name for name in clients if name in replies]:
        try:
            most = federation.hellos[name].num_train
            facts[name] = check_facts(replies[name], most, told if _noisy(privacy) else None)
        except Refused as error:
            refused[name] = str(error)
    agreed = Agreed(told, []) if told is not None and _noisy(privacy) else None
    if len(facts) >= federation.needed(len(clients)):
        agreed = agreed or _agree(facts, config, told)
        refused |= agreed.refused
    left_out = [f"client {name} cannot take part: {why}" for name, why in (refused | silent).items()]
    for line in left_out:
        log.warning("%s", line)
    facts = {name: fact for name, fact in facts.items() if name not in refused}
    if agreed is None or len(facts) < federation.needed(len(clients)):
        raise RunFailed("; ".join(left_out[:3]))
    for warning in agreed.warnings:
        log.warning("%s", warning)
    schema = _with_noise(agreed.schema, facts, privacy) if _noisy(privacy) else agreed.schema
    return replace(schema, facts={**schema.facts, **({"refused": refused} if refused else {})})


def _noisy(privacy: PrivacySettings) -> bool:
    return privacy.mode != "off"


def _agree(facts: Mapping[str, Facts], config: RunConfig, told: Schema | None) -> Agreed:
    if told is not None:
        return agree_told(told, facts, config.min_count)
    return agree(
        facts, classes=config.classes, ignore=config.ignore, missing=config.missing, min_count=config.min_count
    )


def _with_noise(told: Schema, facts: Mapping[str, Facts], privacy: PrivacySettings) -> Schema:
    multiplier = table_noise(privacy)
    deviation = multiplier * (len(told.columns) + told.regression) ** 0.5
    about = {
        "clients": len(facts),
        "noise": {
            "epsilon": privacy.table_epsilon,
            "delta": privacy.delta,
            "noise-multiplier": multiplier,
            "deviation of each count": deviation,
        },
    }
    return replace(agree_noisy(told, facts, deviation), facts=about)


def check_facts(reply: Message, most_rows: int, schema: Schema | None) -> Facts:
    """What a client tells of its table, or `Refused`; `schema` where it is told with noise."""
    record = records_of(reply).config_records.get(ORDER)
    try:
        if record is None:
            raise ValueError("no record")
        text = Description.from_record(record).facts
        if not isinstance(text, str) or len(text) > LARGEST_SCHEMA:
            raise ValueError("not a text, or too long")
        facts = Facts.model_validate_json(text)
        if schema is not None:
            check_noisy(facts, schema)
        elif facts.rows > most_rows:
            raise ValueError(f"{facts.rows} rows, but {most_rows} are for training")
    except (ValidationError, ValueError, TypeError, json.JSONDecodeError) as error:
        raise Refused(f"what it tells of its table cannot be used ({str(error).splitlines()[0]})") from None
    return facts
