"""pFedMe (T Dinh et al. 2020, arXiv:2006.08848): personal models near a global one, that is near to all of them.

    theta_i = argmin_theta f_i(theta) + lambda/2 |theta - w_i|^2          a few steps on each batch (tasks/steps.py)
    w_i <- w_i - eta lambda (w_i - theta_i)                               after each batch, from w; eta is `learning-rate`
    w   <- (1 - beta) w + beta sum_i n_i / n  w_i                         on the server

theta_i, as it is after the last batch, is the client's personal model and stays with it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from flwr.app import RecordDict

from coterie.client.participant import Participant
from coterie.client.training import train
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.strategies.rounds import Round
from coterie.tasks.models import WEIGHTS
from coterie.tasks.steps import Moreau
from coterie.wire.checks import Update
from coterie.wire.messages import EvaluateOrder, TrainOrder


@dataclass(frozen=True)
class MoreauOrder(TrainOrder):
    """Train a personal model that is pulled to the one that was sent, and that one towards it.

    The personal model is found by `inner_steps` steps of length `inner_rate` on each batch. It takes the place of the trained
    one among the parts that are kept.
    """

    kind = "train.moreau"
    pull: float = 0.0
    inner_steps: int = 1
    inner_rate: float = 0.0


class PFedMe(FedAvg):
    name = "pfedme"
    private = ("weights",)
    not_private = "takes several steps with each batch, for which no epsilon is counted here"

    class Settings(MethodSettings):
        pull: float = setting(15.0, "Strength lambda of the pull between personal and global model.", gt=0.0)
        inner_steps: int = setting(5, "Steps that find the personal model on each batch.", ge=1)
        inner_rate: float = setting(0.0, "Length of these steps. 0: learning-rate.", ge=0.0)
        beta: float = setting(1.0, "The server's step from the global model to the clients' mean.", gt=0.0)

    def train_order(self, number: int) -> MoreauOrder:
        s = self.settings
        plain = asdict(super().train_order(number)) | {"keep": tuple(self.layout.parts)}
        rate = s.inner_rate or self.config.learning_rate
        return MoreauOrder(**plain, pull=s.pull, inner_steps=s.inner_steps, inner_rate=rate)

    def test_order(self, number: int) -> EvaluateOrder:
        return EvaluateOrder(number, self.kinds, own=True)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        before, beta = self.model, self.settings.beta
        super().aggregate(round, updates)
        if beta != 1:  # of weights only: beyond the mean of running variances there may be negative ones
            for part in [part for part in WEIGHTS if part in self.uploads()]:
                way = self.model[part].astype(np.float64) - before[part]
                self.model[part] = (before[part] + beta * way).astype(np.float32)

    @staticmethod
    @answers(MoreauOrder)
    def train(me: Participant, order: MoreauOrder, records: RecordDict) -> RecordDict:
        return train(me, order, records, Moreau(order.pull, order.inner_steps, order.inner_rate))
