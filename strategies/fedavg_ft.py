"""FedAvg with fine-tuning: the personal model is the global one, trained further on the client's own data."""

from coterie.strategies.fedavg import FedAvg
from coterie.wire.config import Settings
from pydantic import Field


class FedAvgFtSettings(Settings):
    epochs: int = Field(1, ge=1, description="Epochs of fine-tuning before the personal model is tested.")


class FedAvgFt(FedAvg):
    name = "fedavg-ft"
    settings_class = FedAvgFtSettings

    def fine_tune_epochs(self) -> int:
        return int(self.settings.epochs)
