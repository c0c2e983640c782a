"""Aggregation that a few bad clients cannot move far, without validation data.

rfa           geometric median of the models, weighted by samples: smoothed Weiszfeld iterations
              (Pillutla et al. 2022, "Robust Aggregation for Federated Learning", arXiv:1912.13445)
krum          the `krum.keep` models closest to their neighbours, averaged (Blanchard et al. 2017)
median        median of every number (Yin et al. 2018)
trimmed-mean  mean of every number without the largest and the smallest share (Yin et al. 2018)
"""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from coterie.strategies.fedavg import FedAvg, sample_weights
from coterie.strategies.method import MethodSettings, setting
from coterie.strategies.rounds import Round, by_name
from coterie.tasks.models import WEIGHTS
from coterie.tasks.parts import as_dtype, average
from coterie.wire.arrays import Parts
from coterie.wire.checks import Update

REACH = 1.3  # usual distances from the geometric median: up to there a model keeps its weight


class RFA(FedAvg):
    name = "rfa"

    class Settings(MethodSettings):
        iterations: int = setting(50, "Most iterations of Weiszfeld's algorithm.", ge=1)
        smoothing: float = setting(1e-6, "Smallest distance that a model is taken to have from the median.", gt=0.0)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        models = [update.parts for update in updates.values()]
        points = np.stack([weights_vector(model) for model in models])
        weights = geometric_median_weights(
            points, sample_weights(updates.values()), self.settings.iterations, self.settings.smoothing
        )
        self.model = self.model | average(models, weights)
        round.tell(weights=by_name(updates, weights))


def geometric_median_weights(
    points: np.ndarray, masses: np.ndarray, iterations: int = 50, smoothing: float = 1e-6
) -> np.ndarray:
    """Weights w, summing to 1, such that w @ points minimises the sum of masses times distances.

    Weiszfeld: w_i ~ mass_i / max(smoothing, |point_i - w @ points|), again and again. Distances come from the points'
    inner products, so that an iteration costs the same however long the points are.
    """
    centred = points - points.mean(axis=0)
    inner = centred @ centred.T
    weights = np.asarray(masses / masses.sum())
    for _ in range(iterations):
        squares = np.diag(inner) - 2 * inner @ weights + weights @ inner @ weights
        pulls = masses / np.maximum(smoothing, np.sqrt(np.maximum(squares, 0.0)))
        new = np.asarray(pulls / pulls.sum())
        if np.abs(new - weights).max() < 1e-9:
            return new
        weights = new
    return weights


def near_median_weights(points: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Those of the geometric median, but less for points that are far from it. The usual distance is the median by mass. Up to
    1.3 times that nothing changes; who is r times as far as that keeps 1/r^4 of its weight. So a point pulls the less the
    further it is, where to the geometric median it pulls the same from any distance."""
    weights = geometric_median_weights(points, masses)
    distances = np.linalg.norm(points - weights @ points, axis=1)
    order = np.argsort(distances)
    reached = np.cumsum(masses[order])
    near = REACH * distances[order[np.searchsorted(reached, reached[-1] / 2)]]
    kept = weights * (near / np.maximum(distances, near)) ** 4 if near else weights
    return np.asarray(kept / kept.sum())


def weights_vector(model: Parts) -> np.ndarray:
    return np.concatenate([model[part].astype(np.float64) for part in WEIGHTS if part in model])


class Krum(FedAvg):
    name = "krum"

    class Settings(MethodSettings):
        malicious: float = setting(0.3, "Share of a round's clients taken to be bad.", ge=0.0, lt=1.0)
        keep: float = setting(
            0.5, "Share of a round's clients whose models are averaged; at least one.", gt=0.0, le=1.0
        )

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        points = np.stack([weights_vector(update.parts) for update in updates.values()])
        bad, kept = (int(np.rint(share * len(updates))) for share in (self.settings.malicious, self.settings.keep))
        best = np.argsort(krum_scores(points, bad))[: max(1, kept)]
        names = list(updates)
        super().aggregate(round, {names[i]: updates[names[i]] for i in sorted(best)})


def krum_scores(points: np.ndarray, bad: int) -> np.ndarray:
    """The sum of squared distances from each point to the n - bad - 2 others that are nearest to it, at least one."""
    squares = np.square(points).sum(axis=1)
    distances = np.sort(squares[:, None] + squares - 2 * points @ points.T, axis=1)  # (n, n), the point itself first
    return np.asarray(distances[:, 1 : max(1, len(points) - bad - 2) + 1].sum(axis=1))


class PerNumber(FedAvg):
    """Every number of the model on its own, from that number in all models."""

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        for part in self.uploads():
            numbers = np.stack([update.parts[part] for update in updates.values()])
            self.model[part] = as_dtype(self.middle(numbers), numbers.dtype)

    @abstractmethod
    def middle(self, numbers: np.ndarray) -> np.ndarray:
        """(clients, size) to (size,)"""


class Median(PerNumber):
    name = "median"

    def middle(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(np.median(numbers, axis=0))


class TrimmedMean(PerNumber):
    name = "trimmed-mean"

    class Settings(MethodSettings):
        cut: float = setting(0.3, "Share of the clients left out at each end.", ge=0.0, lt=0.5)

    def middle(self, numbers: np.ndarray) -> np.ndarray:
        from scipy.stats import trim_mean  # only the server has it

        return np.asarray(trim_mean(numbers, self.settings.cut))
