"""Per-FedAvg (Fallah et al. 2020, arXiv:2002.07948): FedAvg of a model that is good after a step on a client's own samples.

    min_w  sum_i f_i(w - alpha grad f_i(w))

Clients take steps of first-order MAML, w <- w - beta grad f_i(w - alpha grad f_i(w; D); D'), with a batch D and another one
D' (tasks/steps.py); beta is `learning-rate`. A client's personal model is the global one after epochs of steps of length
alpha.
"""

from dataclasses import asdict, dataclass

from flwr.app import RecordDict

from coterie.client.participant import Participant
from coterie.client.training import train
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.tasks.steps import Adapted
from coterie.wire.messages import EvaluateOrder, TrainOrder


@dataclass(frozen=True)
class MetaOrder(TrainOrder):
    """Train for what the model is after a step of length `alpha` on the client's own samples."""

    kind = "train.meta"
    alpha: float = 0.0


class PerFedAvg(FedAvg):
    name = "per-fedavg"
    private = ("weights",)
    not_private = (
        "adapts the model on one batch before it takes a step on another, for which no epsilon is counted here"
    )

    class Settings(MethodSettings):
        alpha: float = setting(0.0, "Length of the steps by which a client adapts. 0: learning-rate.", ge=0.0)
        epochs: int = setting(1, "Epochs of such steps before the personal model is tested.", ge=1)

    def alpha(self) -> float:
        return float(self.settings.alpha or self.config.learning_rate)

    def train_order(self, number: int) -> MetaOrder:
        return MetaOrder(**asdict(super().train_order(number)), alpha=self.alpha())

    def test_order(self, number: int) -> EvaluateOrder:
        return EvaluateOrder(number, self.kinds, self.settings.epochs, fine_tune_rate=self.alpha())

    @staticmethod
    @answers(MetaOrder)
    def train(me: Participant, order: MetaOrder, records: RecordDict) -> RecordDict:
        return train(me, order, records, Adapted(order.alpha))
