"""The ClientApp: what one device answers to each message (wire/messages.py)."""

import numpy as np
from coterie.client import ocf
from coterie.client.coalition import fill
from coterie.client.data import load_client_data
from coterie.client.fomo import mix
from coterie.client.participant import Participant, client_name, local_config, received_parts
from coterie.client.pfedsv import deliver, personalize
from coterie.client.rays import losses_and_gradients
from coterie.client.store import OWN
from coterie.client.training import train_and_upload
from coterie.tasks.gradients import measure_statistics
from coterie.tasks.models import Network
from coterie.tasks.steps import Adapted, Moreau
from coterie.tasks.training import PLAIN, Step
from coterie.tasks.training import evaluate as evaluate_network
from coterie.tasks.training import train as train_network
from coterie.wire.errors import Refused
from coterie.wire.fingerprint import fingerprint
from coterie.wire.messages import (
    ORDER,
    OTHERS,
    CoalitionOrder,
    DeliverOrder,
    EvaluateOrder,
    Hello,
    MetaOrder,
    MixOrder,
    MoreauOrder,
    PersonalizeOrder,
    RaysOrder,
    TrainOrder,
    reply,
)
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def keep_data(context: Context) -> None:
    """Load the data set into this process; the answers that are forked from it then find it in memory."""
    load_client_data(context.node_config, local_config(context), client_name(context))


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    data = me.data()
    sizes = (len(data.split.train), len(data.split.validation), len(data.split.test))
    answer = Hello(me.name, fingerprint(), data.num_partitions, *sizes)
    return Message(RecordDict({ORDER: answer.to_record()}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = TrainOrder.from_record(message.content.config_records[ORDER])
    return _train_and_reply(message, me, order, _start(message, me, order), {})


@app.train("meta")
def train_meta(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = MetaOrder.from_record(message.content.config_records[ORDER])
    return _train_and_reply(message, me, order, _start(message, me, order), {}, Adapted(order.alpha))


@app.train("moreau")
def train_moreau(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = MoreauOrder.from_record(message.content.config_records[ORDER])
    step = Moreau(order.pull, order.inner_steps, order.inner_rate)
    return _train_and_reply(message, me, order, _start(message, me, order), {}, step)


@app.train("fomo")
def train_fomo(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = TrainOrder.from_record(message.content.config_records[ORDER])
    network = me.network()
    network.load(me.store.own_parts(order.round))
    weights = np.zeros(0)
    if OTHERS in message.content.array_records:
        weights = mix(network, message.content.array_records[OTHERS], me.validation_samples())
    return _train_and_reply(message, me, order, network, {"weights": weights.tolist()})


@app.train("deliver")
def train_deliver(message: Message, context: Context) -> Message:
    order = DeliverOrder.from_record(message.content.config_records[ORDER])
    return Message(deliver(Participant.of(context), order, message.content), reply_to=message)


@app.train("coalitions")
def train_coalitions(message: Message, context: Context) -> Message:
    order = CoalitionOrder.from_record(message.content.config_records[ORDER])
    return Message(ocf.train(Participant.of(context), order, message.content), reply_to=message)


@app.query("errors")
def query_errors(message: Message, context: Context) -> Message:
    order = MixOrder.from_record(message.content.config_records[ORDER])
    return Message(ocf.errors(Participant.of(context), order, message.content), reply_to=message)


@app.evaluate("mix")
def evaluate_mix(message: Message, context: Context) -> Message:
    order = MixOrder.from_record(message.content.config_records[ORDER])
    return Message(ocf.mix(Participant.of(context), order, message.content), reply_to=message)


@app.train("rays")
def train_rays(message: Message, context: Context) -> Message:
    order = RaysOrder.from_record(message.content.config_records[ORDER])
    return Message(losses_and_gradients(Participant.of(context), order, message.content), reply_to=message)


@app.train("personalize")
def train_personalize(message: Message, context: Context) -> Message:
    order = PersonalizeOrder.from_record(message.content.config_records[ORDER])
    return Message(personalize(Participant.of(context), order, message.content), reply_to=message)


def _start(message: Message, me: Participant, order: TrainOrder) -> Network:
    """The model to train: the own parts, overwritten by those sent."""
    network = me.network()
    kept = me.store.find(OWN, order.round)
    if order.continues and (kept is None or kept.round != order.continues):
        raise Refused(f"what this client kept in round {order.continues} is not here: send the whole model")
    fill(network, {**(kept.arrays if kept else {}), **received_parts(message.content, network)})
    return network


def _train_and_reply(
    message: Message,
    me: Participant,
    order: TrainOrder,
    network: Network,
    more: dict[str, list[float]],
    step: Step = PLAIN,
) -> Message:
    metrics, upload = train_and_upload(me, order, network, step)
    if order.keep:
        me.store.keep(order.round, network.views(order.keep) | step.personal())
    return Message(reply({**metrics, **more}, upload), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = EvaluateOrder.from_record(message.content.config_records[ORDER])
    network = me.network()
    kept = me.store.find(OWN, order.round + 1)
    own = kept.arrays if kept else {}
    fill(network, {**own, **received_parts(message.content, network)})
    samples = me.test_samples()
    metrics: dict[str, float] = {"num-samples": len(samples)}
    if order.measure:
        measure_statistics(network, me.train_samples())
    if len(samples) and "global" in order.kinds:
        metrics |= _prefixed("global", evaluate_network(network, samples))
    if "personal" in order.kinds:
        if order.own:
            fill(network, own)
        if order.fine_tune_epochs:
            sgd = me.sgd(learning_rate=order.fine_tune_rate)
            train_network(
                network, me.train_samples(), sgd, epochs=order.fine_tune_epochs, rng=me.rng("tune", order.round)
            )
        if len(samples) and "global" in order.kinds and not order.fine_tune_epochs and not order.own:
            metrics |= {
                name.replace("global", "personal"): value
                for name, value in metrics.items()
                if name.startswith("global")
            }
        elif len(samples):
            metrics |= _prefixed("personal", evaluate_network(network, samples))
        me.save_model(network)
    return Message(reply(metrics), reply_to=message)


def _prefixed(kind: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{kind}.{name}": value for name, value in metrics.items()}
