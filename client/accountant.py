"""How much privacy a client has spent on its data, over all rounds, restarts and runs that share its state directory.

The history is a list of (noise multiplier, sampling rate, steps). It is written down before the steps are taken, so that a
crash can only count too much, and a repeated round counts again: its samples were used again, with other noise. Where the noise
is the same again, and so what is told (privacy.py), each of the messages that a round counts is counted once. Epsilon comes from
the accountant of Opacus for Rényi differential privacy.
"""

import warnings
from dataclasses import dataclass, field

import numpy as np

from coterie.client.store import PRIVACY, Note, Store
from coterie.wire.errors import ConfigError

TOPIC = PRIVACY
ANY_ROUND = 2**62
MOST_NOISE = 1000.0
Entry = tuple[float, float, int]  # noise multiplier, sampling rate, steps


@dataclass(frozen=True)
class Accountant:
    history: tuple[Entry, ...] = ()
    before: tuple[tuple[str, tuple[Entry, ...]], ...] = field(default=(), compare=False)
    # what this round counted, in this order, and the history before each

    @classmethod
    def load(cls, store: Store, same_noise_in: int | None = None, purpose: str = "training") -> "Accountant":
        """`same_noise_in` is the round, if all of its noise is the same when it is repeated."""
        note = store.recall(TOPIC, ANY_ROUND)
        if note is None:
            return cls((), ((purpose, ()),))
        history = _entries(note.arrays.get("history"))
        if same_noise_in is None or note.facts.get("in") != _place(store, same_noise_in):
            return cls(history, ((purpose, history),))
        counted = note.facts.get("counted", "").split()
        if purpose not in counted:
            counted, history_then = [*counted, purpose], history
        else:
            counted, history_then = counted[: counted.index(purpose) + 1], _entries(note.arrays.get(purpose))
            if TOPIC not in store.written:  # another message than the one that counted this
                history = history_then
        before = {name: _entries(note.arrays.get(name)) for name in counted} | {purpose: history_then}
        return cls(history, tuple(before.items()))

    def save(self, store: Store, same_noise_in: int | None = None) -> None:
        tables = {name: np.array(entries, np.float64).reshape(-1, 3) for name, entries in self.before}
        tables["history"] = np.array(self.history, np.float64).reshape(-1, 3)
        facts = {"in": _place(store, same_noise_in), "counted": " ".join(name for name, _ in self.before)}
        store.remember(TOPIC, Note(0, tables, facts))

    def after(self, noise: float, rate: float, steps: int) -> "Accountant":
        """With `steps` more steps; equal neighbours are one entry."""
        if not steps:
            return self
        if self.history and self.history[-1][:2] == (noise, rate):
            return Accountant((*self.history[:-1], (noise, rate, self.history[-1][2] + steps)), self.before)
        return Accountant((*self.history, (noise, rate, steps)), self.before)

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


def _place(store: Store, server_round: int | None) -> str:
    return f"round {server_round} of run {store.run}"


def _entries(table: np.ndarray | None) -> tuple[Entry, ...]:
    return tuple((float(noise), float(rate), int(steps)) for noise, rate, steps in (() if table is None else table))
