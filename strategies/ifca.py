"""IFCA (Ghosh et al. 2020, arXiv:2006.04088): a few models for all; each client trains the one that fits its data best.

    j_i = argmin_j f_i(theta_j),      theta_j <- mean over the clients with j_i = j, weighted by their samples

All models are sent, the client chooses by the loss on its training samples, and its own model is the one that it would choose.
The models begin with different random weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from coterie.client.participant import Participant
from coterie.client.testing import personal_metrics
from coterie.client.training import loss_of, train_from
from coterie.strategies.fedavg import FedAvg, sample_weights
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.strategies.rounds import Round
from coterie.tasks.models import Network
from coterie.tasks.parts import average, stacked
from coterie.tasks.resolve import network_of
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update, checked_parts
from coterie.wire.errors import Refused
from coterie.wire.messages import OTHERS, EvaluateOrder, Sent, TrainOrder, reply
from coterie.wire.randomness import derive_seed


@dataclass(frozen=True)
class ChooseOrder(TrainOrder):
    """Train the best of these models, and say which."""

    kind = "train.choose"
    models: int = 1


@dataclass(frozen=True)
class TestChoice(EvaluateOrder):
    """Test the best of these models, and say which."""

    kind = "evaluate.choose"
    models: int = 1


class IFCA(FedAvg):
    name = "ifca"
    private = ("weights",)
    not_private = "chooses a model by the loss on training samples, which no noise hides"
    kinds = ("personal",)
    saved = ("clusters", "chosen")

    class Settings(MethodSettings):
        clusters: int = setting(2, "How many models there are.", ge=1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clusters: list[Parts] = []
        self.chosen: dict[str, int] = {}  # by client, which model it chose last

    def begin(self) -> None:
        if not self.clusters:
            self.clusters = [dict(self.model), *(self.begun(j) for j in range(1, self.settings.clusters))]

    def begun(self, number: int) -> Parts:
        """A model with random weights of its own."""
        seed = derive_seed(self.config.seed, "cluster", number) % 2**31
        config = self.config.model_copy(update={"seed": seed, "pretrained": ""})
        return network_of(config, group_norm=self.layout.group_norm).dump()

    def round(self, round: Round) -> None:
        order = ChooseOrder(**asdict(self.train_order(round.number)), models=len(self.clusters))
        updates = round.train(lambda clients: self.with_models(order, clients))
        self.aggregate(round, updates)

    def with_models(self, order: TrainOrder | EvaluateOrder, clients: list[str]) -> list[Sent]:
        models = [{part: model[part] for part in self.uploads()} for model in self.clusters]
        return [Sent(order, others=pack(stacked(models)))] * len(clients)

    def check_update(self, client: str, reply: Message) -> Update:
        update = super().check_update(client, reply)
        if update.metrics.get("chosen") not in range(len(self.clusters)):
            raise Refused(f"chosen: expected a number below {len(self.clusters)}, got {update.metrics.get('chosen')!r}")
        return update

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        now = {name: int(update.metrics["chosen"]) for name, update in updates.items()}
        for j in sorted(set(now.values())):
            mine = [update for name, update in updates.items() if now[name] == j]
            self.clusters[j] = self.clusters[j] | average([update.parts for update in mine], sample_weights(mine))
        self.chosen |= now
        round.tell(chosen=now)

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        return self.with_models(TestChoice(round.number, self.kinds, models=len(self.clusters)), clients)

    def largest_answer(self, sent: int) -> int:
        return super().largest_answer(sent // max(1, len(self.clusters)))

    def findings(self) -> list[Finding]:
        clients = sorted(self.chosen, key=name_order)
        groups = [[name for name in clients if self.chosen[name] == j] for j in range(len(self.clusters))]
        return [Finding("coalitions", "groups", [group for group in groups if group])]

    @staticmethod
    @answers(ChooseOrder)
    def train(me: Participant, order: ChooseOrder, records: RecordDict) -> RecordDict:
        network, chosen = best_of(me, order.models, order.round, records, order.upload)
        return train_from(me, order, network, more={"chosen": chosen})

    @staticmethod
    @answers(TestChoice)
    def test(me: Participant, order: TestChoice, records: RecordDict) -> RecordDict:
        network, chosen = best_of(me, order.models, order.round + 1, records)
        return reply({**personal_metrics(me, network), "chosen": chosen})


def best_of(
    me: Participant, models: int, before_round: int, records: RecordDict, shared: tuple[str, ...] = ()
) -> tuple[Network, int]:
    """The network as the model with the lowest loss on the training samples, and its number; the first one without a sample."""
    network = me.network()
    own = me.store.own_parts(before_round)
    parts = shared or tuple(part for part in network.parts if part not in own)
    rows = checked_parts(records.array_records.get(OTHERS, ArrayRecord()), network.like(parts, rows=models))
    samples, losses = me.train_samples(), []
    for j in range(models):
        network.fill({**own, **{part: rows[part][j] for part in rows}})
        losses.append(loss_of(network, samples))
    best = int(np.argmin(losses))
    network.fill({**own, **{part: rows[part][best] for part in rows}})
    return network, best
