"""The ClientApp: what one device answers to each message.

Every client understands the messages of wire/messages.py. Any other belongs to the method of the run, whose class says what its
clients do with it; the method is looked up by its name and loaded only then. A method from outside must be installed on this
device, or be in a file that its node configuration names (`methods`).
"""

import dataclasses
import logging
from importlib import import_module
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coterie.client.data import load_for_later
from coterie.client.images import keep_pixels
from coterie.client.judging import judge
from coterie.client.owner import check_floors, requires_privacy
from coterie.client.participant import Participant, client_name, local_config
from coterie.client.tables import describe, keep_schema
from coterie.client.testing import test
from coterie.client.training import train
from coterie.tasks.samples import DataError
from coterie.wire.config import RunConfig
from coterie.wire.errors import Refused
from coterie.wire.folding import folded, is_folded, unfolded
from coterie.wire.messages import (
    DESCRIBE,
    EVALUATE,
    FIGURES,
    HELLO,
    ORDER,
    TRAIN,
    DescribeOrder,
    EvaluateOrder,
    Hello,
    JudgeOrder,
    TrainOrder,
    record_of,
)
from coterie.wire.privacy import PrivacySettings

log = logging.getLogger(__name__)

COMMON: dict[str, tuple[Any, Any]] = {
    DESCRIBE: (DescribeOrder, describe),
    TRAIN: (TrainOrder, train),
    EVALUATE: (EvaluateOrder, test),
    FIGURES: (JudgeOrder, judge),
}


class CoterieClient(ClientApp):
    def __call__(self, message: Message, context: Context) -> Message:
        fold = is_folded(message.content)
        if fold:
            message.content = unfolded(message.content)
        try:
            reply = self.answer(message, context)
            return Message(folded(reply.content), reply_to=message) if fold else reply
        except DataError as error:
            log.error("%s", error)  # for the owner of the data; the server sees no cell
            private = PrivacySettings.of(context.run_config).mode != "off"
            raise Refused(error.told(private=private)) from None

    def answer(self, message: Message, context: Context) -> Message:
        me, kind = Participant.of(context), message.metadata.message_type
        check_run(me)
        if kind == HELLO:
            if told := record_of(message.content, ORDER, ConfigRecord):
                keep = keep_schema if "schema" in told else keep_pixels
                keep(me, str(told["schema" if "schema" in told else "pixels"]))
                me = Participant.of(context)
            return Message(RecordDict({ORDER: hello(me).to_record()}), reply_to=message)
        handlers = COMMON if kind in COMMON else handlers_of(*method_of(me.config, context))
        if kind not in handlers:
            raise Refused(f"{kind}: strategy {me.config.strategy!r} has no such message")
        order, answer = handlers[kind]
        records = message.content
        told = order.from_record(record_of(records, ORDER, ConfigRecord) or {})
        me = dataclasses.replace(me, round=told.round)
        return Message(answer(me, told, records), reply_to=message)


def check_run(me: Participant) -> None:
    """Whether the owner of this device lets it take part in this run."""
    node = me.context.node_config
    private = registry().on_client(*method_of(me.config, me.context)).private if requires_privacy(node) else ()
    try:
        check_floors(me.config, me.privacy, node, private)
    except Refused as error:
        raise Refused(f"client {me.name!r}: {error}") from None


def handlers_of(strategy: str, files: str = "") -> dict[str, tuple[Any, Any]]:
    """What this device does with the messages that are the method's own."""
    found: dict[str, tuple[Any, Any]] = registry().on_client(strategy, files).handlers()
    return found


def method_of(config: RunConfig, context: Context) -> tuple[str, str]:
    """The name of the run's method, and the files in which the owner of this device allows to look for it."""
    return config.strategy, str(context.node_config.get("methods", ""))


def registry() -> Any:
    """Loaded when it is needed: a device has no use for methods but that of its run."""
    return import_module("coterie.strategies.registry")


def keep_data(context: Context) -> None:
    """Load the data set and the method into this process; the answers that are forked from it then find them in memory."""
    config = local_config(context)
    load_for_later(context.node_config, config, client_name(context, config))
    handlers_of(*method_of(config, context))


def hello(me: Participant) -> Hello:
    try:
        code = registry().code_on_client(*method_of(me.config, me.context))
    except Refused as error:
        raise Refused(f"client {me.name!r} {error}") from None
    data = me.table_share() if me.has_table else me.data()
    sizes = (len(data.split.train), len(data.split.validation), len(data.split.test))
    return Hello(me.name, code, data.num_partitions, *sizes)


app = CoterieClient()
