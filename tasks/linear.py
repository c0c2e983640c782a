"""The task `linear`: linear regression, generated for any number of clients, all from the seed.

    y = x . theta_i + sigma N(0, 1),    x ~ N(0, I),    theta_i = centre of its group + rho N(0, I)

Clients are dealt to the groups in turn; the centres of the groups are drawn from N(0, I). With few samples it pays to train
with one's group, with many it does not; how many are few depends on rho and sigma. What a client gets does not depend on how
many others there are.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.tasks.samples import DataError, Dataset

FEATURES = 20  # without input-shape
MOST_NUMBERS = 2 * 10**8


@dataclass(frozen=True)
class LinearRecipe:
    """How the data are made: `samples` of every client, or a range like 20-80 from which each draws its number."""

    clients: int = 10
    features: int = FEATURES
    groups: int = 3
    deviation: float = 0.1  # rho
    noise: float = 1.0  # sigma
    samples: str = "100"
    seed: int = 1

    def __post_init__(self) -> None:
        least, most = self.range_of_samples()
        if least > most or least < 2:
            raise DataError(
                f"linear-samples = {self.samples!r}: must be a whole number from 2, or a range like 20-80, the smaller first."
            )
        if self.clients * most * self.features > MOST_NUMBERS:
            raise DataError(
                f"linear-samples = {self.samples!r}: {self.clients} clients with {self.features} features would be more than "
                f"{MOST_NUMBERS:g} numbers; take fewer."
            )

    def range_of_samples(self) -> tuple[int, int]:
        """The least and the largest number of samples of a client; (0, 0) if the text means nothing."""
        found = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", self.samples)
        return (int(found[1]), int(found[2] or found[1])) if found else (0, 0)


def linear_parameters(recipe: LinearRecipe) -> np.ndarray:
    """The true coefficients of all clients, (clients, features)."""
    centres = np.random.default_rng([recipe.seed, 0]).standard_normal((recipe.groups, recipe.features))
    own = [np.random.default_rng([recipe.seed, 1, i]).standard_normal(recipe.features) for i in range(recipe.clients)]
    return np.stack([centres[i % recipe.groups] + recipe.deviation * own[i] for i in range(recipe.clients)])


@lru_cache(maxsize=4)
def load_linear(recipe: LinearRecipe) -> Dataset:
    """The samples of all clients, one after the other; `owner` says whose they are."""
    least, most = recipe.range_of_samples()
    x, y = [], []
    for i, theta in enumerate(linear_parameters(recipe)):
        rng = np.random.default_rng([recipe.seed, 2, i])
        x.append(rng.standard_normal((int(rng.integers(least, most + 1)), recipe.features)))
        y.append(x[-1] @ theta + recipe.noise * rng.standard_normal(len(x[-1])))
    return Dataset(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y).astype(np.float32),
        0,
        np.zeros(recipe.features, np.float32),
        np.ones(recipe.features, np.float32),
        owner=np.repeat(np.arange(recipe.clients), [len(part) for part in y]),
        owners=tuple(f"group {i % recipe.groups}, member {i // recipe.groups}" for i in range(recipe.clients)),
        source="linear",
    )
