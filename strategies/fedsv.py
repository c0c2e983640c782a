"""FedSV (Wang et al. 2020, "A Principled Approach to Data Valuation for Federated Learning") as a defence.

A client's value is the sum of its Shapley values over the rounds it took part in. Updates are averaged with weights
proportional to max(value, 0); if nobody's value is positive, alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.strategies.evidence import Evidence
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.findings import Finding
from coterie.strategies.rounds import Round, by_name
from coterie.strategies.server_game import ServerGame
from coterie.strategies.shapleyfl import ShapleyFLSettings, about_game
from coterie.tasks.parts import average
from coterie.wire.checks import Update
from coterie.wire.errors import Absent
from coterie.wire.randomness import derive_seed


class FedSV(FedAvg):
    name = "fedsv"
    section = "shapleyfl"
    Settings = ShapleyFLSettings
    saved = ("value", "evidence")
    needs_server_data = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.game = ServerGame(self.config, self.settings, group_norm=self.layout.group_norm)
        self.value: dict[str, float] = {}
        self.evidence = Evidence()

    def begin(self) -> None:
        number = self.share_of(self.federation.clients)
        self.game.check_budget(number, number)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        clients, thetas = list(updates), [update.parts for update in updates.values()]
        found = self.game.play(self.model, thetas, derive_seed(self.config.seed, "shapley", round.number))
        unusable = [client for client, why in round.left_out.items() if not isinstance(why, Absent)]
        explained = self.game.explained(self.model, thetas)
        self.evidence.learn(clients, found.values if found else None, explained, unusable)
        self.learn(clients, found.values if found else np.zeros(len(clients)))
        weights = self.averaging_weights(updates)
        self.model = self.model | average(thetas, weights)
        round.tell(**about_game(clients, found, None, explained))
        round.tell(contribution=dict(self.value), weights=by_name(clients, weights))

    def learn(self, clients: list[str], values: np.ndarray) -> None:
        for client, value in zip(clients, values.tolist(), strict=True):
            self.value[client] = self.value.get(client, 0.0) + value

    def averaging_weights(self, updates: Mapping[str, Update]) -> np.ndarray:
        positive = np.array([max(self.value[client], 0.0) for client in updates])
        return positive / positive.sum() if positive.any() else np.full(len(positive), 1 / len(positive))

    def findings(self) -> list[Finding]:
        return self.evidence.findings(self.settings.suspect_below)
