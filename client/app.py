"""The ClientApp: what one device answers to each message (wire/messages.py)."""

import time

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.coalition import fill
from client.fomo import mix
from client.participant import Participant, received_parts
from client.pfedsv import deliver, personalize
from client.privacy import train_privately, with_noise
from client.store import OWN
from tasks.models import Network
from tasks.training import Samples, Trained
from tasks.training import evaluate as evaluate_network
from tasks.training import train as train_network
from wire.arrays import Parts
from wire.checks import Refused
from wire.fingerprint import fingerprint
from wire.messages import ORDER, OTHERS, DeliverOrder, EvaluateOrder, Hello, PersonalizeOrder, TrainOrder, reply

app = ClientApp()


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
    network = me.network()
    kept = me.store.find(OWN, order.round)
    if order.continues and (kept is None or kept.round != order.continues):
        raise Refused(f"what this client kept in round {order.continues} is not here: send the whole model")
    fill(network, {**(kept.arrays if kept else {}), **received_parts(message.content, network)})
    return _train_and_reply(message, me, order, network, {})


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


@app.train("personalize")
def train_personalize(message: Message, context: Context) -> Message:
    order = PersonalizeOrder.from_record(message.content.config_records[ORDER])
    return Message(personalize(Participant.of(context), order, message.content), reply_to=message)


def _train_and_reply(
    message: Message, me: Participant, order: TrainOrder, network: Network, more: dict[str, list[float]]
) -> Message:
    started = time.process_time()
    samples = me.train_samples()
    attack = me.attack()
    start: Parts = {}
    if attack:
        start, samples = network.dump(), attack.on_samples(samples)
        if attack.starts_anew:
            network.load(me.network().dump())
    done, spent = local_training(me, order, network, samples)
    number = len(samples)
    del samples  # the upload needs their memory
    if order.keep:
        me.store.keep(order.round, network.views(order.keep))
    upload = network.views(order.upload)
    if me.privacy.mode == "weights":
        upload = with_noise(me, upload, order.round)
    if attack:
        upload = attack.on_update(start, upload, order.round)
    metrics = {
        "num-samples": number,
        "loss": done.loss,
        "steps": done.steps,
        "cpu-seconds": time.process_time() - started,
    }
    return Message(reply({**metrics, **spent, **more}, upload), reply_to=message)


def local_training(
    me: Participant, order: TrainOrder, network: Network, samples: Samples
) -> tuple[Trained, dict[str, float]]:
    """All phases of the order; also the privacy spent, where it is counted."""
    sgd = me.sgd(order.proximal_mu)
    phases = [(tuple(p.split("+")), n) for p, n in zip(order.phase_parts, order.phase_epochs, strict=True)]
    rng = me.rng("train", order.round)
    if me.privacy.mode == "dp-sgd":
        done, epsilon = train_privately(me, network, samples, sgd, phases, order.round)
        return done, {"epsilon": epsilon}
    loss, steps = 0.0, 0
    for parts, epochs in phases:
        done = train_network(network, samples, sgd, epochs=epochs, rng=rng, parts=parts)
        loss, steps = done.loss, steps + done.steps
    return Trained(loss, steps), {}


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = EvaluateOrder.from_record(message.content.config_records[ORDER])
    network = me.network()
    kept = me.store.find(OWN, order.round + 1)
    fill(network, {**(kept.arrays if kept else {}), **received_parts(message.content, network)})
    samples = me.test_samples()
    metrics: dict[str, float] = {"num-samples": len(samples)}
    if len(samples) and "global" in order.kinds:
        metrics |= _prefixed("global", evaluate_network(network, samples))
    if "personal" in order.kinds:
        if order.fine_tune_epochs:
            train_network(
                network, me.train_samples(), me.sgd(), epochs=order.fine_tune_epochs, rng=me.rng("tune", order.round)
            )
        if len(samples) and "global" in order.kinds and not order.fine_tune_epochs:
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
