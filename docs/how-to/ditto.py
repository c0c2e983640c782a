"""Ditto (Li et al. 2021, arXiv:2012.04221): a global model by FedAvg, and beside it a personal model held near to it.

    v_i  ->  argmin_v  F_i(v) + mu/2 |v - w|^2

w is the global model of the round. v_i starts where it was, is trained after w, and never leaves its client.
"""

from dataclasses import asdict, dataclass

from flwr.app import RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.training import train
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.tasks.training import train as train_network
from coterie.wire.messages import EvaluateOrder, TrainOrder


@dataclass(frozen=True)
class DittoOrder(TrainOrder):
    """Train the model that was sent, and upload it; train the own model beside it, and keep that."""

    kind = "train.my_ditto"
    mu: float = 0.0


class Ditto(FedAvg):
    name = "my-ditto"

    class Settings(MethodSettings):
        mu: float = setting(0.1, "Strength of the pull of a personal model to the global one.", ge=0.0)

    def train_order(self, number: int) -> DittoOrder:
        return DittoOrder(**asdict(super().train_order(number)), mu=self.settings.mu)

    def test_order(self, number: int) -> EvaluateOrder:
        return EvaluateOrder(number, self.kinds, own=True)

    @staticmethod
    @answers(DittoOrder)
    def train(me: Participant, order: DittoOrder, records: RecordDict) -> RecordDict:
        answer = train(me, order, records)  # w_i, as in FedAvg
        network = me.network()
        w = received_parts(records, network)
        network.fill({**w, **me.store.own_parts(order.round)})  # v_i; before its first training it is w
        sgd, rng = me.sgd(proximal_mu=order.mu), me.rng("ditto", order.round)
        train_network(network, me.train_samples(), sgd, epochs=me.config.local_epochs, rng=rng, origin=w)
        me.store.keep(order.round, network.dump())
        return answer
