"""pFedMe (T Dinh et al. 2020, arXiv:2006.08848): personal models near a global one, that is near to all of them.

    theta_i = argmin_theta f_i(theta) + lambda/2 |theta - w_i|^2          a few steps on each batch (tasks/steps.py)
    w_i <- w_i - eta lambda (w_i - theta_i)                               after each batch, from w; eta is `learning-rate`
    w   <- (1 - beta) w + beta sum_i n_i / n  w_i                         on the server

theta_i, as it is after the last batch, is the client's personal model and stays with it.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from coterie.strategies.fedavg import FedAvg
from coterie.tasks.models import WEIGHTS
from coterie.wire.checks import Update
from coterie.wire.config import Settings
from coterie.wire.messages import TRAIN_MOREAU, EvaluateOrder, MoreauOrder, content
from flwr.app import RecordDict
from pydantic import Field


class PFedMeSettings(Settings):
    pull: float = Field(15.0, gt=0.0, description="Strength lambda of the pull between personal and global model.")
    inner_steps: int = Field(5, ge=1, description="Steps that find the personal model on each batch.")
    inner_rate: float = Field(0.0, ge=0.0, description="Length of these steps. 0: learning-rate.")
    beta: float = Field(1.0, gt=0.0, description="The server's step from the global model to the clients' mean.")


class PFedMe(FedAvg):
    name = "pfedme"
    settings_class = PFedMeSettings
    train_type = TRAIN_MOREAU
    private = ("weights",)
    not_private = "takes several steps with each batch, for which no epsilon is counted here"

    def train_order(self, server_round: int) -> MoreauOrder:
        s = self.settings
        plain = asdict(super().train_order(server_round)) | {"keep": tuple(self.layout.parts)}
        rate = s.inner_rate or self.config.learning_rate
        return MoreauOrder(**plain, pull=s.pull, inner_steps=s.inner_steps, inner_rate=rate)

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        before, beta = self.model, self.settings.beta
        told = super().aggregate(server_round, updates)
        if beta != 1:  # of weights only: beyond the mean of running variances there may be negative ones
            for part in [part for part in WEIGHTS if part in self.uploads()]:
                way = self.model[part].astype(np.float64) - before[part]
                self.model[part] = (before[part] + beta * way).astype(np.float32)
        return told

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        return content(EvaluateOrder(server_round, self.kinds, own=True), self.packed(self.uploads()))
