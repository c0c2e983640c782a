"""pFedOCF on the client: train the own model and those of the coalitions, judge models of coalitions, mix.

    err_i(C)    loss of a model of the coalition on the own validation samples
    personal    sum_c a_c theta_c over the own model and those of the coalitions, a >= 0, sum a = 1 (pfedocf/mixing.py)

For a linear task the own model is the least squares estimate, and that is all a client sends.
"""

import time

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.privacy import with_noise
from coterie.client.store import OWN
from coterie.client.testing import personal_metrics
from coterie.client.training import train_and_upload
from coterie.strategies.method import answers
from coterie.strategies.pfedocf.mixing import chosen_mixture, mixed, sample_losses
from coterie.strategies.pfedocf.orders import CoalitionOrder, ErrorsOrder, MixOrder, groups_of
from coterie.tasks.models import Network
from coterie.tasks.parts import stacked
from coterie.wire.arrays import Parts
from coterie.wire.checks import checked_parts
from coterie.wire.errors import ConfigError, Refused
from coterie.wire.messages import OTHERS, TrainOrder, reply


@answers(CoalitionOrder)
def train(me: Participant, order: CoalitionOrder, records: RecordDict) -> RecordDict:
    if order.estimate:
        return estimate(me, order)
    if me.privacy.mode == "dp-sgd" and me.privacy.target_epsilon:
        raise ConfigError(
            "privacy.target-epsilon: pfedocf trains as many models in a round as a client has coalitions, which is not known "
            "in advance; set privacy.noise-multiplier instead, and epsilon is counted"
        )
    network = me.network()
    rows = received_rows(records, network, order.rows)
    network.load(own_model(me, order, records, network))
    parts = tuple(network.parts)
    training = TrainOrder(order.round, upload=parts)
    metrics, upload = train_and_upload(me, training, network)
    me.store.keep(order.round, network.dump())
    uploads = [_copied(upload)] if order.upload_own else []
    for i, row in enumerate(rows, start=1):
        network.load(row)
        more, upload = train_and_upload(me, training, network, model=i)
        uploads.append(_copied(upload))
        metrics |= {name: metrics[name] + more[name] for name in ("steps", "cpu-seconds")}
        metrics |= {name: more[name] for name in ("epsilon",) if name in more}
    return reply(metrics, stacked(uploads) if uploads else None)


def _copied(parts: Parts) -> Parts:
    return {part: value.copy() for part, value in parts.items()}


def own_model(me: Participant, order: CoalitionOrder, records: RecordDict, network: Network) -> Parts:
    """What this client kept; if that is gone, what the server sent in its place; at first the initial model."""
    kept = me.store.recall(OWN, order.round)
    if kept is not None and kept.round >= order.continues:
        return kept.arrays
    sent = received_parts(records, network)
    if order.continues and not sent:
        raise Refused(f"the model that this client trained in round {order.continues} is not here: send it")
    return sent


def estimate(me: Participant, order: CoalitionOrder) -> RecordDict:
    """Least squares without an intercept: theta = (X'X)^-1 X'y."""
    started = time.process_time()
    if me.privacy.mode == "dp-sgd":
        raise ConfigError(
            "privacy.mode = 'dp-sgd': least squares estimates are not private; set ocf.game to 'measured', which trains by SGD"
        )
    network, samples, attack = me.network(), me.train_samples(), me.attack()
    start = network.dump()
    if attack:
        samples = attack.on_samples(samples)
    x, y = samples.x.flatten(1).double().cpu().numpy(), samples.y.double().cpu().numpy()
    number, features = x.shape
    if number <= features + 1:
        raise Refused(f"{number} training samples for {features} features: at least {features + 2} are needed")
    theta, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
    if rank < features:
        raise Refused(f"the {features} features of this client are linearly dependent (rank {rank}): leave some out")
    bias = np.zeros(start["classifier"].size - features)
    upload: Parts = {"classifier": np.concatenate([theta, bias]).astype(np.float32)}
    me.store.keep(order.round, upload)
    if me.privacy.mode == "weights":
        upload = with_noise(me, upload, order.round)
    if attack:
        upload = attack.on_update(start, upload, order.round)
    metrics = {
        "num-samples": number,
        "loss": float(np.mean((x @ theta - y) ** 2)),
        "steps": 0,
        "cpu-seconds": time.process_time() - started,
    }
    return reply(metrics, {part: value[None] for part, value in upload.items()})


@answers(ErrorsOrder)
def errors(me: Participant, order: ErrorsOrder, records: RecordDict) -> RecordDict:
    """The validation losses of every model that came along, as means of up to 100 groups of samples."""
    validation = me.validation_samples()
    if not len(validation):
        raise Refused("the validation split is empty: raise validation-fraction, or give this client more samples")
    network = me.network()
    models = received_rows(records, network, order.rows)
    if order.own:
        models.insert(0, network.dump() | me.store.own_parts(order.round + 1))
    losses: list[float] = []
    for model in models:
        network.load(model)
        groups = np.array_split(sample_losses(network, validation), groups_of(len(validation)))
        losses += [float(group.mean()) for group in groups]
    return reply({"errors": losses})


@answers(MixOrder)
def mix(me: Participant, order: MixOrder, records: RecordDict) -> RecordDict:
    """Make the personal model, test it and write it down."""
    network = me.network()
    own = network.dump() | me.store.own_parts(order.round + 1)
    models = [own, *received_rows(records, network, order.rows)]
    validation = me.validation_samples()
    weights = chosen_mixture(network, models, validation) if order.mixed else np.eye(len(models))[-1]
    network.load(mixed(models, weights))
    return reply({"mixing": weights.tolist(), **personal_metrics(me, network)})


def received_rows(records: RecordDict, network: Network, rows: int) -> list[Parts]:
    """The models that the server sent, checked."""
    if not rows:
        return []
    arrays = checked_parts(records.array_records.get(OTHERS, ArrayRecord()), network.like(rows=rows))
    if "buffers" in arrays and (arrays["buffers"][:, network.variances()] < 0).any():
        raise Refused("buffers: a running variance is negative")
    return [{part: array[i] for part, array in arrays.items()} for i in range(rows)]
