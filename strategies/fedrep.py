"""FedRep (Collins et al. 2021, arXiv:2102.07078): as FedPer, but a client trains its classifier first, then the extractor."""

from coterie.strategies.fedper import FedPer
from coterie.wire.config import Settings
from pydantic import Field


class FedRepSettings(Settings):
    head_epochs: int = Field(
        5, ge=1, description="Epochs on the classifier alone, before local-epochs on the extractor."
    )


class FedRep(FedPer):
    name = "fedrep"
    settings_class = FedRepSettings

    def phases(self) -> list[tuple[tuple[str, ...], int]]:
        return [(("classifier",), self.settings.head_epochs), (("extractor", "norm"), self.config.local_epochs)]
