"""How much privacy a client has spent on its data, over all rounds, restarts and runs that share its state directory.

The history is a list of (noise multiplier, sampling rate, steps). It is written down before the steps are taken, so that a
crash can only count too much, and a repeated round counts again: its samples were used again. Epsilon comes from the
accountant of Opacus for Rényi differential privacy.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from coterie.client.store import Note, Store
from coterie.wire.errors import ConfigError

TOPIC = "privacy"
ANY_ROUND = 2**62
MOST_NOISE = 1000.0
Entry = tuple[float, float, int]  # noise multiplier, sampling rate, steps


@dataclass(frozen=True)
class Accountant:
    history: tuple[Entry, ...] = ()

    @classmethod
    def load(cls, store: Store) -> "Accountant":
        note = store.recall(TOPIC, ANY_ROUND)
        if note is None:
            return cls()
        return cls(tuple((float(noise), float(rate), int(steps)) for noise, rate, steps in note.arrays["history"]))

    def save(self, store: Store) -> None:
        store.remember(TOPIC, Note(0, {"history": np.array(self.history, np.float64).reshape(-1, 3)}))

    def after(self, noise: float, rate: float, steps: int) -> "Accountant":
        """With `steps` more steps; equal neighbours are one entry."""
        if not steps:
            return self
        if self.history and self.history[-1][:2] == (noise, rate):
            return Accountant((*self.history[:-1], (noise, rate, self.history[-1][2] + steps)))
        return Accountant((*self.history, (noise, rate, steps)))

    def epsilon(self, delta: float) -> float:
        from opacus.accountants import RDPAccountant

        accountant = RDPAccountant()
        accountant.history = list(self.history)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about orders at the ends of their range: the bound holds all the same
            return float(accountant.get_epsilon(delta))

    def noise_for(self, target: float, rate: float, steps: int, delta: float) -> float:
        """The least noise multiplier (to about half a per cent) that keeps epsilon within `target` after `steps` more steps."""

        def spent(noise: float) -> float:
            return self.after(noise, rate, steps).epsilon(delta)

        if self.history and 0.98 * target <= spent(self.history[-1][0]) <= target:
            return self.history[-1][0]
        high = 1.0
        while spent(high) > target:
            high *= 2
            if high > MOST_NOISE:
                raise ConfigError(
                    f"privacy.target-epsilon = {target:g}: cannot be met with delta = {delta:g}, {self.epsilon(delta):.3g} spent "
                    f"already and {steps} more steps; raise it, or take fewer rounds or epochs"
                )
        low = high / 2 if high > 1 else 0.0
        while high - low > 0.005 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if middle < 0.05 or spent(middle) > target else (low, middle)
        return high
