"""Per-FedAvg (Fallah et al. 2020, arXiv:2002.07948): FedAvg of a model that is good after a step on a client's own samples.

    min_w  sum_i f_i(w - alpha grad f_i(w))

Clients take steps of first-order MAML, w <- w - beta grad f_i(w - alpha grad f_i(w; D); D'), with a batch D and another one
D' (tasks/steps.py); beta is `learning-rate`. A client's personal model is the global one after epochs of steps of length
alpha.
"""

from dataclasses import asdict

from coterie.strategies.fedavg import FedAvg
from coterie.wire.config import Settings
from coterie.wire.messages import TRAIN_META, EvaluateOrder, MetaOrder, content
from flwr.app import RecordDict
from pydantic import Field


class PerFedAvgSettings(Settings):
    alpha: float = Field(0.0, ge=0.0, description="Length of the steps by which a client adapts. 0: learning-rate.")
    epochs: int = Field(1, ge=1, description="Epochs of such steps before the personal model is tested.")


class PerFedAvg(FedAvg):
    name = "per-fedavg"
    settings_class = PerFedAvgSettings
    train_type = TRAIN_META
    private = ("weights",)
    not_private = (
        "adapts the model on one batch before it takes a step on another, for which no epsilon is counted here"
    )

    def alpha(self) -> float:
        return float(self.settings.alpha or self.config.learning_rate)

    def train_order(self, server_round: int) -> MetaOrder:
        return MetaOrder(**asdict(super().train_order(server_round)), alpha=self.alpha())

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        order = EvaluateOrder(server_round, self.kinds, self.settings.epochs, fine_tune_rate=self.alpha())
        return content(order, self.packed(self.uploads()))
