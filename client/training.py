"""Local training of one model, as every method does it: with privacy where it is asked for, and harm where it is meant."""

import time

from coterie.client.participant import Participant
from coterie.client.privacy import train_privately, with_noise
from coterie.tasks.models import Network
from coterie.tasks.training import PLAIN, Samples, Step, Trained, outputs, sample_loss
from coterie.tasks.training import train as train_network
from coterie.wire.arrays import Parts
from coterie.wire.messages import TrainOrder


def train_and_upload(
    me: Participant, order: TrainOrder, network: Network, step: Step = PLAIN
) -> tuple[dict[str, float], Parts]:
    """Train `network` by the order; what is told of it, and what is sent of it, which may change with the network."""
    started = time.process_time()
    samples = me.train_samples()
    attack = me.attack()
    start: Parts = {}
    if attack:
        start, samples = network.dump(), attack.on_samples(samples)
    told = {"start-loss": loss_of(network, samples)} if order.start_loss else {}
    if attack and attack.starts_anew:
        network.load(me.network().dump())
    done, spent = local_training(me, order, network, samples, step)
    upload = network.views(order.upload)
    if me.privacy.mode == "weights":
        upload = with_noise(me, upload, order.round)
    if attack:
        upload = attack.on_update(start, upload, order.round)
    metrics = {
        "num-samples": len(samples),
        "loss": done.loss,
        "steps": done.steps,
        "cpu-seconds": time.process_time() - started,
    }
    return {**metrics, **told, **spent}, upload


def loss_of(network: Network, samples: Samples) -> float:
    """The loss of the model as it is; 0 without a sample."""
    return float(sample_loss(outputs(network, samples.x), samples.y)) if len(samples) else 0.0


def local_training(
    me: Participant, order: TrainOrder, network: Network, samples: Samples, step: Step
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
        done = train_network(network, samples, sgd, epochs=epochs, rng=rng, parts=parts, step=step)
        loss, steps = done.loss, steps + done.steps
    return Trained(loss, steps), {}
