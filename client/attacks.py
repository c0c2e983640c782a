"""What a bad client does, for experiments: to its training data before it trains, or to its update before it is sent.

To the data (ShapleyFL, appendix B.3), on a random share `strength` of the training samples where not said otherwise:

    open-set         images become those of another data set, whose classes the task does not have; labels stay. Where
                     there is none, inputs are their own pixels or features in one random order
    closed-set       labels L become (L + 1) mod C
    disguise         the same in training; what is told of the samples is told of the right labels
    data-noise       strength * N(0, 1) is added to the normalised inputs of all samples

To the update V = theta - x, with x the model it started from:

    gradient-poison  V (1 + strength * U[-0.5, 0.5]), number by number
    random-gradient  a random direction, strength times as long as V
    sign-flip        -strength * V
    collude          the same random direction for all bad clients, strength / 10 as long as x
    stale            theta is trained from the initial model of the run instead of x, in every round
    huge             1e6 * strength * V, running statistics too
    nan              NaN

More kinds come from other packages: subclasses of Attack, as entry points of the group `coterie.attacks`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.tasks.training import Samples
from coterie.wire.arrays import Parts
from coterie.wire.attack import GROUP, KINDS, AttackSettings
from coterie.wire.errors import ConfigError
from coterie.wire.installed import load
from coterie.wire.randomness import derive_seed, generator

HUGE = 1e6
COLLUDING_LENGTH = 0.1  # of the common update, in lengths of the model


@dataclass(frozen=True)
class Attack:
    settings: AttackSettings
    seed: int  # of the run
    client: str
    num_classes: int  # 0: regression
    foreign: Callable[[int, np.random.Generator], torch.Tensor] | None = None  # so many images of no class

    @property
    def kind(self) -> str:
        return self.settings.kind

    @property
    def starts_anew(self) -> bool:
        """Whether it trains from the initial model of the run instead of the one it received."""
        return self.kind == "stale"

    def on_samples(self, samples: Samples) -> Samples:
        """The training data, spoiled the same way in every round."""
        if not len(samples):
            return samples
        rng = generator(self.seed, "attack-data", client=self.client)
        if self.kind == "data-noise":
            noise = rng.standard_normal(tuple(samples.x.shape), dtype=np.float32) * np.float32(self.settings.strength)
            return Samples(samples.x + torch.from_numpy(noise).to(samples.x), samples.y)
        if self.kind not in ("open-set", "closed-set", "disguise"):
            return samples
        number = round(min(self.settings.strength, 1.0) * len(samples))
        chosen = torch.from_numpy(rng.permutation(len(samples))[:number]).to(samples.y.device)
        x, y = samples.x.clone(), samples.y.clone()
        if self.kind == "open-set" and self.foreign:
            x[chosen] = self.foreign(number, rng)
        elif self.kind == "open-set":
            flat = x[chosen].flatten(1)
            order = torch.from_numpy(rng.permutation(flat.shape[1])).to(flat.device)
            x[chosen] = flat[:, order].view(x[chosen].shape)
        elif self.num_classes:
            y[chosen] = (y[chosen] + 1) % self.num_classes
        else:
            y[chosen] = -y[chosen]
        return Samples(x, y)

    def on_telling(self, samples: Samples) -> Samples:
        """The samples that it tells of, where a method asks what they are like."""
        return samples if self.kind == "disguise" else self.on_samples(samples)

    def on_update(self, start: Parts, trained: Parts, server_round: int) -> Parts:
        """What is sent instead of `trained`, which came from `start`."""
        sent = dict(trained)
        if self.kind == "huge":
            for part in [part for part in sent if part != "counters"]:
                grown = start[part] + HUGE * self.settings.strength * (trained[part].astype(np.float64) - start[part])
                sent[part] = (np.abs(grown) if part in STATISTICS else grown).astype(np.float32)
        elif self.kind == "nan":
            for part in sent:
                if part in WEIGHTS:
                    sent[part] = np.full_like(sent[part], np.nan)
        else:
            parts = [part for part in WEIGHTS if part in sent]
            if not parts:  # all of the model stays here
                return sent
            old = np.concatenate([start[part].astype(np.float64) for part in parts])
            update = np.concatenate([trained[part].astype(np.float64) for part in parts]) - old
            new = old + self._spoiled(update, old, server_round)
            ends = np.cumsum([sent[part].size for part in parts])[:-1]
            sent |= {part: piece.astype(np.float32) for part, piece in zip(parts, np.split(new, ends), strict=True)}
        return sent

    def _spoiled(self, update: np.ndarray, old: np.ndarray, server_round: int) -> np.ndarray:
        strength = self.settings.strength
        rng = np.random.default_rng(derive_seed(self.seed, "attack-update", server_round, self.client))
        if self.kind == "gradient-poison":
            return update * (1 + strength * rng.uniform(-0.5, 0.5, update.shape))
        if self.kind == "random-gradient":
            return _direction(rng, update.size) * strength * np.linalg.norm(update)
        if self.kind == "collude":
            common = generator(self.seed, "attack-collude", server_round)
            return _direction(common, update.size) * strength * COLLUDING_LENGTH * np.linalg.norm(old)
        return -strength * update if self.kind == "sign-flip" else update


def attack_of(kind: str) -> type[Attack]:
    """What does this harm: the class above, or one of another package, which overrides what it does otherwise."""
    if kind in KINDS:
        return Attack
    found = load(GROUP, kind)
    if not (isinstance(found, type) and issubclass(found, Attack)):
        raise ConfigError(f"attack.kind = {kind!r}: its entry point is no subclass of coterie.client.attacks.Attack")
    return found


def _direction(rng: np.random.Generator, size: int) -> np.ndarray:
    vector = rng.standard_normal(size)
    return np.asarray(vector / np.linalg.norm(vector))
