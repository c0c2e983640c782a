"""Coterie: clients of one kind train together, each with its own prior and half of its own head.

1. Once, every client tells its labels' mean features under the initial network (games/prototypes.py), and by them clients are
   put into groups of one kind. Who comes later joins the nearest group, or begins its own.
2. In each group there is a model of its own. Clients train it, and it becomes the geometric median of what they made of it (RFA,
   Pillutla et al. 2022), so that a few bad ones cannot move it far.
3. Every third round members tell how large the losses of their group's model are on their labels (games/outsiders.py). Who is
   served far worse than the others, twice in a row, leaves the group.
4. A client's own mixture of labels moves the classifier's biases by log pi_i - log pi_group.
5. From there the classifier alone is trained on the client's samples; the personal classifier is the mean of both.

Features are projected to a few dimensions by a random matrix before anything is told of them. With `privacy.mode` the
features are of unit length, and the sums get noise: of one sample the counts, sums and sums of squares have at most length
sqrt(3). Personal models never leave their clients.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from coterie.client.participant import Participant
from coterie.games.prototypes import (
    Kinds,
    Prototypes,
    bounded,
    group_by_kind,
    most_samples,
    to_groups,
)
from coterie.strategies.coterie.facts import groups_found, in_the_event
from coterie.strategies.coterie.head import HeadOrder, test_head
from coterie.strategies.coterie.judging import (
    EVERY,
    LOSSES,
    ROUNDS,
    JudgedOrder,
    check_losses,
    doubts,
    train_judged,
)
from coterie.strategies.coterie.telling import checked_prototypes, told_prototypes
from coterie.strategies.fedavg import FedAvg, sample_weights
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.strategies.robust import geometric_median_weights, near_median_weights, weights_vector
from coterie.strategies.rounds import Round, by_name
from coterie.tasks.parts import average
from coterie.tasks.resolve import spec_of
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError, Refused
from coterie.wire.messages import Order, Sent, TrainOrder, reply

log = logging.getLogger(__name__)

DIMENSIONS = 16  # of the features that are told


@dataclass(frozen=True)
class PrototypesOrder(Order):
    """Tell the prototypes of the training samples under the initial network."""

    kind = "query.prototypes"
    dimensions: int


class Coterie(FedAvg):
    name = "coterie"
    version = 2
    saved = ("prototypes", "members", "models", "doubted")
    private: ClassVar[tuple[str, ...]] = ("dp-sgd", "weights")

    class Settings(MethodSettings):
        threshold: float = setting(3.0, "Clients whose T is below it are of one kind. 0: everybody alone.", ge=0.0)
        mean: Literal["geometric-median", "near-median", "mean"] = setting(
            "geometric-median",
            "How a group's models become one; near-median: models far from the others count less still; "
            "mean: FedAvg's, which one bad client can move far.",
        )
        prior: bool = setting(True, "Move the biases to the client's own mixture of labels.")
        regroup: bool = setting(
            True, "Who is served far worse than the others of its group, twice in a row, leaves it."
        )
        tune_epochs: int = setting(10, "Epochs on the classifier alone; the personal one is half-way there.", ge=0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prototypes: dict[str, dict[str, Any]] = {}  # client -> what it told
        self.members: dict[str, str] = {}  # client -> its group
        self.models: dict[str, Parts] = {}  # group -> its model
        self.doubted: dict[str, int] = {}  # client -> how often in a row its group's model served it badly

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if spec_of(config).kind == "regression":
            raise ConfigError(
                f"strategy = 'coterie': groups clients by the labels of their samples, and task {config.task!r} has none; "
                "take 'pfedocf' or 'fedavg-ft'"
            )

    def begin(self) -> None:
        self.check(self.config)

    def round(self, round: Round) -> None:
        before = dict(self.members)
        silent = self.meet(round)
        if self.members != before:
            round.tell(**in_the_event(self.findings()))
        order = self.train_order(round.number)
        updates = round.train(lambda clients: self.with_models(lambda client: order, clients))
        round.event["left-out"] |= {client: str(why) for client, why in silent.items() if client not in updates}
        weights: dict[str, float] = {}
        for group in sorted({self.group_of(client) for client in updates}, key=int):
            own = {client: update for client, update in updates.items() if self.group_of(client) == group}
            weights |= self.aggregate_group(group, own)
        self.regroup(round, updates)
        sizes = [self.samples_of(group) for group in self.models]
        self.model = average(list(self.models.values()), np.array(sizes, float))
        round.tell(weights=weights, groups=self.groups())

    def train_order(self, number: int) -> TrainOrder:
        judged = self.settings.regroup and number % EVERY == 0
        return (JudgedOrder if judged else TrainOrder)(number, upload=self.uploads(), keep=self.kept())

    def check_update(self, client: str, reply: Message) -> Update:
        update = super().check_update(client, reply)
        check_losses(update.vectors, self.layout.classifier_shape[0])
        return update

    def aggregate_group(self, group: str, updates: Mapping[str, Update]) -> dict[str, float]:
        models = [update.parts for update in updates.values()]
        weights = sample_weights(updates.values())
        if self.settings.mean != "mean":
            robust = near_median_weights if self.settings.mean == "near-median" else geometric_median_weights
            masses = np.minimum(weights, most_samples(weights))
            weights = robust(np.stack([weights_vector(model) for model in models]), masses)
        self.models[group] = self.models[group] | average(models, weights)
        return by_name(updates, weights)

    # Groups.

    def meet(self, round: Round) -> dict[str, Refused]:
        """Ask clients not met yet for their prototypes, and find their groups; why some told none."""
        new = [client for client in self.federation.clients if client not in self.prototypes]
        if not new and self.models:
            return {}
        order = PrototypesOrder(round.number, DIMENSIONS)
        told, failed = round.ask(new, lambda clients: [Sent(order)] * len(clients), self.check_prototypes)
        for client, error in failed.items():
            log.warning("round %d: client %s tells no prototypes: %s", round.number, client, error)
        self.prototypes |= {client: vars(one) for client, one in told.items()}
        if not self.members:
            self.form(list(self.prototypes))
        else:
            for client in told:
                self.join(client)
        if not self.models:
            self.models["0"] = dict(self.model)
        alone = [clients[0] for clients in self.groups().values() if len(clients) == 1]
        log.info("%d groups%s", len(self.groups()), f"; alone: {', '.join(alone)}" if alone else "")
        return failed

    def form(self, clients: list[str]) -> None:
        known = self.comparable(clients)
        groups = group_by_kind([self.told(client) for client in known], self.settings.threshold) if known else []
        for number, group in enumerate(groups):
            self.models[str(number)] = dict(self.model)
            self.members |= {known[i]: str(number) for i in group}
        if self.settings.threshold == 0:
            for client in [client for client in clients if client not in known]:
                self.found(client, self.model)

    def join(self, client: str, but: str = "") -> None:
        """The nearest group, or one of its own, which begins with the nearest's model. None, if nothing can be compared."""
        names = [name for name in self.groups() if name != but]
        distances = self.distances_to(client, names)
        if np.isnan(distances).all():
            if but or self.settings.threshold == 0:
                self.found(client, self.models.get(but, self.model))
            return
        best = int(np.nanargmin(distances))
        if distances[best] < self.settings.threshold:
            self.members[client] = names[best]
        else:
            self.found(client, self.models[but or names[best]])

    def distances_to(self, client: str, names: list[str]) -> np.ndarray:
        """T of a client that is in no group yet with each of these groups; nan where no label is shared."""
        others = self.comparable(self.members)
        if client not in self.comparable([client]) or not others:
            return np.full(len(names), np.nan)
        groups = [[i for i, one in enumerate(others) if self.members[one] == name] for name in names]
        return to_groups(Kinds([self.told(one) for one in [*others, client]]), len(others), groups)

    def regroup(self, round: Round, updates: Mapping[str, Update]) -> None:
        """Who was served far worse than its group's others, twice in a row, leaves the group."""
        judged = {client: update.vectors for client, update in updates.items() if LOSSES in update.vectors}
        leave = []
        for members in self.groups().values():
            present = [client for client in members if client in judged]
            for client, doubted in zip(present, doubts(present, judged, self.told), strict=True):
                self.doubted[client] = self.doubted.get(client, 0) + 1 if doubted else 0
                leave += [client] if self.doubted[client] >= ROUNDS else []
        for client in leave:
            old = self.members.pop(client)
            self.join(client, but=old)
            self.doubted[client] = 0
            log.info("round %d: client %s leaves its group, whose model serves it far worse", round.number, client)
        if leave:
            round.tell(moved={client: self.groups()[self.members[client]] for client in leave})
            round.tell(**in_the_event(self.findings()))

    def found(self, client: str, model: Parts) -> None:
        group = str(len(self.models))
        self.models[group] = dict(model)
        self.members[client] = group

    def told(self, client: str) -> Prototypes:
        return Prototypes(**self.prototypes[client])

    def comparable(self, clients: Iterable[str]) -> list[str]:
        """Those who told of enough samples of some label."""
        return [client for client in clients if client in self.prototypes and self.told(client).known().any()]

    def group_of(self, client: str) -> str:
        """Its own; the largest if nothing is known of the client."""
        return self.members.get(client) or max(self.models, key=lambda group: (self.samples_of(group), -int(group)))

    def groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for client in sorted(self.members, key=name_order):
            found.setdefault(self.members[client], []).append(client)
        return found

    def label_counts(self, group: str) -> np.ndarray:
        everybody = bounded([self.told(client) for client in self.members])
        counts = [one.counts for one, of in zip(everybody, self.members.values(), strict=True) if of == group]
        return np.maximum(np.sum(counts, axis=0), 0.0) if counts else np.zeros(self.layout.classifier_shape[0])

    def samples_of(self, group: str) -> float:
        return max(float(self.label_counts(group).sum()), 1.0)

    def check_prototypes(self, client: str, reply: Message) -> Prototypes:
        most = self.federation.hellos[client].num_train
        return checked_prototypes(reply, self.layout.classifier_shape[0], DIMENSIONS, most)

    # Models.

    def with_models(self, order: Any, clients: list[str]) -> list[Sent]:
        """Every client with its group's model, which is packed once."""
        shared: dict[str, ArrayRecord] = {}
        for group in {self.group_of(client) for client in clients}:
            shared[group] = pack({part: self.models[group][part] for part in self.uploads()})
        return [Sent(order(client), shared[self.group_of(client)]) for client in clients]

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        counts = {
            group: tuple(self.label_counts(group).tolist()) if self.settings.prior else () for group in self.models
        }
        orders = {group: HeadOrder(round.number, counts[group], self.settings.tune_epochs) for group in self.models}
        return self.with_models(lambda client: orders[self.group_of(client)], clients)

    def findings(self) -> list[Finding]:
        clients = self.comparable(sorted(self.members, key=name_order))
        unknown = [client for client in self.federation.connected if client not in self.members]
        told = [self.told(client) for client in clients]
        return groups_found(clients, told, self.groups(), self.settings.threshold, unknown)

    # The client.

    @staticmethod
    @answers(PrototypesOrder)
    def tell_prototypes(me: Participant, order: PrototypesOrder, records: RecordDict) -> RecordDict:
        samples, attack = me.train_samples(), me.attack()
        if attack:
            samples = attack.on_telling(samples)
        told = told_prototypes(me, samples, order.dimensions, order.round)
        metrics = {
            "counts": told.counts,
            "means": told.means.ravel(),
            "squares": told.squares,
            "noise": np.array([told.noise]),
        }
        return reply({name: value.tolist() for name, value in metrics.items()})

    @staticmethod
    @answers(HeadOrder)
    def test_head(me: Participant, order: HeadOrder, records: RecordDict) -> RecordDict:
        return test_head(me, order, records)

    @staticmethod
    @answers(JudgedOrder)
    def train_judged(me: Participant, order: JudgedOrder, records: RecordDict) -> RecordDict:
        return train_judged(me, order, records)
