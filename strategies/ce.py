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
import math
from collections.abc import Mapping
from logging import WARNING
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
from coterie.strategies.fedavg import average, sample_weights
from coterie.strategies.spo import SPO
from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update, check_update
from coterie.wire.messages import TRAIN, EvaluateOrder, TrainOrder, content
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

MOST_PARTS = 64  # coalitions that one client is asked about when the axioms are checked
ROWS_AT_ONCE = 64


class CE(SPO):
    name = "ce"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exploring = max(1, math.floor(self.settings.explore * self.config.num_server_rounds))
        self.coalitions: list[list[str]] = []
        self.models: list[Parts] = []  # of each coalition
        self.violations: list[dict[str, Any]] = []
        self.asked_up_to = 0  # size of the coalitions with which the axioms were checked

    # Forming coalitions.

    def after_train(self, server_round: int, clients: list[str], timeout: float) -> None:
        if server_round != self.exploring:
            return
        self.event["not-searched"] = {}
        everybody = frozenset(range(len(self.roster)))
        points: dict[int, list[np.ndarray]] = {i: [] for i in everybody}  # what the searches found for each client
        asked: dict[Coalition, dict[int, Coalition]] = {}

        def optimal_set(client: int, remaining: Coalition) -> Coalition:
            if remaining not in asked:
                found = self.search(remaining, server_round, timeout) if len(remaining) > 1 else {}
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
        self.violations = self.broken_axioms(found, points, server_round, timeout)
        self.event |= self.told() | {
            "coalitions": self.coalitions,
            "violations": self.violations,
            "axioms-checked-up-to": self.asked_up_to,
        }

    def broken_axioms(
        self, coalitions: list[Coalition], points: Mapping[int, list[np.ndarray]], server_round: int, timeout: float
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
        losses = self._measure(tried, server_round, timeout)

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
            log(WARNING, "%s does not hold for clients %s", violation["axiom"], ", ".join(violation["clients"]))
        return told

    def _measure(self, tried: Mapping[str, np.ndarray], server_round: int, timeout: float) -> dict[str, np.ndarray]:
        """The clients' validation losses with the models for these preferences, a few at a time."""
        losses: dict[str, list[np.ndarray]] = {name: [] for name in tried}
        most = max((len(rows) for rows in tried.values()), default=0)
        for start in range(0, most, ROWS_AT_ONCE):
            self.tried = {
                n: r[start : start + ROWS_AT_ONCE] for n, r in tried.items() if n in losses and len(r) > start
            }
            connected = [name for name in self.tried if name in self.federation.clients]
            answers = self.ask(connected, server_round, timeout) if connected else {}
            for name in list(self.tried):
                if name in answers:
                    losses[name].append(answers[name].vectors["losses"])
                else:
                    del losses[name]
        return {name: np.concatenate(values) for name, values in losses.items()}

    # Coalitions train.

    def formed(self, server_round: int) -> bool:
        return bool(server_round > self.exploring)

    def parts_sent(self) -> tuple[str, ...]:
        return tuple(p for p in self.layout.parts if not (p in STATISTICS and self.config.buffers == "local"))

    def home(self, client: str) -> int | None:
        return next((i for i, members in enumerate(self.coalitions) if client in members), None)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if not self.formed(server_round):
            return super().configure_train(server_round, arrays, config, grid)
        return self._messages(TRAIN, self.sample(server_round), self.train_content, server_round)

    def train_content(self, client: str, server_round: int) -> RecordDict:
        if not self.formed(server_round):
            return super().train_content(client, server_round)
        sent = self.parts_sent()
        order = TrainOrder(
            server_round,
            ("+".join(WEIGHTS),),
            (self.config.local_epochs,),
            upload=sent,
            keep=tuple(part for part in self.layout.parts if part not in sent),
        )
        return content(order, self._packed_model(client))

    def _packed_model(self, client: str) -> ArrayRecord:
        """The coalition's model; who joined late has that of all together."""
        home = self.home(client)
        model = self.model if home is None else self.models[home]
        return pack({part: model[part] for part in self.parts_sent()})

    def check_update(self, client: str, reply: Message) -> Update:
        if not self.formed(self.event["round"]):
            return super().check_update(client, reply)
        return check_update(reply, self.layout, self.parts_sent())

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        if not self.formed(server_round):
            return super().aggregate(server_round, updates)
        weights: dict[str, float] = {}
        for i, members in enumerate(self.coalitions):
            own = {name: updates[name] for name in members if name in updates}
            if own:
                shares = sample_weights(own.values())
                self.models[i] = self.models[i] | average([update.parts for update in own.values()], shares)
                weights |= dict(zip(own, shares.tolist(), strict=True))
        return {"phase": "coalitions", "weights": weights}

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        if not self.coalitions:
            return super().evaluate_content(client, server_round)
        trained = self.formed(server_round)
        order = EvaluateOrder(server_round, self.kinds, self.settings.fine_tune_epochs, measure=not trained)
        return content(order, self._packed_model(client))

    def benefits(self) -> dict[str, Any]:
        about = {"violations": self.violations, "axioms-checked-up-to": self.asked_up_to}
        return {**super().benefits(), "coalitions": self.coalitions, **about}

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["values"] |= {
            "coalitions": self.coalitions,
            "violations": self.violations,
            "asked-up-to": self.asked_up_to,
        }
        for i, model in enumerate(self.models):
            state["arrays"] |= {f"coalition.{i}.{part}": value for part, value in model.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        values, arrays = state["values"], state["arrays"]
        self.coalitions, self.violations = values["coalitions"], values["violations"]
        self.asked_up_to = values["asked-up-to"]
        self.models = [
            {part: np.asarray(arrays[f"coalition.{i}.{part}"]) for part in self.layout.parts}
            for i in range(len(self.coalitions))
        ]


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
