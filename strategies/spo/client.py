"""SPO on the client: the losses of a hypernetwork's models on the own samples, and their gradients.

The client sees models without knowing whose preferences they stand for. On training samples it answers with the gradient of
each; on validation samples with all losses and the gradient of the best model, which is all that the server's search needs.
Beside that it trains a model alone, which stays here, and one that its coalition trains together. Before it gets a personal
model, it judges a few as they would be used: fine-tuned, and as they are.
"""

import time
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from coterie.client.participant import Participant
from coterie.client.training import train_and_upload
from coterie.strategies.method import answers
from coterie.tasks.gradients import Rows, measure_statistics, training_gradients, validation_gradient
from coterie.tasks.judging import metric_errors
from coterie.tasks.models import WEIGHTS, Network
from coterie.tasks.training import Samples, outputs, sample_loss
from coterie.tasks.training import train as train_network
from coterie.wire.checks import Layout, Update, check_update, checked_parts, rows_of, vector_of
from coterie.wire.errors import Refused
from coterie.wire.messages import MODEL, OTHERS, Order, TrainOrder, reply

WORST = 1e30  # in place of a loss that is not finite: such a model is of no use to anybody


@dataclass(frozen=True)
class RaysOrder(Order):
    """Losses and gradients of the `rows` models that came along.

    With `steps` above 0 on training samples, at most `samples` of them in each of so many steps of gradient descent, `step`
    long: the reply has the sum of each model's gradients on its way, a row each. With 0 on validation samples: the gradient
    of the best model only.

    In the first case the client also trains the model that it trains alone, which stays with it, and the one that its
    coalition trains together, where that came along: the last row of the reply is its way, divided by -`step`.
    """

    kind = "train.rays"
    rows: int
    steps: int
    step: float
    samples: int


@dataclass(frozen=True)
class JudgeOrder(Order):
    """Validation losses of the `rows` models that came along, as they are and then, with `epochs` above 0, fine-tuned for so
    many; and the standard error of each one's difference to the least. With `own`, first of all that of the model trained
    alone, as it is."""

    kind = "train.judge"
    rows: int
    epochs: int
    own: bool


def check_rays(reply: Message, layout: Layout, parts: tuple[str, ...], models: int, gradients: int) -> Update:
    """The losses of `models` models, and the gradients of so many of them, a row each."""
    update = check_update(reply, rows_of(layout, gradients), parts)
    vector_of(update.vectors, "losses", models)
    return update


def check_judgement(reply: Message, layout: Layout, rows: int) -> Update:
    """A loss and a standard error, not negative, for each of so many."""
    update = check_update(reply, layout, ())
    vector_of(update.vectors, "losses", rows)
    if (vector_of(update.vectors, "errors", rows) < 0).any():
        raise Refused("errors: must not be negative")
    return update


@answers(RaysOrder)
def losses_and_gradients(me: Participant, order: RaysOrder, records: RecordDict) -> RecordDict:
    started = time.process_time()
    network = me.network()
    models = received_models(records, network, order.rows)
    if order.steps:
        number, (gradients, losses) = _on_training(me, order, network, models)
        train_alone(me, order.round)
        if OTHERS in records.array_records:
            way = train_together(me, order, received_models(records, network, 1, OTHERS))
            gradients = {part: np.concatenate([rows, way[part] / -order.step]) for part, rows in gradients.items()}
    else:
        validation = me.validation_samples()
        if not len(validation):
            raise Refused("this client has no validation sample to judge models by")
        number, (gradients, losses) = (
            len(validation),
            validation_gradient(network, models, validation, me.train_samples()),
        )
        losses = np.nan_to_num(losses, nan=WORST, posinf=WORST)
    metrics = {
        "num-samples": number,
        "loss": float(losses.mean() if order.steps else losses.min()),
        "losses": losses.tolist(),
        "steps": order.steps,
        "cpu-seconds": time.process_time() - started,
    }
    return reply(metrics, gradients)


