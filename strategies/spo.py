"""SPO (Cui et al. 2022): a hypernetwork learns the Pareto front of all clients, and each client finds its place on it.

A model for every preference: theta(d) minimises sum_i d_i L_i, for d on the simplex over clients. In every round the server
draws preferences, sends the hypernetwork's models for them, all in one message, and gets from each client the gradients of
its own loss:

    G(d) = sum_i d_i grad L_i(theta(d))          theta(d) <- theta(d) - eta G(d), by the hypernetwork (tasks/hypernetwork.py)

After the last round it searches, for each client, the preferences whose model has the least loss on the client's validation
samples (games/preferences.py). That model is the client's own; whom d* gives weight to, d*_j >= threshold max d*, are its
collaborators.

The hypernetwork never leaves the server: a client sees models on its way to its own, and not whose preferences they stand for.
"""

from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np
from coterie.games.equilibrium import collaborators_from_weights
from coterie.games.preferences import Search
from coterie.strategies.hyper import HypernetworkMethod, HypernetworkSettings
from coterie.wire.arrays import pack
from coterie.wire.checks import Update, check_rays
from coterie.wire.errors import RunFailed
from coterie.wire.messages import TRAIN_RAYS, EvaluateOrder, RaysOrder, content
from coterie.wire.randomness import generator
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from pydantic import Field


class SPOSettings(HypernetworkSettings):
    rays: int = Field(16, ge=1, description="Preferences drawn in a round: as many models go to each client.")
    concentration: float = Field(
        0.2, gt=0.0, description="Of the Dirichlet distribution they come from; small: near single clients."
    )
    local_steps: int = Field(
        10, ge=1, description="Steps of gradient descent that a client takes from each model; 1: the exact front."
    )
    step: float = Field(0.0, ge=0.0, description="Length of these steps (eta). 0: learning-rate.")
    samples: int = Field(64, ge=1, description="Most training samples in each of these steps.")
    search_steps: int = Field(20, ge=1, description="Most exchanges in which a client's preferences are searched.")
    threshold: float = Field(
        0.1, gt=0.0, le=1.0, description="Weight of a collaborator, as a share of the largest, from 0 to 1."
    )
    fine_tune_epochs: int = Field(0, ge=0, description="Epochs of training of the personal model on the client.")
    explore: float = Field(
        0.5, gt=0.0, le=1.0, description="ce: share of the rounds before coalitions are formed and train."
    )


