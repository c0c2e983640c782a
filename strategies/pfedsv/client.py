"""pFedSV on the client (Wu et al. 2022, arXiv:2202.02502): the personal model from the own one and those of a few others.

    SV          Shapley values of the downloaded models (game.py)
    relevance   phi_j <- alpha phi_j + (1 - alpha) SV_j                                   what is remembered of the others
    model       own model 1/(m+1), the m with a positive value the rest in the ratio of their values; the own model alone where
                this mixture has a higher loss on the validation samples

In the paper's game the own model is a player, too, and the mixture is sum_j w_j theta_j with
w_j ~ max(SV_j, 0) / |theta_j - own theta at the start of the round|, used unseen (games/relevance.py).

Others are pseudonyms. What arrived damaged is left out by name; the own model is kept whatever happens. Large models are
delivered one by one beforehand, and stay in their files while the game is played.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.store import OWN, Note
from coterie.client.testing import personal_metrics
from coterie.games.relevance import (
    aggregation_weights,
    ask_next,
    choose_collaborators,
    faded,
    gain_weights,
    update_relevance,
)
from coterie.strategies.method import answers
from coterie.strategies.pfedsv.game import Model, coalition_values, gains, loss_of, mix
from coterie.strategies.pfedsv.orders import DeliverOrder, Judgement, PersonalizeOrder
from coterie.tasks.models import Network
from coterie.tasks.parts import distance
from coterie.tasks.tensors import pieces
from coterie.wire.arrays import Parts
from coterie.wire.checks import readable_parts
from coterie.wire.errors import Refused
from coterie.wire.messages import OTHERS, reply

TOPIC = "pfedsv"
PSEUDONYM = re.compile(r"[0-9a-f]{16}")


@dataclass
class Memory:
    """What a client knows of the others, by pseudonym."""

    relevance: dict[str, float] = field(default_factory=dict)  # of everybody whose model it ever had
    judged: dict[str, int] = field(default_factory=dict)  # the round in which that was measured
    held: list[str] = field(default_factory=list)  # the models that it has, as the store knows them


@answers(DeliverOrder)
def deliver(me: Participant, order: DeliverOrder, records: RecordDict) -> RecordDict:
    """Keep a model for the game to come. It must look like the own one, so that no network is needed here."""
    key = key_of(order.name, order.version)
    own = trained_model(me, order.round)
    layout = {part: np.empty(own[part].shape, own[part].dtype) for part in order.parts if part in own}
    me.store.keep_other(key, readable_parts(records.array_records.get(OTHERS, ArrayRecord()), layout))
    return reply({})


def key_of(name: str, version: int) -> str:
    """The name of a file, so nothing else may be in it."""
    if not isinstance(name, str) or not PSEUDONYM.fullmatch(name) or not isinstance(version, int):
        raise Refused(f"the server sent a model of {str(name)[:40]!r}, version {str(version)[:40]!r}: not a pseudonym")
    return f"{name}-{version}"


@answers(PersonalizeOrder)
def personalize(me: Participant, order: PersonalizeOrder, records: RecordDict) -> RecordDict:
    """Do what the order says; the answer to it."""
    if not len(me.validation_samples()):
        raise Refused("the validation split is empty: raise validation-fraction, or give this client more samples")
    network = me.network()
    start = starting_point(me, network, order) if order.game == "paper" else None
    shared = received_parts(records, network)
    own = {part: vector for part, vector in trained_model(me, order.round).items() if part not in shared}
    memory = load_memory(me, order.round)
    others, problems = usable_models(me, order, records, network)

    network.fill(own | shared)
    models = [{part: own[part] for part in order.parts}, *others.values()]
    mixed = (
        mix_by_gain(me, order, network, models) if start is None else mix_by_paper(me, order, network, models, start)
    )

    names = list(others)
    remember(memory, order, names, mixed["values"][-len(names) :])
    save_memory(me, order, memory, others)
    me.store.keep(order.round, network.views())

    known = tuple(name for name in order.roster if name in memory.relevance)
    metrics: dict[str, float | list[float]] = {name: numbers.tolist() for name, numbers in mixed.items()}
    metrics["relevance"] = scores_of(memory, order, known).tolist()
    if order.evaluate:
        metrics |= personal_metrics(me, network)
    wishes = choose(memory, order, me.rng("wishes", order.round))
    judgement = Judgement(tuple(names), tuple(problems), tuple(problems.values()), known, wishes)
    return reply(metrics, record=judgement)


def mix_by_gain(
    me: Participant, order: PersonalizeOrder, network: Network, models: list[Model]
) -> dict[str, np.ndarray]:
    """Make the network, which is the first of the models, the mixture of those that help, if that has no higher loss."""
    samples = me.validation_samples()
    own_loss = loss_of(network, samples)
    values = gains(network, models, samples, own_loss, me.rng("coalition", order.round))
    weights = gain_weights(values)
    mix(network, models, weights)
    loss = own_loss if weights[0] == 1 else loss_of(network, samples)
    if loss > own_loss:
        weights = np.eye(1, len(models))[0]
        mix(network, models, weights)
    return {"values": values, "weights": weights, "losses": np.array([own_loss, loss])}


def mix_by_paper(
    me: Participant, order: PersonalizeOrder, network: Network, models: list[Model], start: Model
) -> dict[str, np.ndarray]:
    """Make the network the mixture by the paper's values and distances."""
    values = coalition_values(network, models, me.validation_samples(), me.rng("coalition", order.round))
    weights = aggregation_weights(values, [distance(model, start) for model in models], own=0)
    mix(network, models, weights)
    return {"values": values, "weights": weights}


