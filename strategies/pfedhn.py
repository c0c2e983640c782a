"""pFedHN (Shamsian et al. 2021, arXiv:2103.04628): a hypernetwork makes each client's model from a vector learned for it.

    theta_i = HN(v_i)               sent to client i, which trains it to theta_i'
    HN, v  <- HN, v - rate Adam( (d theta_i / d (HN, v))^T (theta_i - theta_i') )        for all clients of the round together

v_i is the column for client i of the first layer of the hypernetwork (strategies/hypernetworks.py). A round ends with
`pfedhn.server-steps` steps: the first is the line above, the others go on towards theta_i' and cost no message. The personal
model is HN(v_i) after that.
"""

from collections.abc import Iterable

import numpy as np

from coterie.strategies.hypernetworks import STEPS, HypernetworkMethod, HypernetworkSettings
from coterie.strategies.method import setting
from coterie.strategies.rounds import Round
from coterie.wire.arrays import Parts
from coterie.wire.messages import EvaluateOrder, Sent, TrainOrder


class PFedHN(HypernetworkMethod):
    name = "pfedhn"
    private = ("dp-sgd", "weights")

    class Settings(HypernetworkSettings):
        server_steps: int = setting(5, STEPS, ge=1)  # more of them, and a model hardly differs from the client's own

    def round(self, round: Round) -> None:
        sent: dict[str, Parts] = {}
        order = TrainOrder(round.number, upload=self.uploads())

        def orders(clients: list[str]) -> Iterable[Sent]:
            sent.update(zip(clients, self.made(clients), strict=True))
            return [Sent(order, sent[client]) for client in clients]

        updates = round.train(orders)
        points = np.array([self.corner(name) for name in updates])
        change = {
            part: np.stack([sent[name][part] - update.parts[part] for name, update in updates.items()])
            for part in self.uploads()
        }
        round.tell(phase="hypernetwork", way_left=self.follow(round.number, points, change, step=1.0))

    def made(self, clients: list[str]) -> list[Parts]:
        """The models of these clients."""
        rows = self.hyper().models(np.array([self.corner(name) for name in clients]))
        return [{part: of_all[i] for part, of_all in rows.items()} for i in range(len(clients))]

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        order = EvaluateOrder(round.number, self.kinds, measure=True)
        return [Sent(order, model) for model in self.made(clients)]
