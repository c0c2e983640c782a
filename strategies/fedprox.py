"""FedProx (Li et al. 2020, arXiv:1812.06127): FedAvg whose clients are pulled back to the global model while they train.

min_w  loss_i(w) + mu/2 |w - theta|^2
"""

from dataclasses import replace

from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, setting
from coterie.wire.messages import TrainOrder


class FedProx(FedAvg):
    name = "fedprox"

    class Settings(MethodSettings):
        mu: float = setting(1.0, "Strength of the pull towards the global model.", ge=0.0)

    def train_order(self, number: int) -> TrainOrder:
        return replace(super().train_order(number), proximal_mu=self.settings.mu)
