"""Collaboration equilibrium (Cui et al. 2022): clients form coalitions that nobody has reason to leave, and these train.

The first rounds are SPO: a hypernetwork of the Pareto front, then each client's collaborators. The benefit graph has an
edge from each collaborator to the client it helps; strongly connected components without an edge from outside are
coalitions. The others are asked again whom they would choose among themselves (games/equilibrium.py). From then on every
coalition is a FedAvg of its own that starts from the hypernetwork's model for all its members alike.

Whether the coalitions are an equilibrium is checked with the clients' validation losses. U_i(C) is minus the least loss of
the models
for equal preferences among any part of C with i in it, and of those that the searches found there.
"""

import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from coterie.games.equilibrium import (
    Coalition,
    Violation,
    check_axioms,
    collaboration_equilibrium,
    collaborators_from_weights,
)
from coterie.games.preferences import even
from coterie.strategies.fedavg import sample_weights
from coterie.strategies.findings import Finding
from coterie.strategies.rounds import Round, by_name, exactly, in_words
from coterie.strategies.spo import SPO
from coterie.tasks.models import STATISTICS
from coterie.tasks.parts import average
from coterie.wire.arrays import Parts
from coterie.wire.checks import check_update
from coterie.wire.errors import Refused
from coterie.wire.messages import EvaluateOrder, Sent, TrainOrder

log = logging.getLogger(__name__)

MOST_PARTS = 64  # coalitions that one client is asked about when the axioms are checked
ROWS_AT_ONCE = 64


