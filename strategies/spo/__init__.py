"""SPO (Cui et al. 2022): a hypernetwork learns the Pareto front of all clients, and each client finds its place on it.

A model for every preference: theta(d) minimises sum_i d_i L_i, for d on the simplex over clients. In every round the server
draws preferences, sends the hypernetwork's models for them, all in one message, and gets from each client the gradients of
its own loss:

    G(d) = sum_i d_i grad L_i(theta(d))          theta(d) <- theta(d) - eta G(d), by the hypernetwork (tasks/hypernetwork.py)

After the last round it searches, for each client, the preferences whose model has the least loss on the client's validation
samples (games/preferences.py). The client then judges the models for these, for itself alone and for all alike as it would
use them, fine-tuned or not; the one with the least validation loss is its own. Whom d* gives weight to, d*_j >= threshold
max d*, are its collaborators.

The hypernetwork never leaves the server: a client sees models on its way to its own, and not whose preferences they stand for.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from flwr.app import Message

from coterie.games.equilibrium import Coalition, collaborators_from_weights
from coterie.games.preferences import Search, even, fewest_within_noise
from coterie.strategies.findings import Finding
from coterie.strategies.hypernetworks import HypernetworkMethod, HypernetworkSettings
from coterie.strategies.method import setting
from coterie.strategies.rounds import Orders, Round, in_words
from coterie.strategies.spo import client as client_half
from coterie.strategies.spo.client import JudgeOrder, RaysOrder, check_judgement, check_rays
from coterie.wire.arrays import pack
from coterie.wire.checks import Update
from coterie.wire.errors import Absent, NoQuorum, NotFinite, Refused, RunFailed
from coterie.wire.messages import EvaluateOrder, Sent
from coterie.wire.randomness import generator

log = logging.getLogger(__name__)

FEW = 30  # validation samples of a client below which its choice is mostly chance


class SPOSettings(HypernetworkSettings):
    rays: int = setting(16, "Preferences drawn in a round: as many models go to each client.", ge=1)
    concentration: float = setting(
        0.2, "Of the Dirichlet distribution they come from; small: near single clients.", gt=0.0
    )
    local_steps: int = setting(
        10, "Steps of gradient descent that a client takes from each model; 1: the exact front.", ge=1
    )
    step: float = setting(0.0, "Length of these steps (eta). 0: learning-rate.", ge=0.0)
    samples: int = setting(64, "Most training samples in each of these steps.", ge=1)
    search_steps: int = setting(20, "Most exchanges in which a client's preferences are searched.", ge=1)
    threshold: float = setting(0.1, "Weight of a collaborator, as a share of the largest, from 0 to 1.", gt=0.0, le=1.0)
    fine_tune_epochs: int = setting(
        10, "Epochs of training of the personal model on the client, if they lower its validation loss.", ge=0
    )
    margin: float = setting(
        0.0, "Standard errors that a loss may be above the least if fewer collaborators are needed for it.", ge=0.0
    )
    explore: float = setting(0.5, "ce: share of the rounds before coalitions are formed.", gt=0.0, le=1.0)


class Choice(NamedTuple):
    """What suits a client best: the preferences, and the epochs of fine-tuning."""

    point: np.ndarray
    epochs: int


class SPO(HypernetworkMethod):
    name = "spo"
    version = 2
    section = "spo"
    Settings = SPOSettings
    not_private = "asks for gradients of many models and has no private form"
    saved: ClassVar[tuple[str, ...]] = ("preferences", "epochs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.preferences: dict[str, np.ndarray] = {}  # d* of each client that was searched for
        self.epochs: dict[str, int] = {}  # of fine-tuning, of the same clients

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

        def orders(clients: list[str]) -> Iterable[Sent]:
            drawn[:] = [self.draw(round.number, clients)]
            models, s = pack(self.hyper().models(drawn[0])), self.settings
            order = RaysOrder(round.number, s.rays, s.local_steps, self.step(), s.samples)
            return [Sent(order, models)] * len(clients)

        rays = self.settings.rays
        try:
            updates = round.train(
                orders, lambda client, reply: check_rays(reply, self.layout, self.uploads(), rays, rays)
            )
        except NoQuorum as error:
            if all(isinstance(why, NotFinite) for why in error.left_out.values()):  # then it is not the clients
                raise RunFailed(f"{error}. Perhaps {self.remedy()}") from None
            raise
        weights = drawn[0][:, [self.roster.index(name) for name in updates]]  # (rays, clients who answered)
        mass = weights.sum(axis=1)
        shares = weights / np.where(mass > 0, mass, 1)[:, None]
        total = {part: np.zeros((len(mass), self.layout.parts[part].size), np.float32) for part in self.uploads()}
        losses = np.zeros(len(mass))
        for share, update in zip(shares.T, updates.values(), strict=True):
            losses += share * update.vectors["losses"]
            for part, gradient in update.parts.items():
                total[part] += share[:, None].astype(np.float32) * gradient
        left = self.follow(round.number, drawn[0], total, step=self.step(), weights=mass)
        round.tell(phase=self.phase(round.number), ray_loss=float(np.average(losses, weights=mass)), way_left=left)

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
        tried = {
            name: np.unique([self.corner(name), search.point, even(homes[name], len(self.roster))], axis=0)
            for name, search in searches.items()
        }
        judged, silent = self.judge(tried, round)
        found = {name: self.best(name, tried[name], update) for name, update in judged.items()}
        return found, out | silent

    def best(self, client: str, points: np.ndarray, judgement: Update) -> Choice:
        """Of ties, and of what noise does not tell apart, the one with the fewest collaborators."""
        place, threshold = self.roster.index(client), self.settings.threshold
        sizes = [len(collaborators_from_weights(point, place, threshold=threshold)) for point in points]
        losses, errors = judgement.vectors["losses"], judgement.vectors["errors"]
        both = np.resize(sizes, len(losses))  # as they are, then fine-tuned
        k = fewest_within_noise(losses, errors, both, margin=self.settings.margin)
        return Choice(points[k % len(points)], self.settings.fine_tune_epochs if k >= len(points) else 0)

    def judge(self, tried: Mapping[str, np.ndarray], round: Round) -> tuple[dict[str, Update], dict[str, Refused]]:
        """What the models for these preferences are worth to each client as it would use them, and who did not say."""
        epochs = self.settings.fine_tune_epochs

        def orders(clients: list[str]) -> Iterable[Sent]:
            for client in clients:
                points = tried[client]
                yield Sent(JudgeOrder(round.number, len(points), epochs), self.hyper().models(points))

        def check(client: str, reply: Message) -> Update:
            return check_judgement(reply, self.layout, len(tried[client]) * (2 if epochs else 1))

        return self.asked(tried, round, orders, check)

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
        self, tried: Mapping[str, np.ndarray], round: Round, orders: Orders, check: Callable[[str, Message], Update]
    ) -> tuple[dict[str, Update], dict[str, Refused]]:
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
            epochs = self.epochs.get(client, self.settings.fine_tune_epochs)
            order = EvaluateOrder(round.number, self.kinds, epochs, measure=True)
            yield Sent(order, self.made_for(self.preference(client)))

    def preference(self, client: str) -> np.ndarray:
        """d* of a client; before it is found, the client alone; all alike for one that joined late."""
        return self.preferences[client] if client in self.preferences else self.corner(client)

    def collaborators(self, client: str) -> list[str]:
        chosen = collaborators_from_weights(
            self.preference(client), self.roster.index(client), threshold=self.settings.threshold
        )
        return [self.roster[i] for i in sorted(chosen)]

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
