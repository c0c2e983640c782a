"""pFedOCF: overlapping coalitions. A client trains in every coalition that helps it and is not hurt by it, and mixes.

    rounds 1 .. warmup   every client trains its own model and uploads it
    then, once           the game: a client joins coalitions that lower its error and raise no member's (games/formation.py)
    the other rounds     each coalition trains its model by FedAvg, a client that is in several trains each; the own model stays
                         with its client
    personal model       sum of own and coalition models, weights >= 0 and of sum 1 with the least error for the client

The error is the loss on the client's validation samples, which it measures on models that it is sent. For linear regression
nothing has to be measured: clients send least squares estimates and how many samples they come from, errors and weights follow
in closed form (games/overlap.py), and one round is all.
"""

from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from coterie.games.formation import Coalition, Formation
from coterie.games.overlap import coalitions_of, form
from coterie.strategies.base import Method
from coterie.strategies.coalition_game import MIXED, Nearest, OCFSettings, Played, estimated_game, in_words, play
from coterie.strategies.fedavg import average, sample_weights
from coterie.strategies.federation import name_order
from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update, check_errors, check_mixture, check_update, rows_of
from coterie.wire.errors import ConfigError, Refused, RunFailed
from coterie.wire.messages import (
    EVALUATE,
    EVALUATE_MIX,
    OTHERS,
    QUERY_ERRORS,
    TRAIN_COALITIONS,
    CoalitionOrder,
    EvaluateOrder,
    MixOrder,
    content,
)
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common import log