class CE(SPO):
    name = "ce"
    saved = ("coalitions", "models", "violations", "asked_up_to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exploring = max(1, math.floor(exactly(self.settings.explore) * self.config.num_server_rounds))
        self.coalitions: list[list[str]] = []
        self.models: list[Parts] = []  # of each coalition
        self.violations: list[dict[str, Any]] = []
        self.asked_up_to = 0  # size of the coalitions with which the axioms were checked

    def round(self, round: Round) -> None:
        if round.number > self.exploring:
            self.train_coalitions(round)
            return
        self.learn_front(round)
        if round.number == self.exploring:
            self.form(round)

    # Forming coalitions.

    def form(self, round: Round) -> None:
        everybody = frozenset(range(len(self.roster)))
        points: dict[int, list[np.ndarray]] = {i: [] for i in everybody}  # what the searches found for each client
        asked: dict[Coalition, dict[int, Coalition]] = {}
        failed: dict[str, Refused] = {}

        def optimal_set(client: int, remaining: Coalition) -> Coalition:
            if remaining not in asked:
                found, more = self.search(remaining, round, failed) if len(remaining) > 1 else ({}, {})
                failed.update(more)
                if remaining == everybody:
                    self.preferences = {name: search.point for name, search in found.items()}
                asked[remaining] = {}
                for name, search in found.items():
                    i = self.roster.index(name)
                    chosen = collaborators_from_weights(search.point, i, threshold=self.settings.threshold)
                    asked[remaining][i] = chosen
                    points[i].append(_only(search.point, chosen))
            return asked[remaining].get(client, frozenset({client}))  # of whom nothing is known: alone

        found = collaboration_equilibrium(optimal_set, len(self.roster))
        self.coalitions = [[self.roster[i] for i in sorted(coalition)] for coalition in found]
        self.models = [self.model | self.made_for(even(coalition, len(self.roster))) for coalition in found]
        self.violations = self.broken_axioms(found, points, round, failed)
        round.tell(not_searched=in_words(failed), **self.told(), **self.about_coalitions())

    def about_coalitions(self) -> dict[str, Any]:
        return {
            "coalitions": self.coalitions,
            "violations": self.violations,
            "axioms_checked_up_to": self.asked_up_to,
        }

    def broken_axioms(
        self,
        coalitions: list[Coalition],
        points: Mapping[int, list[np.ndarray]],
        round: Round,
        failed: dict[str, Refused],
    ) -> list[dict[str, Any]]:
        """Both axioms, with what the clients measure; clients that do not answer are as content as can be."""
        number = len(self.roster)
        self.asked_up_to = largest_part(number)
        tried: dict[str, np.ndarray] = {}
        for coalition in coalitions:
            for i in coalition:
                if self.roster[i] in self.preferences:
                    parts = _parts_with(i, number, self.asked_up_to)
                    extra = [part for part in [coalition] if part not in parts]
                    rows = [even(part, number) for part in [*parts, *extra]] + points[i]
                    tried[self.roster[i]] = np.array(rows)
        losses = self._measure(tried, round, failed)

        def utility(client: int, coalition: Coalition) -> float:
            name = self.roster[client]
            if name not in losses:
                return 0.0 if client in coalition and coalition == home[client] else -1.0
            outside = [i for i in range(number) if i not in coalition]
            inside = (tried[name][:, outside] == 0).all(axis=1)
            return -float(losses[name][inside].min())

        home = {i: coalition for coalition in coalitions for i in coalition}
        full = self.asked_up_to >= number
        broken: list[Violation] = check_axioms(utility, coalitions, largest=None if full else self.asked_up_to)
        told = [{"axiom": v.axiom, "clients": [self.roster[i] for i in sorted(v.coalition)]} for v in broken]
        for violation in told[:3]:
            log.warning("%s does not hold for clients %s", violation["axiom"], ", ".join(violation["clients"]))
        return told

    def _measure(
        self, tried: Mapping[str, np.ndarray], round: Round, failed: dict[str, Refused]
    ) -> dict[str, np.ndarray]:
        """The clients' validation losses with the models for these preferences, a few at a time."""
        losses: dict[str, list[np.ndarray]] = {name: [] for name in tried}
        most = max((len(rows) for rows in tried.values()), default=0)
        for start in range(0, most, ROWS_AT_ONCE):
            due = {n: r[start : start + ROWS_AT_ONCE] for n, r in tried.items() if n in losses and len(r) > start}
            connected = {name: rows for name, rows in due.items() if name in self.federation.clients}
            answers, silent = self.ask(connected, round) if connected else ({}, {})
            failed.update(silent)
            for name in due:
                if name in answers:
                    losses[name].append(answers[name].vectors["losses"])
                else:
                    del losses[name]
        return {name: np.concatenate(values) for name, values in losses.items()}

    # Coalitions train.

    def train_coalitions(self, round: Round) -> None:
        """A round of FedAvg in each of them."""
        parts = self.parts_sent()
        kept = tuple(part for part in self.layout.parts if part not in parts)
        order = TrainOrder(round.number, upload=parts, keep=kept)
        updates = round.train(
            lambda clients: (Sent(order, self.model_of(client)) for client in clients),
            lambda client, reply: check_update(reply, self.layout, parts),
        )
        weights: dict[str, float] = {}
        for i, members in enumerate(self.coalitions):
            own = {name: updates[name] for name in members if name in updates}
            if own:
                shares = sample_weights(own.values())
                self.models[i] = self.models[i] | average([update.parts for update in own.values()], shares)
                weights |= by_name(own, shares)
        round.tell(phase="coalitions", weights=weights)

    def parts_sent(self) -> tuple[str, ...]:
        return tuple(p for p in self.layout.parts if not (p in STATISTICS and self.config.buffers == "local"))

    def model_of(self, client: str) -> Parts:
        """The coalition's model; who joined late has that of all together."""
        home = next((i for i, members in enumerate(self.coalitions) if client in members), None)
        model = self.model if home is None else self.models[home]
        return {part: model[part] for part in self.parts_sent()}

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        if not self.coalitions:
            return super().test_orders(round, clients)
        measure = round.number <= self.exploring  # not trained yet
        order = EvaluateOrder(round.number, self.kinds, self.settings.fine_tune_epochs, measure=measure)
        return (Sent(order, self.model_of(client)) for client in clients)

    def findings(self) -> list[Finding]:
        facts = {"violations": self.violations, "axioms-checked-up-to": self.asked_up_to}
        return [*super().findings(), Finding("coalitions", "groups", self.coalitions, facts=facts)]


def largest_part(number: int) -> int:
    """The largest size up to which a client can be asked about all coalitions that it is in."""
    asked = itertools.accumulate(math.comb(number - 1, size) for size in range(number))
    return max(1, sum(1 for total in asked if total <= MOST_PARTS))


def _parts_with(client: int, number: int, largest: int) -> list[Coalition]:
    others = [i for i in range(number) if i != client]
    return [frozenset({client, *rest}) for size in range(largest) for rest in itertools.combinations(others, size)]


def _only(point: np.ndarray, chosen: Coalition) -> np.ndarray:
    """The preferences without those who are no collaborators."""
    kept = np.zeros_like(point)
    kept[sorted(chosen)] = point[sorted(chosen)]
    return np.asarray(kept / kept.sum()) if kept.sum() > 0 else even(chosen, len(point))