class SPO(HypernetworkMethod):
    name = "spo"
    section = "spo"
    settings_class = SPOSettings
    private = ()
    not_private = "asks for gradients of many models and has no private form"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rays = np.zeros((0, 0))  # of this round, (rays, clients)
        self.searches: dict[str, Search] = {}  # under way
        self.preferences: dict[str, np.ndarray] = {}  # d* of each client that was searched for

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
            log(WARNING, "without validation samples, these clients are taken to need nobody: %s", ", ".join(blind))

    # A round of the hypernetwork.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        asked = self.sample(server_round)
        self.draw(server_round, asked)
        return self._messages(TRAIN_RAYS, asked, self.train_content, server_round)

    def draw(self, server_round: int, clients: list[str]) -> None:
        """Preferences among the clients of this round, and the models for them."""
        rng = generator(self.config.seed, "preferences", server_round)
        own = rng.dirichlet(np.full(len(clients), self.settings.concentration), self.settings.rays)
        self.rays = np.zeros((len(own), len(self.roster)))
        self.rays[:, [self.roster.index(name) for name in clients]] = np.nan_to_num(own, nan=1 / len(clients))
        self.ray_models = pack(self.hyper().models(self.rays))

    def step(self) -> float:
        return float(self.settings.step or self.config.learning_rate)

    def train_content(self, client: str, server_round: int) -> RecordDict:
        s = self.settings
        return content(RaysOrder(server_round, s.rays, s.local_steps, self.step(), s.samples), self.ray_models)

    def check_update(self, client: str, reply: Message) -> Update:
        return check_rays(reply, self.layout, self.uploads(), len(self.rays), len(self.rays))

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        """Who did not answer is missing from the rays; a ray counts by the weight of those who did."""
        weights = self.rays[:, [self.roster.index(name) for name in updates]]  # (rays, clients who answered)
        mass = weights.sum(axis=1)
        shares = weights / np.where(mass > 0, mass, 1)[:, None]
        total = {part: np.zeros((len(mass), self.layout.parts[part].size), np.float32) for part in self.uploads()}
        losses = np.zeros(len(mass))
        for share, update in zip(shares.T, updates.values(), strict=True):
            losses += share * update.vectors["losses"]
            for part, gradient in update.parts.items():
                total[part] += share[:, None].astype(np.float32) * gradient
        left = self.follow(server_round, self.rays, total, step=self.step(), weights=mass)
        return {"phase": "hypernetwork", "ray-loss": float(np.average(losses, weights=mass)), "way-left": left}

    def remedy(self) -> str:
        return (
            f"the hypernetwork diverged: lower its step of {self.step():g} (spo.step, learning-rate), or spo.rate = "
            f"{self.settings.rate:g}. The state of the last good round is in the checkpoint"
        )

    def _train(self, server_round: int, config: ConfigRecord, timeout: float) -> tuple[ArrayRecord, MetricRecord]:
        try:
            return super()._train(server_round, config, timeout)
        except RunFailed as error:
            if "finite" in str(error) and "diverged" not in str(error):  # nobody's numbers were: it is not the clients
                raise RunFailed(f"{error}. Perhaps {self.remedy()}") from None
            raise

    # The search for each client's preferences.

    def after_train(self, server_round: int, clients: list[str], timeout: float) -> None:
        if server_round == self.num_rounds:
            self.event["not-searched"] = {}
            found = self.search(frozenset(range(len(self.roster))), server_round, timeout)
            self.preferences = {name: search.point for name, search in found.items()}
            self.event |= self.told()

    def search(self, allowed: frozenset[int], server_round: int, timeout: float) -> dict[str, Search]:
        """For each of the allowed clients: the best preferences with weight for these only. Who cannot be asked is left out."""
        able = []
        for name in [self.roster[i] for i in sorted(allowed)]:
            if name not in self.federation.clients:
                self.event["not-searched"][name] = "not connected"
            elif not self.federation.hellos[name].num_validation:
                self.event["not-searched"][name] = "no validation sample"
            elif name not in self.event["not-searched"]:
                able.append(name)
        self.searches = {name: Search(self.roster.index(name), len(self.roster), allowed) for name in able}
        for _ in range(self.settings.search_steps):
            asked = [name for name, search in self.searches.items() if not search.finished]
            if not asked:
                break
            self.tried = {name: self.searches[name].candidates() for name in asked}
            answers = self.ask(asked, server_round, timeout)
            self._learn(answers)
            for name in set(asked) - set(answers):
                del self.searches[name]
        return self.searches

    def ask(self, clients: list[str], server_round: int, timeout: float) -> dict[str, Update]:
        """What the models for `self.tried` are worth to these clients; who fails is named in the event line."""
        rows = max(len(self.tried[name]) for name in clients)
        size = rows * sum(self.layout.parts[part].nbytes for part in self.uploads())
        replies, missing, sizes = self._in_waves(TRAIN_RAYS, clients, self.search_content, server_round, size, timeout)
        answers, refused = self._sort_out(replies, self.check_search)
        for name, reason in (missing | refused).items():
            log(WARNING, "round %d: no preferences of client %s are known: %s", server_round, name, reason)
        self.event["not-searched"] |= missing | refused
        for key, more in (("bytes-down", sizes), ("bytes-up", {name: u.num_bytes for name, u in answers.items()})):
            self.event[key] = {
                name: self.event[key].get(name, 0) + more.get(name, 0) for name in {**self.event[key], **more}
            }
        return answers

    def search_content(self, client: str, server_round: int) -> RecordDict:
        points = self.tried[client]
        return content(RaysOrder(server_round, len(points), 0, 0.0, 0), pack(self.hyper().models(points)))

    def check_search(self, client: str, reply: Message) -> Update:
        return check_rays(reply, self.layout, self.uploads(), len(self.tried[client]), 1)

    def _learn(self, answers: Mapping[str, Update]) -> None:
        if not answers:
            return
        losses = {name: update.vectors["losses"] for name, update in answers.items()}
        best = np.array([self.tried[name][int(np.argmin(loss))] for name, loss in losses.items()])
        gradients = {part: np.concatenate([u.parts[part] for u in answers.values()]) for part in self.uploads()}
        slopes = self.hyper().slopes(best, gradients)
        for name, slope in zip(answers, slopes, strict=True):
            self.searches[name].learn(self.tried[name], losses[name], slope)

    # What is known of each client.

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
        }

    def benefits(self) -> dict[str, Any]:
        return {"collaborators": {name: self.collaborators(name) for name in self.roster}}

    def matrices(self) -> dict[str, tuple[list[str], np.ndarray]]:
        return {"preferences": (self.roster, np.array([self.preference(name) for name in self.roster]))}

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        order = EvaluateOrder(server_round, self.kinds, self.settings.fine_tune_epochs, measure=True)
        return content(order, pack(self.made_for(self.preference(client))))

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["values"]["preferences"] = {name: d.tolist() for name, d in self.preferences.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.preferences = {name: np.array(d) for name, d in state["values"]["preferences"].items()}
