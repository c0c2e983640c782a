"""ShapleyFL (Sun et al. 2023, "ShapleyFL: Robust Federated Learning Based on Shapley Value"): weights by contribution.

In a round with clients C the server plays a game on its validation data (strategies/server_game.py). With the Shapley values:

    NSV_i = (SV_i - min SV) / (max SV - min SV)          SSV_i <- beta SSV_i + (1 - beta) NSV_i      for i in C
    w_i = SSV_i / sum_present SSV                        x <- x - eta sum_{i in C} w_i / p_i V_i

AFedSV draws all clients alike, p_i = m / N. AFedSV+ draws client i with the probability p_i that makes the variance of
the step smallest (games/sampling.py), but not below a floor: who was found useless must be able to come back.

Where the paper is silent: w and p are over the clients that can take part in this round, or the step would shrink when
others leave; who is away keeps its SSV. A client's first SSV is 0.5. Equal values, or a single client, leave SSV as it
is. A client whose answer cannot be used (NaN, a wrong shape) has NSV 0; one that did not answer keeps what it had.
Running statistics are averaged with the same weights, normalised, because sum w/p is not 1. An update longer than
`clip` times the median is shortened to that in the step, because even a small weight of a huge update is huge. In the
median clients count by w, that is by what the server's data say of them: where half are bad, a plain one is no bound.
In the game an update is as it was sent, because shortened it would not show its harm. p comes from the weights before
the round and w from those after it: a client that was drawn against the odds and then does well would move the model
alone, so w/p is bounded.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from coterie.games.sampling import horvitz_thompson_weights, inclusion_probabilities, poisson_draw
from coterie.games.shapley import Estimate, normalise
from coterie.strategies.evidence import Evidence
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.findings import Finding
from coterie.strategies.method import setting
from coterie.strategies.rounds import Round, by_name
from coterie.strategies.server_game import GameSettings, ServerGame
from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.tasks.parts import average
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update
from coterie.wire.errors import Absent
from coterie.wire.randomness import derive_seed, generator

LARGEST_SHARE = 3.0  # of one client in a step, in shares of equal clients; of one that is always drawn: its weight
FIRST = 0.5  # SSV of a client that never took part


class ShapleyFLSettings(GameSettings):
    beta: float = setting(0.3, "Share of the old contribution that stays after a round.", ge=0.0, lt=1.0)
    step: float = setting(1.0, "The server's step length eta.", gt=0.0)
    floor: float = setting(
        0.1, "afedsv-plus: least probability of taking part, as a share of the equal one.", ge=0.0, le=1.0
    )
    clip: float = setting(
        10.0, "Longest update, in the round's median length, where clients count by their weights; 0: any.", ge=0.0
    )
    suspect_below: float = setting(
        2.0, "A client is suspect whose score is this far below 0 (docs/explanation/shapleyfl.md).", ge=0.0
    )


class AFedSV(FedAvg):
    name = "afedsv"
    section = "shapleyfl"
    Settings = ShapleyFLSettings
    saved = ("contribution", "evidence")
    needs_server_data = True
    redraws = False  # whether any number of clients may be drawn; where nobody was, the draw is repeated

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.game = ServerGame(self.config, self.settings, group_norm=self.layout.group_norm)
        self.contribution: dict[str, float] = {}  # SSV by client
        self.evidence = Evidence()
        self.probability: dict[str, float] = {}  # of taking part in this round
        self.empty_draws = 0

    def begin(self) -> None:
        clients = self.federation.clients
        usual = self.share_of(clients)
        self.game.check_budget(usual, len(clients) if self.redraws else usual)

    # Who takes part.

    def sample(self, server_round: int) -> list[str]:
        chosen = super().sample(server_round)
        clients = self.federation.clients
        self.meet(clients)
        self.probability = dict.fromkeys(clients, len(chosen) / max(len(clients), 1))
        return chosen

    def meet(self, clients: list[str]) -> None:
        for client in clients:
            self.contribution.setdefault(client, FIRST)

    def weights(self, clients: Collection[str]) -> dict[str, float]:
        """w among the clients that can take part; equal if nobody of them contributed anything."""
        total = sum(self.contribution[client] for client in clients)
        return {client: self.contribution[client] / total if total > 0 else 1 / len(clients) for client in clients}

    def present(self, clients: list[str], answered: int) -> dict[str, float]:
        """p of these clients, now that the others turned out to be away: so many of them answered."""
        return dict.fromkeys(clients, answered / len(clients))

    # What becomes of the answers.

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        clients = list(updates)
        sent = [update.parts for update in updates.values()]
        seed = derive_seed(self.config.seed, "shapley", round.number)
        found = self.game.play(self.model, sent, seed, self.settings.step)
        scaled = normalise(found.values) if found else None
        if scaled is not None:
            self.learn(clients, scaled)
        unusable = [client for client, why in round.left_out.items() if not isinstance(why, Absent)]
        explained = self.game.explained(self.model, sent)
        self.evidence.learn(clients, found.values if found else None, explained, unusable)
        self.learn(unusable, np.zeros(len(unusable)))
        silent = set(round.left_out) - set(unusable)
        present = [client for client in self.probability if client not in silent]
        self.probability = self.present(present, len(clients) + len(unusable))
        weights = self.weights(present)
        factors = self.factors(clients, weights)
        thetas = shortened(self.model, sent, self.settings.clip, np.array([weights[client] for client in clients]))
        self.model = self.model | moved(self.model, thetas, factors, self.settings.step)
        round.tell(
            **about_game(clients, found, scaled, explained),
            contribution=dict(self.contribution),
            probabilities=dict(self.probability),
            weights=by_name(clients, factors),
            empty_draws=self.empty_draws,
        )

    def learn(self, clients: list[str], scaled: np.ndarray) -> None:
        beta = self.settings.beta
        for client, value in zip(clients, scaled.tolist(), strict=True):
            self.contribution[client] = beta * self.contribution[client] + (1 - beta) * value

    def factors(self, clients: list[str], weights: Mapping[str, float]) -> np.ndarray:
        """w_i / p_i of the clients that answered well, but none far above that of equal clients."""
        everybody = list(self.probability)
        chances = np.array(list(self.probability.values()))
        selected = [everybody.index(client) for client in clients]
        own = np.array([weights[client] for client in everybody])
        factors = horvitz_thompson_weights(own, chances, selected, redrawn=self.redraws)
        return np.asarray(np.minimum(factors, np.maximum(own[selected], LARGEST_SHARE / chances.sum())))

    def findings(self) -> list[Finding]:
        return self.evidence.findings(self.settings.suspect_below)


class AFedSVPlus(AFedSV):
    name = "afedsv-plus"
    redraws = True

    def sample(self, server_round: int) -> list[str]:
        clients = self.federation.clients
        if not clients:
            return []
        self.meet(clients)
        number = self.share_of(clients)
        weights = self.weights(clients)
        probabilities = inclusion_probabilities(
            [weights[client] for client in clients], number, floor=self.settings.floor * number / len(clients)
        )
        draw = poisson_draw(probabilities, generator(self.config.seed, "sample", server_round))
        self.probability = dict(zip(clients, probabilities.tolist(), strict=True))
        self.empty_draws = draw.empty_draws
        return [clients[i] for i in draw.selected]

    def present(self, clients: list[str], answered: int) -> dict[str, float]:
        return {client: self.probability[client] for client in clients}


def moved(base: Parts, thetas: list[Parts], factors: np.ndarray, step: float) -> Parts:
    """x + step sum_i factor_i (theta_i - x) in float64; running statistics are averaged with the factors normalised."""
    shares = factors if factors.sum() > 0 else np.ones(len(thetas))
    result = average([{part: theta[part] for part in STATISTICS if part in theta} for theta in thetas], shares)
    for part in WEIGHTS:
        if part in thetas[0]:
            old = base[part].astype(np.float64)
            total = sum(factor * (theta[part] - old) for factor, theta in zip(factors, thetas, strict=True))
            result[part] = (old + step * total).astype(base[part].dtype)
    return result


def shortened(base: Parts, thetas: list[Parts], clip: float, weights: np.ndarray) -> list[Parts]:
    """Updates no longer than `clip` times the weighted median length, weights and running statistics each on their own."""
    if not clip:
        return thetas
    result = [dict(theta) for theta in thetas]
    for group in (WEIGHTS, ("buffers",)):
        parts = [part for part in group if part in thetas[0]]
        lengths = np.array([_length(base, theta, parts) for theta in thetas])
        longest = clip * weighted_median(lengths, weights)
        for theta, length in zip(result, lengths, strict=True):
            if length > longest:
                for part in parts:
                    old = base[part].astype(np.float64)
                    theta[part] = (old + longest / length * (theta[part] - old)).astype(base[part].dtype)
    return result


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The smallest value such that those up to it have half of the weight; all count alike where nobody has any."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order] if weights.any() else np.ones(len(order)))
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])


def _length(base: Parts, theta: Parts, parts: list[str]) -> float:
    return float(np.sqrt(sum(np.sum((theta[part].astype(np.float64) - base[part]) ** 2) for part in parts)))


def about_game(
    clients: list[str], found: Estimate | None, scaled: np.ndarray | None, explained: np.ndarray | None
) -> dict[str, Any]:
    """What the event line tells of the game."""
    event: dict[str, Any] = {
        "estimator": found.method if found else None,
        "evaluations": found.evaluations if found else 0,
    }
    told = {"shapley": found.values if found else None, "normalised_shapley": scaled, "explained": explained}
    for name, values in told.items():
        if values is not None:
            event[name] = by_name(clients, values)
    return event
