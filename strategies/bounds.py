"""What one update, and one round, may do to the models: the same two rules for all methods.

Length. Of client i's answer to a training order,

    l_i = | theta_i - x_i |      x_i: what it was sent; of parts that not everybody was sent  | theta_i |
    m   = the lower median of the l_i > 0 of this round, at most 10 times r
    r   = the largest m of the last five rounds; without any, m

and the answer is left out where l_i > 100 max(m, r), of parts that were not sent 10 max(m, r), unless l_i <= | x_i |: an
update that is no longer than the model cannot be what makes it huge. Weights and running statistics each count on their own.
The lower median is an honest client's as long as more than half of the answers are, also of two or three; later a majority
is held by r. Honest clients differ by the number of their steps, and those that learned all they can hardly move: hence 100.

Ruin. After a round that was tested, for every kind of model,

    L = the lower median of the clients' test losses             W = the larger L of the last two tests

the round has ruined the models where L > 5 W and L is above the loss of guessing, or where most tests failed because
numbers were not finite. Then the method is set back to its state after the last test that was good, and goes on with
the next round. What clients keep for themselves stays with them. One client, or any minority, can neither cause this
nor hide it. The first round has nothing to be compared with.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.tasks.models import WEIGHTS
from coterie.wire.arrays import Parts, unpack
from coterie.wire.checks import Update
from coterie.wire.errors import NotFinite, Refused, TooLong
from coterie.wire.messages import Sent, TrainOrder

LONGEST, LONGEST_WHOLE = 100.0, 10.0  # update, model: in lengths of the usual one
GROWTH = 10.0  # of the usual length from one round to the next
WORSE = 5.0  # loss, in losses of the last tests
REMEMBERED, TESTS = 5, 2  # rounds
GROUPS = {"weights": WEIGHTS, "buffers": ("buffers",)}


class Bounds:
    def __init__(self, guess: float = 0.0) -> None:
        self.guess = guess  # the loss of guessing; 0 for regression
        self.usual: dict[str, list[float]] = {}  # kind of length -> of the last rounds
        self.losses: dict[str, list[float]] = {}  # kind of model -> of the last tests
        self.good: dict[str, Any] | None = None  # the method's state after the last test
        self._found: dict[str, float] = {}  # kind of length -> in this round

    # Lengths.

    def too_long(self, sent: Mapping[str, Sent], updates: Mapping[str, Update]) -> dict[str, Refused]:
        """Whose updates are to be left out, and why. What is found is remembered when the round goes on with the others."""
        self._found = {}
        starts = {name: _start(sent[name]) for name in updates}
        refused: dict[str, Refused] = {}
        for group, parts in GROUPS.items():
            there = [part for part in parts if all(part in update.parts for update in updates.values())]
            moved = [part for part in there if all(_has(starts[n], part, u) for n, u in updates.items())]
            whole = [part for part in there if part not in moved]
            for kind, named, longest in ((group, moved, LONGEST), (f"whole {group}", whole, LONGEST_WHOLE)):
                if named and updates:
                    known = {n: {part: starts[n][part] for part in named if part in moved} for n in updates}
                    refused |= self._longest(kind, named, longest, known, updates)
        return refused

    def _longest(
        self, kind: str, parts: list[str], longest: float, starts: Mapping[str, Parts], updates: Mapping[str, Update]
    ) -> dict[str, Refused]:
        lengths = {name: length(update.parts, parts, starts[name]) for name, update in updates.items()}
        before = self.usual.get(kind, [])
        usual = lower_median([value for value in lengths.values() if value > 0])
        if before:
            usual = min(usual, GROWTH * max(before))
        bound = longest * max([usual, *before])
        refused: dict[str, Refused] = {}
        for name, value in lengths.items():
            if value > max(bound, length(starts[name], list(starts[name]))):
                refused[name] = TooLong(
                    f"its {kind} {'moved by' if starts[name] else 'have the length'} {value:.3g}, more than {longest:g} times "
                    f"the usual {bound / longest:.3g}"
                )
        self._found[kind] = usual
        return refused

    def remember(self) -> None:
        for kind, usual in self._found.items():
            if usual:
                self.usual[kind] = [*self.usual.get(kind, []), usual][-REMEMBERED:]

    # Ruin.

    def begin(self, state: Mapping[str, Any]) -> None:
        """What to go back to: this state of the method. Its arrays may be changed in place later on; the rest was made for it."""
        self.good = {**state, "arrays": {name: array.copy() for name, array in state["arrays"].items()}}

    def ruined(
        self, kinds: Sequence[str], tests: Mapping[str, Mapping[str, float]], failed: Mapping[str, Refused]
    ) -> str:
        """Why the tests of a round say that it ruined the models; empty if they do not."""
        broken = sum(isinstance(why, NotFinite) for why in failed.values())
        if broken > len(tests):
            return f"{broken} of {len(tests) + broken} clients found numbers that are not finite"
        found = {}
        for kind in kinds:
            losses = [told[f"{kind}.loss"] for told in tests.values() if f"{kind}.loss" in told]
            if not losses:
                continue
            found[kind], worst = lower_median(losses), max(self.losses.get(kind, []), default=math.inf)
            if found[kind] > max(WORSE * worst, self.guess):
                return f"the median test loss of the {kind} models rose to {found[kind]:.3g}, from at most {worst:.3g} before"
        for kind, loss in found.items():
            self.losses[kind] = [*self.losses.get(kind, []), loss][-TESTS:]
        return ""

    # What a restarted server needs of this.

    def state_dict(self) -> dict[str, Any]:
        good = self.good and {"arrays": self.good["arrays"], "rest": json.dumps(self.good | {"arrays": None})}
        return {"usual": self.usual, "losses": self.losses, "good": good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.usual, self.losses = dict(state["usual"]), dict(state["losses"])
        good = state["good"]
        self.good = json.loads(good["rest"]) | {"arrays": good["arrays"]} if good else None


def _start(sent: Sent) -> Parts:
    """The model from which the client trained, as far as it was sent."""
    if not isinstance(sent.order, TrainOrder) or sent.model is None:
        return {}
    return sent.model if isinstance(sent.model, dict) else unpack(sent.model)


def _has(start: Parts, part: str, update: Update) -> bool:
    return part in start and start[part].shape == update.parts[part].shape


def length(parts: Parts, names: Sequence[str], start: Mapping[str, np.ndarray] | None = None) -> float:
    """The Euclidean length of these parts, or of what they moved by from `start`."""
    total = 0.0
    for name in names:
        away = parts[name].astype(np.float64).ravel()
        if start:
            away -= start[name].ravel()
        total += float(away @ away)
    return math.sqrt(total)


def lower_median(values: Sequence[float]) -> float:
    """The middle one, of an even number the lower of the two in the middle; 0 of none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0
