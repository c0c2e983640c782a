"""FedProx (Li et al. 2020, arXiv:1812.06127): FedAvg whose clients are pulled back to the global model while they train.

min_w  loss_i(w) + mu/2 |w - theta|^2
"""

from coterie.strategies.fedavg import FedAvg
from coterie.wire.config import Settings
from pydantic import Field


class FedProxSettings(Settings):
    mu: float = Field(1.0, ge=0.0, description="Strength of the pull towards the global model.")


class FedProx(FedAvg):
    name = "fedprox"
    settings_class = FedProxSettings

    def proximal_mu(self) -> float:
        return float(self.settings.mu)
