"""The ClientApp: what one device answers to each message (wire/messages.py)."""

import time

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.fomo import mix
from client.participant import Participant, received_parts
from tasks.models import Network
from tasks.training import evaluate as evaluate_network
from tasks.training import train as train_network
from wire.fingerprint import fingerprint
from wire.messages import ORDER, OTHERS, EvaluateOrder, Hello, Parts, TrainOrder, reply

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
    network.load(me.store.own_parts(order.round) | received_parts(message.content, network))
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
    rng = me.rng("train", order.round)
    loss, steps = 0.0, 0
    for parts, epochs in zip(order.phase_parts, order.phase_epochs, strict=True):
        done = train_network(
            network, samples, me.sgd(order.proximal_mu), epochs=epochs, rng=rng, parts=parts.split("+")
        )
        loss, steps = done.loss, steps + done.steps
    if order.keep:
        me.store.keep(order.round, network.dump(order.keep))
    metrics = {"num-samples": len(samples), "loss": loss, "steps": steps, "cpu-seconds": time.process_time() - started}
    upload = network.dump(order.upload)
    if attack:
        upload = attack.on_update(start, upload, order.round)
    return Message(reply({**metrics, **more}, upload), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    me = Participant.of(context)
    order = EvaluateOrder.from_record(message.content.config_records[ORDER])
    network = me.network()
    received = received_parts(message.content, network)
    own = me.store.own_parts(order.round + 1)
    samples = me.test_samples()
    metrics: dict[str, float] = {"num-samples": len(samples)}
    network.load(own | received)
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
