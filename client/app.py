"""The ClientApp: what one device answers to each message.

Every client understands the messages of wire/messages.py. Any other belongs to the method of the run, whose class says what its
clients do with it; the method is looked up by its name and loaded only then. A method from outside must be installed on this
device, or be in a file that its node configuration names (`methods`).
"""

from importlib import import_module
from typing import Any

from coterie.client.participant import Participant
from coterie.client.testing import test
from coterie.client.training import train
from coterie.wire.errors import Refused
from coterie.wire.messages import EVALUATE, HELLO, ORDER, TRAIN, EvaluateOrder, Hello, TrainOrder
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

COMMON: dict[str, tuple[Any, Any]] = {TRAIN: (TrainOrder, train), EVALUATE: (EvaluateOrder, test)}


class CoterieClient(ClientApp):
    def __call__(self, message: Message, context: Context) -> Message:
        me, kind = Participant.of(context), message.metadata.message_type
        if kind == HELLO:
            return Message(RecordDict({ORDER: hello(me).to_record()}), reply_to=message)
        handlers = COMMON if kind in COMMON else registry().on_client(*method_of(me)).handlers()
        if kind not in handlers:
            raise Refused(f"{kind}: strategy {me.config.strategy!r} has no such message")
        order, answer = handlers[kind]
        records = message.content
        return Message(answer(me, order.from_record(records.config_records[ORDER]), records), reply_to=message)


def hello(me: Participant) -> Hello:
    try:
        code = registry().code_on_client(*method_of(me))
    except Refused as error:
        raise Refused(f"client {me.name!r} {error}") from None
    data = me.data()
    sizes = (len(data.split.train), len(data.split.validation), len(data.split.test))
    return Hello(me.name, code, data.num_partitions, *sizes)


def method_of(me: Participant) -> tuple[str, str]:
    """The name of the run's method, and the files in which the owner of this device allows to look for it."""
    return me.config.strategy, str(me.context.node_config.get("methods", ""))


def registry() -> Any:
    return import_module("coterie.strategies.registry")


app = CoterieClient()
