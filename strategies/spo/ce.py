"""Collaboration equilibrium (Cui et al. 2022): clients form coalitions that nobody has reason to leave.

The first rounds are SPO: a hypernetwork of the Pareto front, then each client's collaborators. The benefit graph has an
edge from each collaborator to the client it helps; strongly connected components without an edge from outside are
coalitions. The others are asked again whom they would choose among themselves (games/equilibrium.py). From then on it is
SPO within each coalition: preferences are drawn among its members, and after the last round each member's own model is
searched among theirs. If all are in one coalition, that is SPO.

Whether the coalitions are an equilibrium is checked with the models that clients get. U_i of the coalition that i is in is
minus the validation loss of its own model; U_i(C) of another is minus the least loss of the models for equal preferences among
any part of C with i in it, and of those that the choice was among, each as i would use it.
"""

import itertools
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.games.equilibrium import (
    Coalition,
    Violation,
    check_axioms,
    collaboration_equilibrium,
)
from coterie.games.preferences import even
from coterie.strategies.findings import Finding
from coterie.strategies.rounds import Round, exactly, in_words
from coterie.strategies.spo import SPO
from coterie.strategies.spo.settings import Choice
from coterie.wire.errors import Refused

log = logging.getLogger(__name__)

MOST_PARTS = 64  # coalitions that one client is asked about when the axioms are checked
MOST_TUNED = 16  # if it has to fine-tune a model for each
ROWS_AT_ONCE = 64


