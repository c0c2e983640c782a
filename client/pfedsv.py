"""pFedSV on the client (Wu et al. 2022, arXiv:2202.02502): the personal model from the own one and those of a few others.

    SV          Shapley values of the downloaded models and the own one (client/coalition.py)
    relevance   phi_j <- alpha phi_j + (1 - alpha) SV_j                                   what is remembered of the others
    model       sum_j w_j theta_j,   w_j ~ max(SV_j, 0) / |theta_j - own theta at the start of the round|

Others are pseudonyms. What arrived damaged is left out by name; the own model is kept whatever happens.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from client.coalition import coalition_values, distance, weighted_mean
from client.participant import Participant, received_parts
from client.store import OWN, Note
from games.relevance import aggregation_weights, choose_collaborators, update_relevance
from tasks.models import Network
from tasks.training import evaluate
from wire.arrays import Parts
from wire.checks import Refused, readable_parts
from wire.messages import OTHERS, Judgement, PersonalizeOrder, reply

TOPIC = "pfedsv"


@dataclass
class Memory:
    """What a client knows of the others, by pseudonym."""

    relevance: dict[str, float] = field(default_factory=dict)  # of everybody whose model it ever had
    models: dict[str, tuple[int, Parts]] = field(default_factory=dict)  # the last ones it had, with their versions


def personalize(me: Participant, order: PersonalizeOrder, records: RecordDict) -> RecordDict:
    """Do what the order says; the answer to it."""
    validation = me.validation_samples()
    if not len(validation):
        raise Refused("the validation split is empty: raise validation-fraction, or give this client more samples")
    network = me.network()
    start = starting_point(me, network, order)
    shared = received_parts(records, network)
    own = {part: value for part, value in trained_model(me, order.round).items() if part not in shared}
    memory = load_memory(me, order.round)
    others, problems = usable_models(order, records, memory, network)

    network.load(own | shared)
    models = [{part: own[part] for part in order.parts}, *[model for _, model in others.values()]]
    values = coalition_values(network, models, validation, me.rng("coalition", order.round))
    weights = aggregation_weights(values, [distance(model, start) for model in models], own=0)
    personal = own | shared | weighted_mean(models, weights)

    names = list(others)
    before = [memory.relevance.get(name, 0.0) for name in names]
    after: Any = update_relevance(before, range(len(names)), values[1:], alpha=order.alpha) if names else []
    memory.relevance |= {name: float(score) for name, score in zip(names, after, strict=True)}
    memory.models = others if order.keep_models else {}
    save_memory(me, order.round, memory)
    me.store.keep(order.round, personal)

    known = tuple(name for name in order.roster if name in memory.relevance)
    metrics: dict[str, float | list[float]] = {
        "values": values.tolist(),
        "weights": weights.tolist(),
        "relevance": [memory.relevance[name] for name in known],
    }
    if order.evaluate:
        metrics |= tested(me, network, personal)
    wishes = choose(memory, order, me.rng("wishes", order.round))
    judgement = Judgement(tuple(names), tuple(problems), tuple(problems.values()), known, wishes)
    return reply(metrics, record=judgement)


def starting_point(me: Participant, network: Network, order: PersonalizeOrder) -> Parts:
    """What the parts that are exchanged were before this round's training."""
    kept = me.store.own_parts(order.round)
    return {part: kept.get(part, value) for part, value in network.dump(order.parts).items()}


def trained_model(me: Participant, server_round: int) -> Parts:
    note = me.store.recall(OWN, server_round + 1)
    if note is None or note.round != server_round:
        raise Refused(f"this client has no model trained in round {server_round}: it lost its state, or took no part")
    return note.arrays


def usable_models(
    order: PersonalizeOrder, records: RecordDict, memory: Memory, network: Network
) -> tuple[dict[str, tuple[int, Parts]], dict[str, str]]:
    """The models of others that can be used, with their versions, and why the rest cannot."""
    rows = records.array_records.get(OTHERS, ArrayRecord())
    layout = network.like(order.parts)
    arrays = readable_parts(rows, network.like(order.parts, rows=len(order.sent))) if order.sent else {}
    usable: dict[str, tuple[int, Parts]] = {}
    problems: dict[str, str] = {}
    for i, (name, version) in enumerate(zip(order.sent, order.sent_versions, strict=True)):
        usable[name] = version, {part: array[i] for part, array in arrays.items()}
    for name, version in zip(order.held, order.held_versions, strict=True):
        if name in memory.models and memory.models[name][0] == version:
            usable[name] = memory.models[name]
        else:
            problems[name] = f"not here in version {version}"
    for name, (_, model) in list(usable.items()):
        if problem := _problem_of(model, layout, network.variances()):
            problems[name] = problem
            del usable[name]
    return usable, problems


def _problem_of(model: Parts, layout: Parts, variances: np.ndarray) -> str:
    for part, like in layout.items():
        if part not in model or model[part].shape != like.shape or model[part].dtype != like.dtype:
            return f"{part}: other shape or type"
        if not np.isfinite(model[part]).all():
            return f"{part}: numbers are not finite"
        if part == "buffers" and (model[part][variances] < 0).any():
            return "buffers: a running variance is negative"
    return ""


def choose(memory: Memory, order: PersonalizeOrder, rng: np.random.Generator) -> tuple[str, ...]:
    """Whom to ask for next time; place 0 is the client itself."""
    if not order.roster or not order.top_k:
        return ()
    scores = [0.0, *[memory.relevance.get(name, 0.0) for name in order.roster]]
    seen = [True, *[name in memory.relevance for name in order.roster]]
    chosen = choose_collaborators(scores, seen, own=0, k=order.top_k, rng=rng)
    return tuple(order.roster[i - 1] for i in chosen)


def tested(me: Participant, network: Network, personal: Parts) -> dict[str, float]:
    """Test the personal model, and write it down as the model that this client would use."""
    network.load(personal)
    samples = me.test_samples()
    metrics: dict[str, float] = {"num-samples": len(samples)}
    if len(samples):
        metrics |= {f"personal.{name}": value for name, value in evaluate(network, samples).items()}
    me.save_model(network)
    return metrics


def load_memory(me: Participant, before_round: int) -> Memory:
    note = me.store.recall(TOPIC, before_round)
    if note is None:
        return Memory()
    names, held, versions = (json.loads(note.facts[key]) for key in ("known", "held", "versions"))
    rows = {part.removeprefix("held."): rows for part, rows in note.arrays.items() if part.startswith("held.")}
    models = {name: (versions[i], {part: row[i] for part, row in rows.items()}) for i, name in enumerate(held)}
    return Memory(dict(zip(names, note.arrays["relevance"].tolist(), strict=True)), models)


def save_memory(me: Participant, server_round: int, memory: Memory) -> None:
    arrays: Parts = {"relevance": np.array(list(memory.relevance.values()), np.float64)}
    held = [parts for _, parts in memory.models.values()]
    for part in held[0] if held else ():
        arrays[f"held.{part}"] = np.stack([parts[part] for parts in held])
    versions = [version for version, _ in memory.models.values()]
    texts = {"known": list(memory.relevance), "held": list(memory.models), "versions": versions}
    facts = {key: json.dumps(value) for key, value in texts.items()}
    me.store.remember(TOPIC, Note(server_round, arrays, facts))
