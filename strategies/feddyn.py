"""FedDyn (Acar et al. 2021, arXiv:2111.04263): each client's loss is tilted so that all minima meet in the common one.

    theta_i = argmin  f_i(theta) - <g_i, theta> + alpha/2 |theta - theta_0|^2,      g_i <- g_i - alpha (theta_i - theta_0)
    h <- h - alpha/m sum_i (theta_i - theta_0),      theta <- mean_i theta_i - h / alpha

theta_0 is the model that was sent, m the number of all clients, sums go over those that trained, who count alike. g_i stays with
its client, h with the server; both begin at 0. Running statistics are averaged.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.store import OWN, Note
from coterie.client.training import train_from
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.strategies.rounds import Round, by_name
from coterie.tasks.models import WEIGHTS
from coterie.tasks.parts import average
from coterie.tasks.steps import Held
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update
from coterie.wire.messages import TrainOrder

TILT = "tilt"  # topic: g_i


@dataclass(frozen=True)
class DynamicOrder(TrainOrder):
    """Train with the pull and the tilt; the tilt stays here."""

    kind = "train.dynamic"
    alpha: float = 0.0


class FedDyn(FedAvg):
    name = "feddyn"
    private = ("weights",)
    not_private = "keeps sums of updates that were trained without noise"
    saved = ("drift",)

    class Settings(MethodSettings):
        alpha: float = setting(0.01, "Strength of the pull towards the global model, and of the tilt.", gt=0.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drift: Parts = {  # h
            part: np.zeros(value.shape) for part, value in self.layout.parts.items() if part in WEIGHTS
        }

    def train_order(self, number: int) -> DynamicOrder:
        return DynamicOrder(**asdict(super().train_order(number)), alpha=self.settings.alpha)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        alpha, models = self.settings.alpha, [update.parts for update in updates.values()]
        everybody, alike = len(self.federation.connected), np.full(len(models), 1 / len(models))
        mean = average(models, alike)
        for part in self.drift:
            before = self.model[part].astype(np.float64)
            centre = np.mean([model[part].astype(np.float64) for model in models], axis=0)
            self.drift[part] = self.drift[part] - alpha * len(models) / everybody * (centre - before)
            mean[part] = (centre - self.drift[part] / alpha).astype(np.float32)
        self.model = self.model | mean
        round.tell(weights=by_name(updates, alike))

    @staticmethod
    @answers(DynamicOrder)
    def train(me: Participant, order: DynamicOrder, records: RecordDict) -> RecordDict:
        network = me.network()
        kept = me.store.find(OWN, order.round)
        network.fill({**(kept.arrays if kept else {}), **received_parts(records, network)})
        start = network.dump(WEIGHTS)
        note = me.store.recall(TILT, order.round)
        tilt = note.arrays if note else {part: np.zeros_like(value) for part, value in start.items()}
        answer = train_from(me, order, network, Held(on(me, start), order.alpha, on(me, tilt)))
        new = {part: tilt[part] - order.alpha * (value - start[part]) for part, value in network.dump(WEIGHTS).items()}
        me.store.remember(TILT, Note(order.round, new))
        return answer


def on(me: Participant, parts: Parts) -> dict[str, torch.Tensor]:
    return {part: torch.from_numpy(np.array(value)).to(me.device) for part, value in parts.items()}
