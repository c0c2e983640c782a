"""Local training of one model, as every method does it: with privacy where it is asked for, and harm where it is meant."""

import time
from collections.abc import Mapping
from typing import Any

from flwr.app import RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.privacy import train_privately, with_noise
from coterie.client.store import OWN
from coterie.tasks.models import WEIGHTS, Network
from coterie.tasks.training import PLAIN, Samples, Step, Trained, outputs, sample_loss
from coterie.tasks.training import train as train_network
from coterie.wire.arrays import Parts
from coterie.wire.errors import Refused
from coterie.wire.messages import TrainOrder, reply


def train(me: Participant, order: TrainOrder, records: RecordDict, step: Step = PLAIN) -> RecordDict:
    """The answer to a TrainOrder: from the own parts, overwritten by those sent."""
    network = me.network()
    kept = me.store.find(OWN, order.round)
    if order.continues and (kept is None or kept.round != order.continues):
        raise Refused(f"what this client kept in round {order.continues} is not here: send the whole model")
    network.fill({**(kept.arrays if kept else {}), **received_parts(records, network)})
    return train_from(me, order, network, step)


def train_from(
    me: Participant, order: TrainOrder, network: Network, step: Step = PLAIN, more: Mapping[str, Any] | None = None
) -> RecordDict:
    """The same from this model; `more` metrics are told."""
    metrics, upload = train_and_upload(me, order, network, step)
    if order.keep:
        me.store.keep(order.round, network.views(order.keep) | step.personal())
    return reply({**metrics, **(more or {})}, upload)


def train_and_upload(
    me: Participant, order: TrainOrder, network: Network, step: Step = PLAIN, model: int = 0
) -> tuple[dict[str, float], Parts]:
    """Train `network` by the order; what is told of it, and what is sent of it, which may change with the network. Who trains
    several networks in a round counts them by `model`."""
    if order.start_loss and me.privacy.mode == "dp-sgd":
        raise Refused("start-loss: a loss on training samples is not told with privacy.mode = 'dp-sgd'")
    started = time.process_time()
    samples = me.train_samples()
    attack = me.attack()
    start: Parts = {}
    if attack:
        start, samples = network.dump(), attack.on_samples(samples)
    told = {"start-loss": loss_of(network, samples)} if order.start_loss else {}
    if attack and attack.starts_anew:
        network.load(me.network().dump())
    done, spent = local_training(me, order, network, samples, step, model)
    upload = network.views(order.upload)
    if me.privacy.mode == "weights":
        upload = with_noise(me, upload, order.round, model)
    if attack:
        upload = attack.on_update(start, upload, order.round)
    metrics = {
        "num-samples": len(samples),
        **({"loss": done.loss} if me.privacy.mode != "dp-sgd" else {}),
        "steps": done.steps,
        "cpu-seconds": time.process_time() - started,
    }
    return {**metrics, **told, **spent}, upload


def loss_of(network: Network, samples: Samples) -> float:
    """The loss of the model as it is; 0 without a sample."""
    return float(sample_loss(outputs(network, samples.x), samples.y)) if len(samples) else 0.0


def local_training(
    me: Participant, order: TrainOrder, network: Network, samples: Samples, step: Step, model: int
) -> tuple[Trained, dict[str, float]]:
    """All phases of the order; also the privacy spent, where it is counted."""
    sgd = me.sgd(order.proximal_mu)
    told = [(tuple(p.split("+")), n) for p, n in zip(order.phase_parts, order.phase_epochs, strict=True)]
    phases = told or [(WEIGHTS, me.config.local_epochs)]
    rng = me.rng("train", order.round)
    if me.privacy.mode == "dp-sgd":
        done, epsilon = train_privately(me, network, samples, sgd, phases, order.round, model)
        return done, {"epsilon": epsilon}
    loss, steps = 0.0, 0
    for parts, epochs in phases:
        done = train_network(network, samples, sgd, epochs=epochs, rng=rng, parts=parts, step=step)
        loss, steps = done.loss, steps + done.steps
    return Trained(loss, steps), {}