class PFedOCF(Method):
    name = "pfedocf"
    section = "ocf"
    settings_class = OCFSettings
    train_type = TRAIN_COALITIONS
    kinds = ("personal",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.closed = self._is_closed()
        self.evaluate_type = EVALUATE if self.closed else EVALUATE_MIX
        self.own: dict[str, Parts] = {}  # the own model that each client uploaded last
        self.samples: dict[str, int] = {}
        self.alone: dict[str, float] = {}  # error of its own model
        self.coalitions: list[list[str]] = []  # those with a model of their own, by names
        self.models: list[Parts] = []
        self.mixing: dict[str, list[float]] = {}  # own model, then the client's coalitions
        self.lost: set[str] = set()  # clients that may have lost their own model
        self.trained: dict[str, int] = {}  # client -> round of its last good answer

    def _is_closed(self) -> bool:
        linear = set(self.layout.parts) == {"classifier"} and self.layout.classifier_shape[0] == 1
        if self.settings.game == "closed" and not linear:
            raise ConfigError(
                f"ocf.game = 'closed': is for linear regression, not for model {self.config.model!r} on task "
                f"{self.config.task!r}; set it to 'auto' or 'measured'"
            )
        generated = self.config.task in ("linear", "synthetic-linear")  # centred features of variance 1, no intercept
        return self.settings.game == "closed" or (self.settings.game == "auto" and linear and generated)

    def begin(self) -> None:
        hellos = self.federation.hellos
        if self.config.buffers == "local" and set(self.layout.parts) & set(STATISTICS):
            raise ConfigError("buffers = 'local': pfedocf mixes whole models; set it to 'average' or 'drop'")
        if not self.closed and self.settings.warmup > self.num_rounds:
            raise ConfigError(
                f"ocf.warmup = {self.settings.warmup}: the game comes after it, and there are {self.num_rounds} rounds; "
                "lower it, or raise num-server-rounds"
            )
        if self.closed:
            features = self.layout.classifier_shape[1]
            few = [name for name in self.federation.clients if hellos[name].num_train <= features + 1]
            if few:
                raise ConfigError(
                    f"client {few[0]!r} has {hellos[few[0]].num_train} training samples for {features} features: the expected "
                    f"error of least squares is finite only with at least {features + 2}; give it more, lower test-fraction and "
                    "validation-fraction, or set ocf.game to 'measured'"
                )
            log(INFO, "closed form: estimates are final after one round, num-server-rounds does not matter")
            self.num_rounds = 1
        elif self.settings.mechanism in MIXED and not any(hello.num_validation for hello in hellos.values()):
            raise RunFailed(
                f"validation-fraction = {self.config.validation_fraction:g}: no client has a validation sample, and pfedocf "
                "measures errors on them; raise it, or take fewer clients"
            )

    # Training: the own model, then those of the coalitions.

    def uploads(self) -> tuple[str, ...]:
        return tuple(self.layout.parts)

    def before_game(self, server_round: int) -> bool:
        return self.closed or server_round <= self.settings.warmup

    def sample(self, server_round: int) -> list[str]:
        """Everybody, as long as the game is not played."""
        return self.federation.clients if self.before_game(server_round) else super().sample(server_round)

    def of(self, client: str) -> list[int]:
        """The coalitions that this client is in."""
        return [i for i, members in enumerate(self.coalitions) if client in members]

    def train_content(self, client: str, server_round: int) -> RecordDict:
        first = self.before_game(server_round)
        rows = [] if first else self.of(client)
        again = self.own[client] if client in self.lost and client in self.own else None  # in case it lost its own
        order = CoalitionOrder(
            server_round,
            self.config.local_epochs,
            len(rows),
            upload_own=first,
            estimate=self.closed,
            continues=self.trained.get(client, 0),
        )
        return content(order, pack(again) if again else None, **self.stacked(rows))

    def stacked(self, rows: Sequence[int]) -> dict[str, ArrayRecord]:
        """The models of these coalitions as they travel."""
        return {OTHERS: stack([self.models[i] for i in rows])} if rows else {}

    def check_update(self, client: str, reply: Message) -> Update:
        first = self.before_game(self.event["round"])
        rows = 1 if first else len(self.of(client))
        update = check_update(reply, rows_of(self.layout, rows), self.uploads() if rows else ())
        features = self.layout.classifier_shape[1]
        if self.closed and update.num_samples <= features + 1:
            raise Refused(f"num-samples: {update.num_samples} for an estimate of {features} coefficients")
        return update

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(server_round, replies)
        self.lost |= set(self.event["left-out"])
        return result

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        for client, update in updates.items():
            self.samples[client] = update.num_samples
            self.trained[client] = server_round
        self.lost -= set(updates)
        if self.before_game(server_round):
            for client, update in updates.items():
                self.own[client] = {part: rows[0] for part, rows in update.parts.items()}
                if "validation-loss" in update.metrics:
                    self.alone[client] = update.metrics["validation-loss"]
            return self.play_closed(updates) if self.closed else {}
        for i, members in enumerate(self.coalitions):
            trained = {client: updates[client] for client in members if client in updates}
            rows = [
                {part: rows[self.of(client).index(i)] for part, rows in update.parts.items()}
                for client, update in trained.items()
            ]
            if rows:
                self.models[i] = self.models[i] | average(rows, sample_weights(trained.values()))
        return {}

    # The game.

    def play_closed(self, updates: Mapping[str, Update]) -> dict[str, Any]:
        clients = sorted(updates, key=name_order)
        features = self.layout.classifier_shape[1]
        counts = np.array([updates[client].num_samples for client in clients], dtype=float)
        losses = np.array([max(updates[client].metrics.get("loss", 0.0), 0.0) for client in clients])
        thetas = np.stack([self.own[client]["classifier"][:features].astype(np.float64) for client in clients])
        game = estimated_game(thetas, counts, losses)
        mechanism = self.settings.mechanism
        found = self.given_coalitions(len(clients))
        if found is None:
            found = form(game, costs=self.settings.cost * counts, disjoint=mechanism == "disjoint")
        self.settle(clients, found)
        for i, client in enumerate(clients):
            mine = coalitions_of(i, [frozenset(map(clients.index, members)) for members in self.coalitions])
            weights = game.mixing_weights(i, mine) if mechanism in MIXED else np.eye(len(mine))[-1]
            self.mixing[client] = weights.tolist()
        local = dict(zip(clients, np.round(game.local_errors, 6).tolist(), strict=True))
        return {"expected-error-alone": local, **self.describe(clients, found)}

    def given_coalitions(self, clients: int) -> Formation | None:
        """For mechanisms without a game."""
        if self.settings.mechanism in ("overlapping", "disjoint"):
            return None
        everybody = frozenset(range(clients))
        return Formation([everybody] if self.settings.mechanism.startswith("grand") else [])

    def after_train(self, server_round: int, clients: list[str], timeout: float) -> None:
        if self.closed or server_round != self.settings.warmup:
            return
        names = sorted(self.own, key=name_order)
        if (given := self.given_coalitions(len(names))) is not None:
            self.settle(names, given)
            self.event |= self.describe(names, given)
            return
        played = self.play_measured(names, server_round, timeout)
        self.settle(names, played.formation)
        for i, reason in played.left.items():
            log(WARNING, "round %d: client %s leaves the game: %s", server_round, names[i], reason)
        self.event |= self.describe(names, played.formation) | {
            "exchanges": played.exchanges,
            "models-sent": {names[i]: number for i, number in played.asked.items()},
            "left-game": {names[i]: reason for i, reason in played.left.items()},
        }

    def play_measured(self, names: list[str], server_round: int, timeout: float) -> Played:
        """The clients with validation samples play; their answers come over the wire."""
        counts = np.array([self.samples[name] for name in names], dtype=float)
        vectors = np.stack([self.vector(name) for name in names])
        nearest = Nearest(vectors, np.maximum(counts, 1e-9), self.settings.candidates or len(names))
        alone = {i: self.alone[name] for i, name in enumerate(names) if name in self.alone}

        def ask(wanted: Mapping[int, list[Coalition]]) -> tuple[dict[int, Sequence[float]], dict[int, str]]:
            told = {names[i]: [[names[m] for m in c] for c in coalitions] for i, coalitions in wanted.items()}
            answers, failed = self.ask(told, server_round, timeout)
            return {names.index(n): e for n, e in answers.items()}, {names.index(n): r for n, r in failed.items()}

        prices = self.settings.cost * counts
        return play(alone, ask, prices, nearest, disjoint=self.settings.mechanism == "disjoint")

    def ask(
        self, wanted: Mapping[str, Sequence[Sequence[str]]], server_round: int, timeout: float
    ) -> tuple[dict[str, Sequence[float]], dict[str, str]]:
        """Every client's errors under the models of these coalitions, and why some clients gave none."""
        gone = {name: "not connected" for name in wanted if name not in self.federation.clients}
        present = [name for name in wanted if name not in gone]
        most = max(len(coalitions) for coalitions in wanted.values())
        size = most * sum(part.nbytes for part in self.layout.parts.values())

        def question(client: str, server_round: int) -> RecordDict:
            models = [self.mean(members) for members in wanted[client]]
            return content(MixOrder(server_round, len(models)), **{OTHERS: stack(models)})

        replies, silent, sizes = self._in_waves(QUERY_ERRORS, present, question, server_round, size, timeout)
        answers, refused = self._sort_out(replies, lambda client, reply: check_errors(reply, len(wanted[client])))
        for client, number in sizes.items():
            self.event["bytes-down"][client] = self.event["bytes-down"].get(client, 0) + number
        return {name: errors.tolist() for name, errors in answers.items()}, gone | silent | refused

    def mean(self, members: Sequence[str]) -> Parts:
        """The model of a coalition: the mean of its members' own models by their samples."""
        ordered = sorted(members, key=name_order)
        weights = np.array([self.samples[member] for member in ordered], dtype=float)
        return average([self.own[member] for member in ordered], weights if weights.sum() else np.ones(len(ordered)))

    def settle(self, names: Sequence[str], found: Formation) -> None:
        """Coalitions of more than one get models; who is alone has its own."""
        grand = self.settings.mechanism.startswith("grand")
        chosen = [sorted((names[i] for i in c), key=name_order) for c in found.coalitions if len(c) > 1 or grand]
        self.coalitions = sorted(chosen, key=lambda members: [name_order(member) for member in members])
        self.models = [self.mean(members) for members in self.coalitions]

    def describe(self, names: Sequence[str], found: Formation) -> dict[str, Any]:
        return {"coalitions": self.named_coalitions(), **in_words(names, found)}

    # Tests, and what the server keeps.

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        if self.closed:
            return content(EvaluateOrder(server_round, self.kinds), pack(self.personal(client)))
        rows = self.of(client)
        order = MixOrder(server_round, len(rows), mixed=self.settings.mechanism in MIXED)
        return content(order, **self.stacked(rows))

    def personal(self, client: str) -> Parts:
        """Closed form: the mixture, made by the server, which has all that is mixed."""
        if client not in self.own:
            return self.model
        models = [self.own[client], *[self.models[i] for i in self.of(client)]]
        return average(models, np.array(self.mixing[client]))

    def check_test(self, client: str, reply: Message) -> dict[str, float]:
        if self.closed:
            return super().check_test(client, reply)
        tested, weights = check_mixture(reply, self.kinds, 1 + len(self.of(client)))
        self.mixing[client] = weights.tolist()
        return tested

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        record = super().aggregate_evaluate(server_round, replies)
        self.event["mixing"] = self.shares()
        return record

    def vector(self, client: str) -> np.ndarray:
        """How far training moved a client's own model, as one vector; for estimates, the estimate."""
        start = {part: 0.0 for part in WEIGHTS} if self.closed else self.layout.parts
        return np.concatenate(
            [(self.own[client][p] - start[p]).astype(float) for p in WEIGHTS if p in self.layout.parts]
        )

    def matrices(self) -> dict[str, tuple[list[str], np.ndarray]]:
        """Cosines between the clients' models."""
        clients = sorted(self.own, key=name_order)
        vectors = np.stack([self.vector(client) for client in clients])
        lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        return {"similarity": (clients, vectors @ vectors.T / np.outer(lengths, lengths))}

    def grouping(self) -> dict[str, Any]:
        return {
            "coalitions": self.named_coalitions(),
            "mixing": self.shares(),
            "vectors": {client: self.vector(client) for client in sorted(self.own, key=name_order)},
        }

    def named_coalitions(self) -> dict[str, list[str]]:
        return {str(i): members for i, members in enumerate(self.coalitions)}

    def shares(self) -> dict[str, dict[str, float]]:
        """What each client's personal model is mixed of."""
        return {
            client: dict(zip(["own", *map(str, self.of(client))], np.round(weights, 6).tolist(), strict=True))
            for client, weights in self.mixing.items()
            if len(weights) == 1 + len(self.of(client))
        }

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        clients = list(self.own)
        state["values"] = {
            "clients": clients,
            "samples": self.samples,
            "alone": self.alone,
            "coalitions": self.coalitions,
            "mixing": self.mixing,
            "lost": sorted(self.lost),
            "trained": self.trained,
        }
        for part in self.layout.parts:
            if clients:
                state["arrays"][f"own.{part}"] = np.stack([self.own[client][part] for client in clients])
            if self.models:
                state["arrays"][f"coalition.{part}"] = np.stack([model[part] for model in self.models])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        values, arrays = state["values"], state["arrays"]
        self.samples, self.alone, self.coalitions = values["samples"], values["alone"], values["coalitions"]
        self.mixing, self.lost, self.trained = values["mixing"], set(values["lost"]), values["trained"]
        parts = self.layout.parts
        for i, client in enumerate(values["clients"]):
            self.own[client] = {part: np.asarray(arrays[f"own.{part}"][i]) for part in parts}
        self.models = [
            {part: np.asarray(arrays[f"coalition.{part}"][i]) for part in parts} for i in range(len(self.coalitions))
        ]


def stack(models: Sequence[Parts]) -> ArrayRecord:
    return pack({part: np.stack([model[part] for model in models]) for part in models[0]})
