"""SPO (Cui et al. 2022): a hypernetwork learns the Pareto front of all clients, and each client finds its place on it.

A model for every preference: theta(d) minimises sum_i d_i L_i, for d on the simplex over clients. In every round the server
draws preferences, sends the hypernetwork's models for them, all in one message, and gets from each client the gradients of
its own loss:

    G(d) = sum_i d_i grad L_i(theta(d))          theta(d) <- theta(d) - eta G(d), by the hypernetwork (tasks/hypernetwork.py)

At two points the front is trained directly, round by round: for a client alone by its own training, as `local` does, and for
all alike by FedAvg. There a hypernetwork, which has learned from everybody, would only come near it.

After the last round the server searches, for each client, the preferences d* whose model has the least loss on the client's
validation samples (games/preferences.py). The client then judges the models for these, for itself alone and for all alike as
it would use them, fine-tuned or not; the one with the least validation loss is its own. Whom its preferences give weight to,
d_j >= threshold max d, are its collaborators.

The hypernetwork never leaves the server: a client sees models on its way to its own, and not whose preferences they stand for.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from flwr.app import Message

from coterie.games.equilibrium import Coalition, collaborators_from_weights
from coterie.games.preferences import Search, even, fewest_within_noise
from coterie.strategies.findings import Finding
from coterie.strategies.hypernetworks import HypernetworkMethod
from coterie.strategies.rounds import Orders, Round, in_words
from coterie.strategies.spo import client as client_half
from coterie.strategies.spo.client import JudgeOrder, RaysOrder, check_judgement, check_rays
from coterie.strategies.spo.settings import Choice, Judged, SPOSettings
from coterie.tasks.parts import average, stacked
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update
from coterie.wire.errors import Absent, NoQuorum, NotFinite, Refused, RunFailed
from coterie.wire.messages import EvaluateOrder, Sent
from coterie.wire.randomness import generator

log = logging.getLogger(__name__)

T = TypeVar("T")
FEW = 30  # validation samples of a client below which its choice is mostly chance


class SPO(HypernetworkMethod):
    name = "spo"
    version = 3
    section = "spo"
    Settings = SPOSettings
    not_private = "asks for gradients of many models and has no private form"
    saved: ClassVar[tuple[str, ...]] = ("preferences", "epochs", "together")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.preferences: dict[str, np.ndarray] = {}  # d* of each client that was searched for
        self.epochs: dict[str, int] = {}  # of fine-tuning, of the same clients
        self.together: dict[str, Parts] = {}  # first member -> what a group trains by FedAvg
        self.latest: dict[str, Parts] = {}  # what each client made of it in this round

    def begin(self) -> None:
        super().begin()
        hellos = self.federation.hellos
        if len(self.roster) < 2:
            raise RunFailed(
                f"strategy = {self.name!r}: needs two clients or more to find out who helps whom; there is one"
            )
        blind = [name for name in self.roster if name in hellos and not hellos[name].num_validation]
        if len(blind) == len(self.roster):
            raise RunFailed(
                f"validation-fraction = {self.config.validation_fraction:g}: no client has a validation sample, and {self.name} "
                "finds collaborators by them; raise it, or take fewer clients"
            )
        if blind:
            log.warning("without validation samples, these clients are taken to need nobody: %s", ", ".join(blind))
        few = [name for name in self.roster if name in hellos and 0 < hellos[name].num_validation < FEW]
        if few:
            log.warning(
                "with fewer than %d validation samples, these clients choose collaborators largely by chance; raise "
                "validation-fraction = %g: %s", FEW, self.config.validation_fraction, ", ".join(few),
            )  # fmt: skip

    def round(self, round: Round) -> None:
        self.learn_front(round)
        if round.is_last:
            everybody = frozenset(range(len(self.roster)))
            found, failed = self.choose(dict.fromkeys(self.roster, everybody), round, {})
            self.take(found)
            round.tell(not_searched=in_words(failed), **self.told())

    def take(self, found: Mapping[str, Choice]) -> None:
        self.preferences = {name: choice.point for name, choice in found.items()}
        self.epochs = {name: choice.epochs for name, choice in found.items()}

    # The front.

    def learn_front(self, round: Round) -> None:
        """A round of the hypernetwork. Who did not answer is missing from the rays; a ray counts by the weight of those who
        did."""
        drawn: list[np.ndarray] = []
        groups = {name: members for members in self.groups() if len(members) > 1 for name in members}
        self.together = self.together or {self.roster[0]: {part: self.model[part] for part in self.uploads()}}

        def orders(clients: list[str]) -> Iterable[Sent]:
            drawn[:] = [self.draw(round.number, clients)]
            models, s = pack(self.hyper().models(drawn[0])), self.settings
            order = RaysOrder(round.number, s.rays, s.local_steps, self.step(), s.samples)
            together = {first: pack(stacked([model])) for first, model in self.together.items()}
            return [Sent(order, models, together[groups[c][0]] if c in groups else None) for c in clients]

        rays = self.settings.rays
        try:
            updates = round.train(
                orders, lambda c, reply: check_rays(reply, self.layout, self.uploads(), rays, rays + (c in groups))
            )
        except NoQuorum as error:
            if all(isinstance(why, NotFinite) for why in error.left_out.values()):  # then it is not the clients
                raise RunFailed(f"{error}. Perhaps {self.remedy()}") from None
            raise
        self.latest = {
            name: {p: self.together[members[0]][p] - self.step() * updates[name].parts[p][rays] for p in self.uploads()}
            for name, members in groups.items()
            if name in updates
        }
        for members in self.groups():
            self.together |= {members[0]: model} if (model := self.trained_by(members)) else {}
        weights = drawn[0][:, [self.roster.index(name) for name in updates]]  # (rays, clients who answered)
        mass = weights.sum(axis=1)
        shares = weights / np.where(mass > 0, mass, 1)[:, None]
        total = {part: np.zeros((len(mass), self.layout.parts[part].size), np.float32) for part in self.uploads()}
        losses = np.zeros(len(mass))
        for share, update in zip(shares.T, updates.values(), strict=True):
            losses += share * update.vectors["losses"]
            for part, gradient in update.parts.items():
                total[part] += share[:, None].astype(np.float32) * gradient[:rays]
        left = self.follow(round.number, drawn[0], total, step=self.step(), weights=mass)
        round.tell(phase=self.phase(round.number), ray_loss=float(np.average(losses, weights=mass)), way_left=left)

    def groups(self) -> list[list[str]]:
        """Who trains a model together, beside the front: all."""
        return [self.roster]

    def trained_by(self, members: Iterable[str]) -> Parts:
        """What these came to in this round, starting together: the mean, all alike. Empty if nobody of them trained."""
        models = [self.latest[name] for name in members if name in self.latest]
        return average(models, np.ones(len(models))) if models else {}

    def draw(self, server_round: int, clients: list[str]) -> np.ndarray:
        """Preferences among the clients of this round, (rays, roster)."""
        rng = generator(self.config.seed, "preferences", server_round)
        own = rng.dirichlet(np.full(len(clients), self.settings.concentration), self.settings.rays)
        rays = np.zeros((len(own), len(self.roster)))
        own[0] = 1 / len(
            clients
        )  # all alike: the model that clients fine-tune if one feature extractor is good for all
        rays[:, [self.roster.index(name) for name in clients]] = np.nan_to_num(own, nan=1 / len(clients))
        return rays

    def phase(self, server_round: int) -> str:
        return "hypernetwork"

    def step(self) -> float:
        return float(self.settings.step or self.config.learning_rate)

    def remedy(self) -> str:
        return (
            f"the hypernetwork diverged: lower its step of {self.step():g} (spo.step, learning-rate), or spo.rate = "
            f"{self.settings.rate:g}. The state of the last good round is in the checkpoint"
        )

    # The search for each client's preferences.

    def choose(
        self, homes: Mapping[str, Coalition], round: Round, failed: Mapping[str, Refused]
    ) -> tuple[dict[str, Choice], dict[str, Refused]]:
        """What suits each of these clients best, with weight for those of its home only; and why nothing is known of others,
        of whom some `failed` before."""
        searches, out = self.search(homes, round, failed)
        tried = {name: self.candidates(name, homes[name], search.point) for name, search in searches.items()}
        direct = {name: self.direct(name, homes[name]) for name in tried}
        alone = {name: Choice(points[0], 0) for name, points in tried.items() if len(points) == 1}
        asked = {name: points for name, points in tried.items() if name not in alone}
        judged, silent = self.judge(asked, direct, round)
        return alone | {name: self.best(name, tried[name], told) for name, told in judged.items()}, out | silent

    def candidates(self, client: str, home: Coalition, searched: np.ndarray) -> np.ndarray:
        """The points that a client chooses among: itself alone, all of its home alike, and what was found, if that is a third."""
        points = [self.corner(client)]
        if len(home) > 1:
            points.append(even(home, len(self.roster)))
            if len(self.needed(client, searched)) > 1 and not np.array_equal(searched, points[1]):
                points.append(searched)
        return np.array(points)

    def needed(self, client: str, point: np.ndarray) -> Coalition:
        """The client, and whom else these preferences give weight to."""
        return collaborators_from_weights(point, self.roster.index(client), threshold=self.settings.threshold)

    def best(self, client: str, points: np.ndarray, told: Judged) -> Choice:
        """Of ties, and of what noise does not tell apart, the one with the fewest collaborators."""
        sizes = np.repeat([[len(self.needed(client, point))] for point in points], 2, axis=1)
        known = np.isfinite(told.losses)
        k = fewest_within_noise(told.losses[known], told.errors[known], sizes[known], margin=self.settings.margin)
        which, tuned = np.argwhere(known)[k]
        return Choice(points[which], self.settings.fine_tune_epochs if tuned else 0)

    def judge(
        self, tried: Mapping[str, np.ndarray], direct: Mapping[str, tuple[np.ndarray, Parts]], round: Round
    ) -> tuple[dict[str, Judged], dict[str, Refused]]:
        """What the models for these preferences are worth to each client as it would use them, and who did not say. For the
        client alone it has the model itself; for each one there is a point for which it was trained `direct`ly."""
        epochs = self.settings.fine_tune_epochs
        own = {name: (points == self.corner(name)).all(axis=1) for name, points in tried.items()}

        def orders(clients: list[str]) -> Iterable[Sent]:
            for client in clients:
                points = tried[client][~own[client]]
                models = [self.model_for(point, direct[client]) for point in points]
                order = JudgeOrder(round.number, len(points), epochs, own=bool(own[client].any()))
                yield Sent(order, stacked(models) if models else None)

        def check(client: str, reply: Message) -> Judged:
            alone, sent = int(own[client].sum()), int((~own[client]).sum())
            update = check_judgement(reply, self.layout, alone + sent * (2 if epochs else 1))
            judged = Judged(*np.full((2, len(tried[client]), 2), np.inf))
            for matrix, numbers in zip(judged, (update.vectors["losses"], update.vectors["errors"]), strict=True):
                matrix[own[client], 0] = numbers[:alone]
                matrix[~own[client], 0] = numbers[alone : alone + sent]
                matrix[~own[client], 1] = numbers[alone + sent :] if epochs else np.inf
            return judged

        return self.asked(tried, round, orders, check)

    def model_for(self, point: np.ndarray, direct: tuple[np.ndarray, Parts]) -> Parts:
        """Trained directly where it was, else made by the hypernetwork."""
        where, model = direct
        return model if model and np.array_equal(point, where) else self.made_for(point)

    def search(
        self, homes: Mapping[str, Coalition], round: Round, failed: Mapping[str, Refused]
    ) -> tuple[dict[str, Search], dict[str, Refused]]:
        """For each of these clients: the best preferences by the loss of the hypernetwork's models."""
        out = dict(failed)
        searches: dict[str, Search] = {}
        for name, home in homes.items():
            if name not in self.federation.clients:
                out[name] = Absent("not connected")
            elif not self.federation.hellos[name].num_validation:
                out[name] = Refused("no validation sample")
            elif name not in out:
                searches[name] = Search(self.roster.index(name), len(self.roster), home)
        for _ in range(self.settings.search_steps):
            tried = {
                name: search.candidates()
                for name, search in searches.items()
                if not search.finished and len(search.allowed) > 1
            }
            if not tried:
                break
            answers, silent = self.ask(tried, round)
            out |= silent
            self._learn(searches, tried, answers)
            searches = {name: search for name, search in searches.items() if name not in silent}
        return searches, out

    def ask(self, tried: Mapping[str, np.ndarray], round: Round) -> tuple[dict[str, Update], dict[str, Refused]]:
        """The losses of the models for these preferences, the gradient of the best; and who did not say."""

        def orders(clients: list[str]) -> Iterable[Sent]:
            for client in clients:
                points = tried[client]
                yield Sent(RaysOrder(round.number, len(points), 0, 0.0, 0), self.hyper().models(points))

        def check(client: str, reply: Message) -> Update:
            return check_rays(reply, self.layout, self.uploads(), len(tried[client]), 1)

        return self.asked(tried, round, orders, check)

    def asked(
        self, tried: Mapping[str, np.ndarray], round: Round, orders: Orders, check: Callable[[str, Message], T]
    ) -> tuple[dict[str, T], dict[str, Refused]]:
        most = max((len(points) for points in tried.values()), default=0)
        size = most * sum(self.layout.parts[part].nbytes for part in self.uploads())
        answers, failed = round.ask(list(tried), orders, check, size=size)
        for name, error in failed.items():
            log.warning("round %d: no preferences of client %s are known: %s", round.number, name, error)
        return answers, failed

    def _learn(
        self, searches: Mapping[str, Search], tried: Mapping[str, np.ndarray], answers: Mapping[str, Update]
    ) -> None:
        if not answers:
            return
        losses = {name: update.vectors["losses"] for name, update in answers.items()}
        best = np.array([tried[name][int(np.argmin(loss))] for name, loss in losses.items()])
        gradients = {part: np.concatenate([u.parts[part] for u in answers.values()]) for part in self.uploads()}
        slopes = self.hyper().slopes(best, gradients)
        for name, slope in zip(answers, slopes, strict=True):
            searches[name].learn(tried[name], losses[name], slope)

    # What the clients do, how they are tested, what was found out.

    losses_and_gradients = staticmethod(client_half.losses_and_gradients)
    losses_as_used = staticmethod(client_half.judge)

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        for client in clients:
            point, alone = self.preference(client), client in self.roster
            epochs = self.epochs.get(client, 0 if alone else self.settings.fine_tune_epochs)
            order = EvaluateOrder(round.number, self.kinds, epochs, measure=True)
            own = alone and np.array_equal(point, self.corner(client))
            yield Sent(order, None if own else self.model_for(point, self.direct(client)))

    def direct(self, client: str, home: Coalition | None = None) -> tuple[np.ndarray, Parts]:
        """The preferences for which the group of this client trains a model directly, and that model. For part of the group:
        what this round's training comes to among them. Of one who is in no group, nothing."""
        for members in self.groups():
            if client in members:
                group = frozenset(self.roster.index(name) for name in members)
                if home in (None, group):
                    return even(group, len(self.roster)), self.together.get(members[0], {})
        if home is None:
            return np.zeros(0), {}
        return even(home, len(self.roster)), self.trained_by(self.roster[i] for i in sorted(home))

    def preference(self, client: str) -> np.ndarray:
        """d* of a client; before it is found, the client alone; all alike for one that joined late."""
        return self.preferences[client] if client in self.preferences else self.corner(client)

    def collaborators(self, client: str) -> list[str]:
        return [self.roster[i] for i in sorted(self.needed(client, self.preference(client)))]

    def told(self) -> dict[str, Any]:
        """For the event line."""
        return {
            "preferences": {
                name: {other: round(float(w), 4) for other, w in zip(self.roster, d, strict=True) if w > 0}
                for name, d in self.preferences.items()
            },
            "collaborators": {name: self.collaborators(name) for name in self.preferences},
            "fine_tuned": [name for name, epochs in self.epochs.items() if epochs],
        }

    def findings(self) -> list[Finding]:
        preferences = np.array([self.preference(name) for name in self.roster])
        return [
            Finding.pairs("preferences", self.roster, preferences),
            Finding("collaborators", "links", {name: self.collaborators(name) for name in self.roster}),
        ]
