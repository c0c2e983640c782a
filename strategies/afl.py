"""AFL (Mohri et al. 2019, arXiv:1902.00146): the model that does best for the worst mixture of clients.

    min_w max_lambda  sum_i lambda_i F_i(w)        lambda on the simplex over clients

    w      <- sum_i lambda_i w_i                    as FedAvg, with lambda in place of the shares of samples
    lambda <- P(lambda + gamma F(w))                F at the model that was sent (games/fairness.py)

Both from the lambda before the round. At first all clients have the same. In a round of some clients these share anew what
they have together. Who joins late starts with nothing.
"""

from collections.abc import Mapping
from typing import Any

from coterie.games.fairness import agnostic_weights, shares_of
from coterie.strategies.fair import Fair
from coterie.strategies.method import MethodSettings, setting
from coterie.strategies.rounds import by_name
from coterie.tasks.parts import average
from coterie.wire.checks import Update


class AFL(Fair):
    name = "afl"
    saved = ("mixture",)

    class Settings(MethodSettings):
        step: float = setting(0.01, "How far weights move towards clients with higher losses (gamma).", ge=0.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mixture: dict[str, float] = {}  # lambda

    def begin(self) -> None:
        if not self.mixture:
            clients = self.federation.clients
            self.mixture = {name: 1 / len(clients) for name in clients}

    def weigh(self, updates: Mapping[str, Update]) -> dict[str, float]:
        held = [self.mixture.get(name, 0.0) for name in updates]
        shares = shares_of(held)
        self.model = self.model | average([update.parts for update in updates.values()], shares)
        losses = [update.metrics["start-loss"] for update in updates.values()]
        new = agnostic_weights(held, losses, self.settings.step)
        self.mixture |= by_name(updates, new)
        return by_name(updates, shares)
