"""What a client says of its own model after the last round: all metrics with intervals, and what it gained over training alone.

Alone it trains as with strategy `local`: from the initial model, on the same samples, with the same random numbers, but never
privately, as nothing of that model leaves it. It keeps it, and works on it no longer at a time than it is told.
"""

import time
from dataclasses import replace

from flwr.app import RecordDict

from coterie.client.participant import Participant
from coterie.client.store import Note
from coterie.client.training import local_training
from coterie.tasks.judging import answers_of
from coterie.tasks.metrics import Answers, gain_over, intervals
from coterie.tasks.models import Network
from coterie.tasks.training import PLAIN, outputs
from coterie.wire.errors import Refused
from coterie.wire.messages import JudgeOrder, TrainOrder, reply
from coterie.wire.privacy import PrivacySettings

TOPIC = "alone"
MOST_LABELS = 20  # of a confusion matrix


def judge(me: Participant, order: JudgeOrder, records: RecordDict) -> RecordDict:
    """The answer to a JudgeOrder: the figures, or how many rounds were trained alone so far, if that takes longer."""
    if not len(me.test_samples()):
        return reply({"num-samples": 0})
    alone = None
    if order.alone:
        trained, network = train_alone(me, order)
        if trained < order.alone:
            return reply({"num-samples": 0, "rounds-alone": trained})
        alone = _answers(me, network)
    network = me.network()
    if not me.store.load_model(network):
        raise Refused("this client has no model of its own to judge")
    own = _answers(me, network)
    return reply({"num-samples": len(own), **figures(me, own, alone, order.metric)})


def train_alone(me: Participant, order: JudgeOrder) -> tuple[int, Network]:
    """Go on for `seconds`, at least one round; the rounds trained so far, and the model."""
    ends = time.monotonic() + order.seconds
    network, samples = me.network(), me.train_samples()
    kept = me.store.find(TOPIC, order.alone + 1)
    trained = kept.round if kept else 0
    network.fill(kept.arrays if kept else {})
    openly = replace(me, privacy=PrivacySettings.parse({}))
    while trained < order.alone:
        trained += 1
        local_training(openly, TrainOrder(trained, upload=()), network, samples, PLAIN, model=0)
        if time.monotonic() > ends:
            break
    me.store.remember(TOPIC, Note(trained, network.dump()))
    return trained, network


def figures(me: Participant, own: Answers, alone: Answers | None, metric: str) -> dict[str, float | list[float]]:
    """Under the names of wire/messages.py. With privacy nothing is told of single labels."""
    told: dict[str, float | list[float]] = dict(intervals(own, own.names, me.rng("judge", 0)))
    if own.said.ndim == 2 and me.privacy.mode == "off":
        told["label-counts"] = [float(count) for count in own.counts()]
        if own.said.shape[1] <= MOST_LABELS:
            told["confusion"] = [float(count) for count in own.confusion().ravel()]
    gained = gain_over(own, alone, metric) if alone is not None else None
    if alone is not None and gained is not None:
        ends = [] if gained.low is None or gained.high is None else [gained.low, gained.high]
        told |= {"local": alone.value(metric), "own": own.value(metric), "gain": [gained.gain, *ends]}
    return told


def _answers(me: Participant, network: Network) -> Answers:
    samples = me.test_samples()
    return answers_of(outputs(network, samples.x).clone(), samples)
