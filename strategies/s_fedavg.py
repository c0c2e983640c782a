"""S-FedAvg (Nagalapatti & Narayanam 2021, "Game of Gradients", arXiv:2110.12257): who is relevant is drawn more often.

    phi_i <- alpha phi_i + (1 - alpha) SV_i     for the clients of a round;     P(i) ~ exp(phi_i / max |phi|)

m different clients are drawn with these probabilities, and their updates are averaged by samples as in FedAvg.
"""

from collections.abc import Mapping

import numpy as np

from coterie.strategies.fedavg import sample_weights
from coterie.strategies.fedsv import FedSV
from coterie.wire.checks import Update
from coterie.wire.randomness import generator

ALPHA = 0.75


class SFedAvg(FedSV):
    name = "s-fedavg"

    def sample(self, server_round: int) -> list[str]:
        clients = self.federation.clients
        if not clients:
            return []
        relevance = np.array([self.value.get(client, 0.0) for client in clients])
        scale = np.abs(relevance).max()
        chances = np.exp(relevance / scale if scale > 0 else relevance)
        rng = generator(self.config.seed, "sample", server_round)
        chosen = rng.choice(len(clients), size=self.share_of(clients), replace=False, p=chances / chances.sum())
        return [clients[i] for i in sorted(chosen)]

    def learn(self, clients: list[str], values: np.ndarray) -> None:
        for client, value in zip(clients, values.tolist(), strict=True):
            self.value[client] = ALPHA * self.value.get(client, 0.0) + (1 - ALPHA) * value

    def averaging_weights(self, updates: Mapping[str, Update]) -> np.ndarray:
        return sample_weights(updates.values())
