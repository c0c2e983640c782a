"""FedRep (Collins et al. 2021, arXiv:2102.07078): as FedPer, but a client trains its classifier first, then the extractor."""

from dataclasses import replace

from coterie.strategies.fedper import FedPer
from coterie.strategies.method import MethodSettings, setting
from coterie.wire.messages import TrainOrder


class FedRep(FedPer):
    name = "fedrep"

    class Settings(MethodSettings):
        head_epochs: int = setting(5, "Epochs on the classifier alone, before local-epochs on the extractor.", ge=1)

    def train_order(self, number: int) -> TrainOrder:
        phases = {"classifier": self.settings.head_epochs, "extractor+norm": self.config.local_epochs}
        return replace(super().train_order(number), phase_parts=tuple(phases), phase_epochs=tuple(phases.values()))