def train_alone(me: Participant, server_round: int) -> None:
    """As the strategy `local` does."""
    network = me.network()
    network.fill(me.store.own_parts(server_round))
    train_and_upload(me, TrainOrder(server_round, upload=()), network)
    me.store.keep(server_round, network.views())


def train_together(me: Participant, order: RaysOrder, start: Rows) -> Rows:
    """How far a round of FedAvg moves this model, one row per part."""
    network = me.network()
    network.load({part: rows[0] for part, rows in start.items()})
    _, upload = train_and_upload(me, TrainOrder(order.round, upload=tuple(start)), network)
    return {part: upload[part][None] - rows for part, rows in start.items()}


@answers(JudgeOrder)
def judge(me: Participant, order: JudgeOrder, records: RecordDict) -> RecordDict:
    started = time.process_time()
    network = me.network()
    models = received_models(records, network, order.rows) if order.rows else {}
    validation, training = me.validation_samples(), me.train_samples()
    if not len(validation):
        raise Refused("this client has no validation sample to judge models by")
    as_sent = [_losses(own_network(me, order.round, training), validation)] if order.own else []
    tuned = []
    for k in range(order.rows):
        network.load({part: rows[k] for part, rows in models.items()})
        measure_statistics(network, training)
        as_sent.append(_losses(network, validation))
        if order.epochs:  # with the random numbers of the test, which makes the same model of it
            train_network(network, training, me.sgd(), epochs=order.epochs, rng=me.rng("tune", order.round))
            tuned.append(_losses(network, validation))
    losses = np.array(as_sent + tuned)  # (models, samples)
    means = losses.mean(axis=1)
    beyond = losses - losses[np.argmin(means)]
    errors = (
        beyond.std(axis=1, ddof=1) / np.sqrt(len(validation)) if len(validation) > 1 else np.full(len(means), WORST)
    )
    metrics = {
        "num-samples": len(validation),
        "loss": float(means.min()),
        "losses": means.tolist(),
        "errors": errors.tolist(),
        "cpu-seconds": time.process_time() - started,
    }
    return reply(metrics)


def own_network(me: Participant, server_round: int, training: Samples) -> Network:
    """The model trained alone, as it is tested."""
    network = me.network()
    network.fill(me.store.own_parts(server_round + 1))
    measure_statistics(network, training)
    return network


def _losses(network: Network, samples: Samples) -> np.ndarray:
    """Of every sample, or its errors by the run's metric."""
    predicted = outputs(network, samples.x)
    if (errors := metric_errors(predicted, samples)) is not None:
        return errors
    losses = sample_loss(predicted, samples.y, "none").double().cpu().numpy()
    return np.asarray(np.minimum(np.nan_to_num(losses, nan=WORST, posinf=WORST), WORST))


def _on_training(
    me: Participant, order: RaysOrder, network: Network, models: Rows
) -> tuple[int, tuple[Rows, np.ndarray]]:
    samples, attack, rate = me.train_samples(), me.attack(), order.step
    start = models
    if attack:
        samples = attack.on_samples(samples)
        if attack.starts_anew:
            initial = me.network().dump(models)
            start = {part: np.broadcast_to(initial[part], rows.shape) for part, rows in models.items()}
    gradients, losses = training_gradients(
        network, start, samples, steps=order.steps, rate=rate, most=order.samples, rng=me.rng("rays", order.round)
    )
    if attack:  # it spoils updates, and an update is -rate times the gradient
        flat = {part: rows.ravel() for part, rows in models.items()}
        honest = {part: flat[part] - rate * gradients[part].ravel() for part in flat}
        sent = attack.on_update(flat, honest, order.round)
        gradients = {part: ((flat[part] - sent[part]) / rate).reshape(models[part].shape) for part in flat}
    return len(samples), (gradients, losses)


def received_models(records: RecordDict, network: Network, rows: int, record: str = MODEL) -> Rows:
    """The models that came along, checked, a row each."""
    if rows < 1:
        raise Refused(f"{rows} models were sent; there must be one or more")
    return checked_parts(records.array_records.get(record, ArrayRecord()), network.like(WEIGHTS, rows=rows))
