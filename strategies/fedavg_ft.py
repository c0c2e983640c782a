"""FedAvg with fine-tuning: the personal model is the global one, trained further on the client's own data."""

from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, setting
from coterie.wire.messages import EvaluateOrder


class FedAvgFt(FedAvg):
    name = "fedavg-ft"

    class Settings(MethodSettings):
        epochs: int = setting(1, "Epochs of fine-tuning before the personal model is tested.", ge=1)

    def test_order(self, number: int) -> EvaluateOrder:
        return EvaluateOrder(number, self.kinds, self.settings.epochs)
