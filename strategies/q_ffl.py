"""q-FFL by q-FedAvg (Li et al. 2020, arXiv:1905.10497): the higher a client's loss, the more it counts.

    min_w  sum_i F_i(w)^(q+1) / (q+1)

    Delta_i = F_i^q L (w - w_i),   h_i = q F_i^(q-1) |L (w - w_i)|^2 + L F_i^q,   w <- w - sum_i Delta_i / sum_i h_i

with L = 1 / learning-rate and F_i at the model w that was sent (games/fairness.py). q = 0 is FedAvg in which all clients
count the same; the larger q, the nearer to AFL. Running statistics are averaged with the shares of Delta's factors.
"""

from collections.abc import Mapping

import numpy as np

from coterie.games.fairness import q_fair_steps
from coterie.strategies.fair import Fair
from coterie.strategies.method import MethodSettings, setting
from coterie.strategies.rounds import by_name
from coterie.tasks.models import WEIGHTS
from coterie.tasks.parts import average
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update


class QFFL(Fair):
    name = "q-ffl"

    class Settings(MethodSettings):
        q: float = setting(0.1, "How much more clients with a higher loss count; 0: not at all.", ge=0.0)

    def weigh(self, updates: Mapping[str, Update]) -> dict[str, float]:
        models = [update.parts for update in updates.values()]
        losses = [update.metrics["start-loss"] for update in updates.values()]
        away = [distance(self.model, model) for model in models]
        steps = q_fair_steps(losses, away, q=self.settings.q, lipschitz=1 / self.config.learning_rate)
        if steps.any():
            mean, total = average(models, steps), steps.sum()
            for part in [part for part in WEIGHTS if part in mean]:
                before = self.model[part].astype(np.float64)
                mean[part] = (before + total * (mean[part] - before)).astype(np.float32)
            self.model = self.model | mean
        return by_name(updates, steps)


def distance(one: Parts, other: Parts) -> float:
    """|one - other|, over the weights of the latter."""
    squares = [np.sum((one[part].astype(np.float64) - other[part]) ** 2) for part in WEIGHTS if part in other]
    return float(np.sqrt(sum(squares)))
