"""Making and testing a client's models, as most methods do it."""

from flwr.app import RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.store import OWN, Note
from coterie.client.training import loss_of
from coterie.tasks.gradients import measure_statistics
from coterie.tasks.models import Network
from coterie.tasks.training import evaluate
from coterie.tasks.training import train as train_network
from coterie.wire.messages import EvaluateOrder, reply

BEST = "best"  # topic: the personal model of the best round


def test(me: Participant, order: EvaluateOrder, records: RecordDict) -> RecordDict:
    """The answer to an EvaluateOrder."""
    network = me.network()
    kept = me.store.find(OWN, order.round + 1)
    own = kept.arrays if kept else {}
    network.fill({**own, **received_parts(records, network)})
    samples = me.test_samples()
    metrics: dict[str, float] = {"num-samples": len(samples)}
    if order.measure:
        measure_statistics(network, me.train_samples())
    if len(samples) and "global" in order.kinds:
        metrics |= _prefixed("global", evaluate(network, samples))
    if "personal" in order.kinds:
        if order.own:
            network.fill(own)
        if order.fine_tune_epochs:
            sgd = me.sgd(learning_rate=order.fine_tune_rate)
            rng = me.rng("tune", order.round)
            train_network(network, me.train_samples(), sgd, epochs=order.fine_tune_epochs, rng=rng)
        same = "global" in order.kinds and not order.fine_tune_epochs and not order.own and not me.config.patience
        if len(samples) and same:
            metrics |= {
                name.replace("global", "personal"): v for name, v in metrics.items() if name.startswith("global")
            }
            me.save_model(network)
        else:
            metrics |= personal_metrics(me, network)
    return reply(metrics)


def personal_metrics(me: Participant, network: Network) -> dict[str, float]:
    """Test the personal model, and write it down as the one that this client would use."""
    samples = me.test_samples()
    metrics: dict[str, float] = {"num-samples": len(samples)}
    if me.config.patience:
        metrics["rounds-since-best"] = take_best(me, network)
    if len(samples):
        metrics |= _prefixed("personal", evaluate(network, samples))
    me.save_model(network)
    return metrics


def take_best(me: Participant, network: Network) -> int:
    """Put the personal model of the best round so far, by the loss on validation samples, into `network`; how many rounds
    ago that was. It is written down in every round: a repeated one finds what was there before it."""
    validation = me.validation_samples()
    if not len(validation):
        return me.config.patience  # it waits for nothing
    loss, round = loss_of(network, validation), me.round
    if (before := me.store.find(BEST, me.round)) and float(before.facts["loss"]) <= loss:
        network.fill(before.arrays)
        loss, round = float(before.facts["loss"]), int(before.facts["best"])
    me.store.remember(BEST, Note(me.round, network.dump(), {"loss": repr(loss), "best": str(round)}))
    return me.round - round


def _prefixed(kind: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{kind}.{name}": value for name, value in metrics.items()}
