"""FedBABU (Oh et al. 2022, arXiv:2106.06042): the classifier stays as it began, only the extractor is trained and averaged.

A client's own model is the global one, all of it trained further on the client's data.
"""

from dataclasses import replace

from coterie.strategies.fedavg_ft import FedAvgFt
from coterie.strategies.method import MethodSettings, setting
from coterie.wire.arrays import pack
from coterie.wire.messages import Order, Sent, TrainOrder


class FedBABU(FedAvgFt):
    name = "fedbabu"

    class Settings(MethodSettings):
        epochs: int = setting(5, "Epochs of fine-tuning before the personal model is tested.", ge=1)

    def train_order(self, number: int) -> TrainOrder:
        epochs = (self.config.local_epochs,)
        return replace(super().train_order(number), phase_parts=("extractor+norm",), phase_epochs=epochs)

    def uploads(self) -> tuple[str, ...]:
        return tuple(part for part in super().uploads() if part != "classifier")

    def with_shared_parts(self, order: Order, clients: list[str]) -> list[Sent]:
        shared = pack({part: self.model[part] for part in (*self.uploads(), "classifier")})
        return [Sent(order, shared)] * len(clients)
