"""FedSV (Wang et al. 2020, "A Principled Approach to Data Valuation for Federated Learning") as a defence.

A client's value is the sum of its Shapley values over the rounds it took part in. Updates are averaged with weights
proportional to max(value, 0); if nobody's value is positive, alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from coterie.strategies.evidence import Evidence
from coterie.strategies.fedavg import FedAvg, average
from coterie.strategies.game import ServerGame
from coterie.strategies.shapleyfl import ShapleyFLSettings, about_game
from coterie.wire.checks import Update, is_absence
from coterie.wire.randomness import derive_seed


class FedSV(FedAvg):
    name = "fedsv"
    section = "shapleyfl"
    settings_class = ShapleyFLSettings
    needs_server_data = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.game = ServerGame(self.config, self.settings, group_norm=self.layout.group_norm)
        self.value: dict[str, float] = {}
        self.evidence = Evidence()

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        clients, thetas = list(updates), [update.parts for update in updates.values()]
        found = self.game.play(self.model, thetas, derive_seed(self.config.seed, "shapley", server_round))
        unusable = [client for client, why in self.event["left-out"].items() if not is_absence(why)]
        explained = self.game.explained(self.model, thetas)
        self.evidence.learn(clients, found.values if found else None, explained, unusable)
        self.learn(clients, found.values if found else np.zeros(len(clients)))
        weights = self.averaging_weights(updates)
        self.model = self.model | average(thetas, weights)
        shares = dict(zip(clients, weights.tolist(), strict=True))
        return {**about_game(clients, found, None, explained), "contribution": dict(self.value), "weights": shares}

    def learn(self, clients: list[str], values: np.ndarray) -> None:
        for client, value in zip(clients, values.tolist(), strict=True):
            self.value[client] = self.value.get(client, 0.0) + value

    def averaging_weights(self, updates: Mapping[str, Update]) -> np.ndarray:
        positive = np.array([max(self.value[client], 0.0) for client in updates])
        return positive / positive.sum() if positive.any() else np.full(len(positive), 1 / len(positive))

    def judgement(self) -> dict[str, Any]:
        return self.evidence.judgement(self.settings.suspect_below)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["values"] = {"value": dict(self.value), "evidence": self.evidence.state_dict()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.value = dict(state["values"]["value"])
        self.evidence.load_state_dict(state["values"]["evidence"])
