"""The game of overlapping coalitions, played by the server with the clients' answers (games/formation.py).

Errors that are not known are asked for, all of a step in one message per client; every error is asked once. A client that does
not answer, or not well, is out: the others begin again without it, with all that is known already, so that they ask for little
more than what its coalitions would have been without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.games.formation import Coalition, Formation, Question, Refusal, formation
from coterie.games.overlap import LinearGame
from coterie.strategies.federation import name_order
from coterie.strategies.method import MethodSettings, setting
from coterie.wire.errors import Refused

MIXED = ("overlapping", "disjoint", "grand-mixed")  # mechanisms whose personal models are mixtures
SHOWN = 1000  # joins and refusals in an event line

Answers = dict[int, Sequence[float]]
Ask = Callable[[Mapping[int, list[Coalition]]], tuple[Answers, dict[int, Refused]]]  # -> answers, why others gave none


class OCFSettings(MethodSettings):
    mechanism: Literal["overlapping", "disjoint", "grand", "grand-mixed", "local"] = setting(
        "overlapping",
        "Which coalitions: overlapping, at most one each, all in one (alone, or mixed with the own model), none.",
    )
    game: Literal["auto", "closed", "measured"] = setting(
        "auto",
        "Errors in closed form from least squares, or measured on validation samples; auto: closed for linear tasks.",
    )
    cost: float = setting(0.0, "What a coalition costs a client, in units of its error per training sample.", ge=0.0)
    warmup: int = setting(1, "Measured game: rounds of training alone before it.", ge=1)
    candidates: int = setting(
        10, "Measured game: how many coalitions a client looks at, nearest models first. 0: all.", ge=0
    )


@dataclass
class Played:
    formation: Formation
    errors: dict[Question, float]
    asked: dict[int, int] = field(default_factory=dict)  # client -> models that it was sent
    exchanges: int = 0
    left: dict[int, Refused] = field(default_factory=dict)  # client -> why it is out


def play(
    alone: Mapping[int, float],
    ask: Ask,
    prices: np.ndarray,
    nearest: Callable[[int, Sequence[Coalition]], Sequence[Coalition]] | None = None,
    *,
    disjoint: bool = False,
) -> Played:
    """Coalitions among the clients whose errors `alone` are known."""
    errors: dict[Question, float] = {(client, frozenset({client})): error for client, error in alone.items()}
    played = Played(Formation([]), errors, dict.fromkeys(alone, 0))
    players = set(alone)
    while True:
        steps = formation(
            players,
            lambda client, coalition: errors[client, coalition],
            prices,
            known=errors.__contains__,
            candidates=nearest,
            disjoint=disjoint,
        )
        try:
            while True:
                gone = _answer(next(steps), ask, played)
                if gone:
                    players -= set(gone)
                    break
        except StopIteration as end:
            played.formation = end.value
            return played


def _answer(questions: list[Question], ask: Ask, played: Played) -> dict[int, Refused]:
    """Ask, and write the answers down; those who gave none."""
    wanted: dict[int, list[Coalition]] = {}
    for client, coalition in questions:
        wanted.setdefault(client, []).append(coalition)
    answers, gone = ask(wanted)
    played.exchanges += 1
    played.left |= gone
    for client, coalitions in wanted.items():
        played.asked[client] += len(coalitions)
        if client in answers:
            played.errors |= {(client, c): float(e) for c, e in zip(coalitions, answers[client], strict=True)}
    return gone


class Nearest:
    """The `number` coalitions whose models are nearest to a client's own, from the inner products of all clients' models.

    |theta_i - sum_k w_k theta_k|^2 = G_ii - 2 sum_k w_k G_ik + w' G w,   w_k = n_k / sum n
    """

    def __init__(self, models: np.ndarray, samples: np.ndarray, number: int) -> None:
        self.products = models @ models.T  # (clients, clients)
        self.samples = samples
        self.number = number

    def __call__(self, client: int, coalitions: Sequence[Coalition]) -> Sequence[Coalition]:
        if len(coalitions) <= self.number:
            return coalitions
        return sorted(coalitions, key=lambda coalition: self.distance(client, coalition))[: self.number]

    def distance(self, client: int, coalition: Coalition) -> float:
        members = sorted(coalition)
        weights = self.samples[members] / self.samples[members].sum()
        between = self.products[np.ix_(members, members)]
        products = self.products
        return float(products[client, client] - 2 * weights @ products[client, members] + weights @ between @ weights)


def estimated_game(thetas: np.ndarray, counts: np.ndarray, losses: np.ndarray) -> LinearGame:
    """The game of least squares estimates (games/overlap.py), with one noise variance, from all residuals:

    mu = sum_i n_i loss_i / sum_i (n_i - D)
    """
    noise = float((counts * losses).sum() / (counts - thetas.shape[1]).sum())
    return LinearGame(thetas, counts, noise, estimated=True)


def _why(refusal: Refusal, member: str) -> str:
    if refusal.utility is not None:
        return f"all its coalitions would cost {member} {-refusal.utility:.6g} more than they gain it"
    return f"the error of {member} would rise from {refusal.before:.6g} to {refusal.after:.6g}"


def in_words(names: Sequence[str], found: Formation) -> dict[str, Any]:
    """For the event line: who joined what, and why others are not in the coalitions that stand."""

    def listed(coalition: Coalition) -> list[str]:
        return sorted((names[i] for i in coalition), key=name_order)

    standing = set(found.coalitions)
    refused = [
        {
            "client": names[r.client],
            "coalition": listed(r.coalition),
            "why": _why(r, names[r.member]),
        }
        for r in found.refusals
        if r.coalition in standing
    ]
    joined = [
        {"client": names[j.client], "coalition": listed(j.coalition), "error": j.error, "alone": j.alone}
        for j in found.joins
    ]
    about = {"sweeps": found.sweeps, "joins": len(found.joins), "refusals": len(found.refusals)}
    return {**about, "joined": joined[:SHOWN], "refused": refused[:SHOWN]}
