"""Aggregation that a few bad clients cannot move far, without validation data.

rfa           geometric median of the models, weighted by samples: smoothed Weiszfeld iterations
              (Pillutla et al. 2022, "Robust Aggregation for Federated Learning", arXiv:1912.13445)
krum          the `krum.keep` models closest to their neighbours, averaged (Blanchard et al. 2017), selected by Flower
median        median of every number (Yin et al. 2018)
trimmed-mean  mean of every number without the largest and the smallest share (Yin et al. 2018), by Flower

Flower's strategies for these own the whole round and take replies as they come; of them we use the functions that
compute, on replies that passed our checks. Of the median there is no function to use: it is one line.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from coterie.strategies.fedavg import FedAvg, average, sample_weights
from coterie.tasks.models import WEIGHTS
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update
from coterie.wire.config import Settings
from coterie.wire.messages import MODEL
from flwr.app import RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from pydantic import Field


class RFASettings(Settings):
    iterations: int = Field(50, ge=1, description="Most iterations of Weiszfeld's algorithm.")
    smoothing: float = Field(
        1e-6, gt=0.0, description="Smallest distance that a model is taken to have from the median."
    )


class RFA(FedAvg):
    name = "rfa"
    settings_class = RFASettings

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        models = [update.parts for update in updates.values()]
        points = np.stack([weights_vector(model) for model in models])
        weights = geometric_median_weights(
            points, sample_weights(updates.values()), self.settings.iterations, self.settings.smoothing
        )
        self.model = self.model | average(models, weights)
        return {"weights": dict(zip(updates, weights.tolist(), strict=True))}


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


def weights_vector(model: Parts) -> np.ndarray:
    return np.concatenate([model[part].astype(np.float64) for part in WEIGHTS if part in model])


class KrumSettings(Settings):
    malicious: float = Field(0.3, ge=0.0, lt=1.0, description="Share of a round's clients taken to be bad.")
    keep: float = Field(
        0.5, gt=0.0, le=1.0, description="Share of a round's clients whose models are averaged; at least one."
    )


class Krum(FedAvg):
    name = "krum"
    settings_class = KrumSettings

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        vectors = {
            name: RecordDict({MODEL: pack({"all": weights_vector(update.parts)})}) for name, update in updates.items()
        }
        number = len(updates)
        selected = select_multikrum(
            list(vectors.values()),
            num_malicious_nodes=round(self.settings.malicious * number),
            num_nodes_to_select=max(1, round(self.settings.keep * number)),
        )
        kept = {name: update for name, update in updates.items() if any(vectors[name] is one for one in selected)}
        return super().aggregate(server_round, kept)


class PerNumber(FedAvg):
    """Every number of the model on its own, from that number in all models."""

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        for part in self.uploads():
            numbers = np.stack([update.parts[part] for update in updates.values()])
            middle = self.middle(numbers)
            dtype = numbers.dtype
            self.model[part] = (np.rint(middle) if np.issubdtype(dtype, np.integer) else middle).astype(dtype)
        return {}

    @abstractmethod
    def middle(self, numbers: np.ndarray) -> np.ndarray:
        """(clients, size) to (size,)"""


class Median(PerNumber):
    name = "median"

    def middle(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(np.median(numbers, axis=0))


class TrimmedMeanSettings(Settings):
    cut: float = Field(0.3, ge=0.0, lt=0.5, description="Share of the clients left out at each end.")


class TrimmedMean(PerNumber):
    name = "trimmed-mean"
    settings_class = TrimmedMeanSettings

    def middle(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(trim_mean(numbers, self.settings.cut))
