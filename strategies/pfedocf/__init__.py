"""pFedOCF: overlapping coalitions. A client trains in every coalition that helps it and is not hurt by it, and mixes.

    rounds 1 .. trial-rounds   all clients train one model together by FedAvg, and every client its own
    then, once                 the game: a client joins coalitions that lower its error and raise no member's (games/formation.py)
    the other rounds           each coalition trains its model by FedAvg, a client that is in several trains each; the own model
                               stays with its client
    personal model             sum of own and coalition models, weights >= 0 and of sum 1 with the least error for the client

The error is the loss on the client's validation samples, which it measures on models that it is sent. Means of models that were
trained apart say little about what a coalition comes to. So the members' last round of training together is taken: from the
common start g, client k came to u_k, and client i is sent

    sum_{k in C} w_k u_k + (u_i - g)        the last round as C alone would have trained it, and a step of i's own from there

For linear regression nothing has to be measured: clients send least squares estimates and how many samples they come from,
errors and weights follow in closed form (games/overlap.py), and one round is all.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message

from coterie.games.formation import Coalition, Formation
from coterie.games.overlap import coalitions_of, form
from coterie.strategies.fedavg import sample_weights
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.strategies.method import Method
from coterie.strategies.pfedocf import client as client_half
from coterie.strategies.pfedocf.game import (
    MIXED,
    Answers,
    Nearest,
    OCFSettings,
    Played,
    coalitions_in_words,
    estimated_game,
    in_words,
    play,
    warn_of_few,
)
from coterie.strategies.pfedocf.orders import (
    CoalitionOrder,
    ErrorsOrder,
    MixOrder,
    check_errors,
    check_mixture,
    groups_of,
)
from coterie.strategies.rounds import Round, by_name
from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.tasks.parts import average, stacked
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update, check_update, rows_of
from coterie.wire.errors import Absent, ConfigError, Refused, RunFailed
from coterie.wire.messages import EvaluateOrder, Sent

log = logging.getLogger(__name__)


class PFedOCF(Method):
    name = "pfedocf"
    section = "ocf"
    Settings = OCFSettings
    private = ("dp-sgd", "weights")
    kinds = ("personal",)
    saved = ("own", "samples", "trial", "coalitions", "models", "mixing", "lost", "trained")
    version = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.closed = self._is_closed()
        self.own: dict[str, Parts] = {}  # the own model that each client uploaded last
        self.samples: dict[str, int] = {}
        self.trial: dict[str, Parts] = {}  # before the game: what each client made of the model that all train together
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
        if self.closed:
            features = self.layout.classifier_shape[1]
            few = [name for name in self.federation.clients if hellos[name].num_train <= features + 1]
            why = (
                f"client {few[0]!r} has {hellos[few[0]].num_train} training samples for {features} features: the expected "
                f"error of least squares is finite only with at least {features + 2}; give it more, lower test-fraction and "
                "validation-fraction, or set ocf.game to 'measured'"
            ) if few else ""  # fmt: skip
            number = len(self.federation.clients)
            if number - len(few) < self.federation.needed(number):
                raise ConfigError(why)
            if few:
                log.warning("%s; it is left out", why)
            log.info("closed form: estimates are final after one round, num-server-rounds does not matter")
            self.num_rounds = 1
        elif self.settings.mechanism in MIXED and not any(hello.num_validation for hello in hellos.values()):
            raise RunFailed(
                f"validation-fraction = {self.config.validation_fraction:g}: no client has a validation sample, and pfedocf "
                "measures errors on them; raise it, or take fewer clients"
            )
        elif self.settings.mechanism in MIXED and self.last_round == 0:
            warn_of_few({name: hellos[name].num_validation for name in self.federation.clients})

    def round(self, round: Round) -> None:
        first = self.before_game(round.number)
        if first and self.tries_together():
            self.coalitions, self.models = [self.federation.clients], self.models or [dict(self.model)]
        updates = round.train(lambda clients: (self.train_order(client, round) for client in clients))
        for client, update in updates.items():
            self.samples[client] = update.num_samples
            self.trained[client] = round.number
        self.lost = (self.lost | round.missed) - set(updates)
        if first:
            for client, update in updates.items():
                self.own[client] = {part: rows[0] for part, rows in update.parts.items()}
                if self.of(client):
                    self.trial[client] = {part: rows[1] for part, rows in update.parts.items()}
        if self.closed:
            return self.play_closed(round, updates)
        start = self.models[0] if first and self.models else {}
        self.average_coalitions(updates, own_rows=int(first))
        if round.number == self.trial_rounds():
            self.play(round, start)
            self.trial = {}

    # Training: the own model, then those of the coalitions.

    def before_game(self, server_round: int) -> bool:
        return self.closed or server_round <= self.trial_rounds()

    def trial_rounds(self) -> int:
        return int(min(self.settings.trial_rounds, self.num_rounds))

    def tries_together(self) -> bool:
        """Whether all clients train a model together before the game."""
        return not self.closed and self.settings.mechanism != "local"

    def sample(self, server_round: int) -> list[str]:
        """Everybody, as long as the game is not played."""
        return self.federation.clients if self.before_game(server_round) else super().sample(server_round)

    def of(self, client: str) -> list[int]:
        """The coalitions that this client is in."""
        return [i for i, members in enumerate(self.coalitions) if client in members]

    def train_order(self, client: str, round: Round) -> Sent:
        first = self.before_game(round.number)
        rows = self.of(client)
        order = CoalitionOrder(
            round.number,
            len(rows),
            upload_own=first,
            estimate=self.closed,
            continues=self.trained.get(client, 0),
        )
        again = self.own.get(client) if client in self.lost | round.missed else None  # in case it lost its own
        return Sent(order, again, self.stacked(rows))

    def stacked(self, rows: Sequence[int]) -> Parts | None:
        """The models of these coalitions as they travel."""
        return stacked([self.models[i] for i in rows]) if rows else None

    def check_update(self, client: str, reply: Message) -> Update:
        rows = self.before_game(self.last_round + 1) + len(self.of(client))
        update = check_update(reply, rows_of(self.layout, rows), self.uploads() if rows else ())
        features = self.layout.classifier_shape[1]
        if self.closed and update.num_samples <= features + 1:
            raise Refused(f"num-samples: {update.num_samples} for an estimate of {features} coefficients")
        return update

    def average_coalitions(self, updates: Mapping[str, Update], own_rows: int) -> None:
        """Each coalition's model by FedAvg. Before the models of its coalitions a client sends `own_rows` of its own."""
        for i, members in enumerate(self.coalitions):
            trained = {client: updates[client] for client in members if client in updates}
            rows = [
                {part: rows[own_rows + self.of(client).index(i)] for part, rows in update.parts.items()}
                for client, update in trained.items()
            ]
            if rows:
                self.models[i] = self.models[i] | average(rows, sample_weights(trained.values()))

    # The game.

    def play_closed(self, round: Round, updates: Mapping[str, Update]) -> None:
        """From least squares estimates: errors and weights follow without asking anybody."""
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
        round.tell(expected_error_alone=by_name(clients, np.round(game.local_errors, 6)))
        self.describe(round, clients, found)

    def given_coalitions(self, clients: int) -> Formation | None:
        """For mechanisms without a game."""
        if self.settings.mechanism in ("overlapping", "disjoint"):
            return None
        everybody = frozenset(range(clients))
        return Formation([everybody] if self.settings.mechanism.startswith("grand") else [])

    def play(self, round: Round, start: Parts) -> None:
        """With errors that the clients measure; `start` is what their last models trained together began with."""
        names = sorted(self.trial or self.own, key=name_order)
        if (given := self.given_coalitions(len(names))) is not None:
            self.settle(names, given)
            return self.describe(round, names, given)
        played = self.play_measured(names, round, start)
        self.settle(names, played.formation)
        for i, error in played.left.items():
            log.warning("round %d: client %s leaves the game: %s", round.number, names[i], error)
        self.describe(round, names, played.formation)
        round.tell(
            exchanges=played.exchanges,
            models_sent={names[i]: number for i, number in played.asked.items()},
            left_game={names[i]: str(error) for i, error in played.left.items()},
        )

    def play_measured(self, names: list[str], round: Round, start: Parts) -> Played:
        """The clients with validation samples play; their answers come over the wire."""
        counts = np.array([self.samples[name] for name in names], dtype=float)
        vectors = np.stack([self.vector(self.trial[name], start) for name in names])
        nearest = Nearest(vectors, np.maximum(counts, 1e-9), self.settings.candidates or len(names))
        hellos = self.federation.hellos
        players = [i for i, name in enumerate(names) if name in hellos and hellos[name].num_validation]

        def ask(wanted: Mapping[int, list[Coalition]]) -> tuple[Answers, dict[int, Refused]]:
            told = {names[i]: [[names[m] for m in c] for c in coalitions] for i, coalitions in wanted.items()}
            answers, failed = self.ask(told, round, start)
            return {names.index(n): e for n, e in answers.items()}, {names.index(n): r for n, r in failed.items()}

        prices = self.settings.cost * counts
        return play(players, ask, prices, nearest, disjoint=self.settings.mechanism == "disjoint")

    def ask(
        self, wanted: Mapping[str, Sequence[Sequence[str]]], round: Round, start: Parts
    ) -> tuple[dict[str, np.ndarray], dict[str, Refused]]:
        """Every client's losses under the models of these coalitions, and why some clients gave none. The question about a
        client alone is about its own model, which it has; it comes before the others."""
        present = [name for name in wanted if name in self.federation.clients]
        gone: dict[str, Refused] = {name: Absent("not connected") for name in wanted if name not in present}
        most = max(len(coalitions) for coalitions in wanted.values())

        def questions(clients: list[str]) -> Iterable[Sent]:
            for client in clients:
                models = [self.tried(client, members, start) for members in wanted[client] if len(members) > 1]
                order = ErrorsOrder(round.number, len(models), own=len(models) < len(wanted[client]))
                yield Sent(order, others=stacked(models) if models else None)

        def check(client: str, reply: Message) -> np.ndarray:
            groups = groups_of(self.federation.hellos[client].num_validation)
            return check_errors(reply, len(wanted[client]), groups)

        size = most * sum(part.nbytes for part in self.layout.parts.values())
        answers, failed = round.ask(present, questions, check, size=size)
        return answers, gone | failed

    def tried(self, client: str, members: Sequence[str], start: Parts) -> Parts:
        """What the client judges a coalition by: its model, and from there the client's own last step."""
        mean, last = self.mean(members), self.trial[client]
        return mean | {part: mean[part] + (last[part] - start[part]) for part in WEIGHTS if part in mean}

    def mean(self, members: Sequence[str]) -> Parts:
        """The model of a coalition: the mean of what its members trained, by their samples."""
        ordered = sorted(members, key=name_order)
        weights = np.array([self.samples[member] for member in ordered], dtype=float)
        models = self.trial or self.own
        return average([models[member] for member in ordered], weights if weights.sum() else np.ones(len(ordered)))

    def settle(self, names: Sequence[str], found: Formation) -> None:
        """Coalitions of more than one get models; who is alone has its own."""
        grand = self.settings.mechanism.startswith("grand")
        chosen = [sorted((names[i] for i in c), key=name_order) for c in found.coalitions if len(c) > 1 or grand]
        self.coalitions = sorted(chosen, key=lambda members: [name_order(member) for member in members])
        self.models = [self.mean(members) for members in self.coalitions]

    def describe(self, round: Round, names: Sequence[str], found: Formation) -> None:
        round.tell(coalitions=self.named_coalitions(), **in_words(names, found))
        log.info("round %d: %s", round.number, self.summed_up())

    def summed_up(self) -> str:
        return coalitions_in_words(sorted(self.own, key=name_order), self.coalitions)

    # What the clients do, how they are tested, what was found out.

    train = staticmethod(client_half.train)
    errors = staticmethod(client_half.errors)
    mix = staticmethod(client_half.mix)

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        for client in clients:
            rows = self.of(client)
            if self.closed:
                yield Sent(EvaluateOrder(round.number, self.kinds), self.personal(client))
            else:
                order = MixOrder(round.number, len(rows), mixed=self.settings.mechanism in MIXED)
                yield Sent(order, others=self.stacked(rows))

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

    def tested(self, round: Round) -> None:
        round.tell(mixing=self.shares())

    def vector(self, model: Parts, start: Parts) -> np.ndarray:
        """How far training moved a model, as one vector; for estimates, the estimate."""
        moved = [model[part] if self.closed else model[part] - start[part] for part in WEIGHTS if part in model]
        return np.concatenate(moved).astype(float)

    def findings(self) -> list[Finding]:
        """Coalitions, what personal models are mixed of, cosines between the clients' models, and where these stand."""
        clients = sorted(self.own, key=name_order)
        vectors = np.stack([self.vector(self.own[client], self.layout.parts) for client in clients])
        lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        places = dict(zip(clients, plane(vectors).tolist(), strict=True))
        return [
            Finding("coalitions", "groups", self.coalitions, facts={"in-words": self.summed_up()}),
            Finding("mixing", "shares", self.shares()),
            Finding.pairs("similarity", clients, vectors @ vectors.T / np.outer(lengths, lengths)),
            Finding("places", "places", places),
        ]

    def named_coalitions(self) -> dict[str, list[str]]:
        return {str(i): members for i, members in enumerate(self.coalitions)}

    def shares(self) -> dict[str, dict[str, float]]:
        """What each client's personal model is mixed of."""
        return {
            client: dict(zip(["own", *map(str, self.of(client))], np.round(weights, 6).tolist(), strict=True))
            for client, weights in self.mixing.items()
            if len(weights) == 1 + len(self.of(client))
        }


def plane(vectors: np.ndarray) -> np.ndarray:
    """The plane in which the vectors differ most (principal components), (vectors, 2)."""
    centred = vectors - vectors.mean(axis=0)
    products = centred @ centred.T
    values, directions = np.linalg.eigh(products)
    largest = np.argsort(values)[::-1][:2]
    found = directions[:, largest] * np.sqrt(np.maximum(values[largest], 0.0))
    return np.hstack([found, np.zeros((len(vectors), 2 - found.shape[1]))])