class CE(SPO):
    name = "ce"
    saved = ("coalitions", "violations", "asked_up_to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exploring = max(1, math.floor(exactly(self.settings.explore) * self.config.num_server_rounds))
        self.coalitions: list[list[str]] = []
        self.violations: list[dict[str, Any]] = []
        self.asked_up_to = 0  # size of the coalitions with which the axioms were checked

    def round(self, round: Round) -> None:
        self.learn_front(round)
        failed: dict[str, Refused] = {}
        if round.number == self.exploring:
            self.form(round, failed)
        if round.is_last:
            found, failed = self.choose(self.homes(), round, failed)
            self.take(found)
            self.violations = self.broken_axioms(round, failed)
        if round.is_last or round.number == self.exploring:
            round.tell(not_searched=in_words(failed), **self.told(), **self.about_coalitions())

    def phase(self, server_round: int) -> str:
        return "hypernetwork" if server_round <= self.exploring else "coalitions"

    def groups(self) -> list[list[str]]:
        return self.coalitions or super().groups()

    def homes(self) -> dict[str, Coalition]:
        """The coalition of every client, as places in d."""
        sets = [frozenset(self.roster.index(name) for name in members) for members in self.coalitions]
        return {self.roster[i]: members for members in sets for i in sorted(members)}

    def draw(self, server_round: int, clients: list[str]) -> np.ndarray:
        """Each ray is one coalition's, in turn; part of a Dirichlet vector is a Dirichlet vector, too. Who is alone has its own
        model and needs none."""
        rays = super().draw(server_round, clients)
        here = {self.roster.index(name) for name in clients}
        homes = [home for home in dict.fromkeys(self.homes().values()) if len(home & here) > 1]
        if not homes or len(homes[0]) == len(self.roster):
            return rays
        for k, ray in enumerate(rays):
            rays[k] = _only(ray, homes[(server_round * len(rays) + k) % len(homes)] & here)
        return rays

    # Forming coalitions.

    def form(self, round: Round, failed: dict[str, Refused]) -> None:
        asked: dict[Coalition, dict[int, Choice]] = {}
        latest: dict[str, Choice] = {}

        def optimal_set(client: int, remaining: Coalition) -> Coalition:
            if remaining not in asked:
                found, more = self.choose({self.roster[i]: remaining for i in sorted(remaining)}, round, failed)
                failed.update(more)
                latest.update(found)
                asked[remaining] = {self.roster.index(name): choice for name, choice in found.items()}
            if client not in asked[remaining]:
                return frozenset({client})  # of whom nothing is known: alone
            return self.needed(self.roster[client], asked[remaining][client].point)

        found = collaboration_equilibrium(optimal_set, len(self.roster))
        self.coalitions = [[self.roster[i] for i in sorted(coalition)] for coalition in found]
        shared = {c[0]: self.trained_by(c) or self.together[self.roster[0]] for c in self.coalitions if len(c) > 1}
        self.together, homes = shared, self.homes()
        self.take({name: Choice(_only(choice.point, homes[name]), choice.epochs) for name, choice in latest.items()})

    def about_coalitions(self) -> dict[str, Any]:
        return {
            "coalitions": self.coalitions,
            "violations": self.violations,
            "axioms_checked_up_to": self.asked_up_to,
        }

    def broken_axioms(self, round: Round, failed: dict[str, Refused]) -> list[dict[str, Any]]:
        """Both axioms, with what the clients measure; clients that do not answer are as content as can be."""
        number, homes = len(self.roster), self.homes()
        self.asked_up_to = largest_part(number, MOST_TUNED if self.settings.fine_tune_epochs else MOST_PARTS)
        tried: dict[str, np.ndarray] = {}
        for name, point in self.preferences.items():
            parts = _parts_with(self.roster.index(name), number, self.asked_up_to)
            others = [even(part, number) for part in dict.fromkeys([*parts, homes[name]])]
            tried[name] = np.array([point, *[other for other in others if not np.array_equal(other, point)]])
        losses = self._measure(tried, round, failed)

        def utility(client: int, coalition: Coalition) -> float:
            name = self.roster[client]
            at_home = coalition == homes[name]
            if name not in losses:
                return 0.0 if at_home else -1.0
            if at_home:
                return -float(losses[name][0][int(self.epochs[name] > 0)])
            outside = [i for i in range(number) if i not in coalition]
            inside = (tried[name][:, outside] == 0).all(axis=1)
            return -float(losses[name][inside].min())

        full = self.asked_up_to >= number
        sets = list(dict.fromkeys(homes.values()))
        broken: list[Violation] = check_axioms(utility, sets, largest=None if full else self.asked_up_to)
        told = [{"axiom": v.axiom, "clients": [self.roster[i] for i in sorted(v.coalition)]} for v in broken]
        for violation in told[:3]:
            log.warning("%s does not hold for clients %s", violation["axiom"], ", ".join(violation["clients"]))
        return told

    def _measure(
        self, tried: Mapping[str, np.ndarray], round: Round, failed: dict[str, Refused]
    ) -> dict[str, np.ndarray]:
        """The clients' validation losses with the models for these preferences, as they are and fine-tuned, (models, 2); a few
        at a time."""
        losses: dict[str, list[np.ndarray]] = {name: [] for name in tried}
        most = max((len(rows) for rows in tried.values()), default=0)
        for start in range(0, most, ROWS_AT_ONCE):
            due = {n: r[start : start + ROWS_AT_ONCE] for n, r in tried.items() if n in losses and len(r) > start}
            connected = {name: rows for name, rows in due.items() if name in self.federation.clients}
            direct = {name: self.direct(name) for name in connected}
            answers, silent = self.judge(connected, direct, round) if connected else ({}, {})
            failed.update(silent)
            for name in due:
                if name in answers:
                    losses[name].append(answers[name].losses)
                else:
                    del losses[name]
        return {name: np.concatenate(values) for name, values in losses.items()}

    def findings(self) -> list[Finding]:
        facts = {"violations": self.violations, "axioms-checked-up-to": self.asked_up_to}
        return [*super().findings(), Finding("coalitions", "groups", self.coalitions, facts=facts)]


def largest_part(number: int, most: int) -> int:
    """The largest size up to which a client can be asked about all coalitions that it is in, `most` of them."""
    asked = itertools.accumulate(math.comb(number - 1, size) for size in range(number))
    return max(1, sum(1 for total in asked if total <= most))


def _parts_with(client: int, number: int, largest: int) -> list[Coalition]:
    others = [i for i in range(number) if i != client]
    return [frozenset({client, *rest}) for size in range(largest) for rest in itertools.combinations(others, size)]


def _only(point: np.ndarray, members: Coalition) -> np.ndarray:
    """The preferences with weight for these only."""
    kept = np.zeros_like(point)
    kept[sorted(members)] = point[sorted(members)]
    return np.asarray(kept / kept.sum()) if kept.sum() > 0 else even(members, len(point))