def starting_point(me: Participant, network: Network, order: PersonalizeOrder) -> Model:
    """What the parts that are exchanged were before this round's training: kept, or else those of the initial network."""
    found = me.store.find(OWN, order.round)
    kept = found.arrays if found else {}
    return {**network.dump(part for part in order.parts if part not in kept), **kept}


def trained_model(me: Participant, server_round: int) -> Model:
    found = me.store.find(OWN, server_round + 1)
    if found is None or found.round != server_round:
        raise Refused(f"this client has no model trained in round {server_round}: it lost its state, or took no part")
    return found.arrays


def usable_models(
    me: Participant, order: PersonalizeOrder, records: RecordDict, network: Network
) -> tuple[dict[str, Model], dict[str, str]]:
    """The models of others that can be used, and why the rest cannot."""
    layout = network.like(order.parts)
    record = records.array_records.get(OTHERS, ArrayRecord())
    rows = readable_parts(record, network.like(order.parts, rows=len(order.sent))) if order.sent else {}
    found: dict[str, Model] = {name: {part: row[i] for part, row in rows.items()} for i, name in enumerate(order.sent)}
    problems: dict[str, str] = {}
    for name, version in zip(order.held, order.held_versions, strict=True):
        held = me.store.other(key_of(name, version))
        if held is None:
            problems[name] = f"not here in version {version}"
        else:
            found[name] = held
    variances = network.variances()
    problems |= {name: problem for name, model in found.items() if (problem := _problem_of(model, layout, variances))}
    return {name: model for name, model in found.items() if name not in problems}, problems


def _problem_of(model: Model, layout: Parts, variances: np.ndarray) -> str:
    if set(model) != set(layout):
        return f"expected the parts {sorted(layout)}, got {sorted(model)}"
    for part, like in layout.items():
        vector = model[part]
        if vector.shape != like.shape or vector.dtype != like.dtype:
            return f"{part}: other shape or type"
        if not all(np.isfinite(vector[piece]).all() for piece in pieces(vector.size)):
            return f"{part}: numbers are not finite"
        if part == "buffers" and (vector[...][variances] < 0).any():
            return "buffers: a running variance is negative"
    return ""


def remember(memory: Memory, order: PersonalizeOrder, names: list[str], values: np.ndarray) -> None:
    """The relevance of these members after they got these values."""
    if not names:
        return
    paper = order.game == "paper"
    first = [] if paper else [i for i, name in enumerate(names) if name not in memory.judged]
    before = scores_of(memory, order, names)
    after = update_relevance(before, range(len(names)), values, alpha=order.alpha, first=first)
    memory.relevance |= dict(zip(names, after.tolist(), strict=True))
    memory.judged |= dict.fromkeys(names, order.round)


def scores_of(memory: Memory, order: PersonalizeOrder, names: Sequence[str]) -> np.ndarray:
    """What the memory of these is worth in this round: scores fade, but not in the paper."""
    scores = np.array([memory.relevance.get(name, 0.0) for name in names])
    return scores if order.game == "paper" or not names else faded(scores, ages_of(memory, order, names))


def ages_of(memory: Memory, order: PersonalizeOrder, names: Sequence[str]) -> list[float]:
    """How many rounds ago these were judged; infinity for never."""
    return [order.round - memory.judged[name] if name in memory.judged else np.inf for name in names]


def choose(memory: Memory, order: PersonalizeOrder, rng: np.random.Generator) -> tuple[str, ...]:
    """Whom to ask for next time."""
    if not order.roster or not order.top_k:
        return ()
    scores, ages = scores_of(memory, order, order.roster), ages_of(memory, order, order.roster)
    if order.game == "paper":  # place 0 is the client itself
        seen = [True, *np.isfinite(ages)]
        chosen = choose_collaborators([0.0, *scores], seen, own=0, k=order.top_k, rng=rng) - 1
    else:
        chosen = ask_next(scores, ages, order.top_k, rng)
    return tuple(order.roster[i] for i in chosen)


def load_memory(me: Participant, before_round: int) -> Memory:
    note = me.store.recall(TOPIC, before_round)
    if note is None:
        return Memory()
    names, held = (json.loads(note.facts[key]) for key in ("known", "held"))
    relevance, judged = (dict(zip(names, note.arrays[key].tolist(), strict=True)) for key in ("relevance", "judged"))
    return Memory(relevance, judged, held)


def save_memory(me: Participant, order: PersonalizeOrder, memory: Memory, others: dict[str, Model]) -> None:
    """Also keep the models that may be wanted again, those of the round before with them, in case this one is repeated."""
    before, memory.held = memory.held, []
    if order.keep_models:
        versions = dict(zip(order.sent + order.held, order.sent_versions + order.held_versions, strict=True))
        memory.held = [key_of(name, versions[name]) for name in others]
        for key, (name, model) in zip(memory.held, others.items(), strict=True):
            if name in order.sent:
                me.store.keep_other(key, {part: vector[...] for part, vector in model.items()})
    facts = {"known": json.dumps(list(memory.relevance)), "held": json.dumps(memory.held)}
    arrays = {
        "relevance": np.array(list(memory.relevance.values()), np.float64),
        "judged": np.array([memory.judged[name] for name in memory.relevance], np.int64),
    }
    me.store.remember(TOPIC, Note(order.round, arrays, facts))
    me.store.forget_others(but=[*memory.held, *before])
