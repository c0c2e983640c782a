"""The game of overlapping coalitions, played by the server with the clients' answers (games/formation.py).

Errors that are not known are asked for, all of a step in one message per client; every error is asked once. They are means over
few samples: a member refuses a client only if its own error clearly rises, by more than the standard error of the difference.

A client that does not answer, or not well, is out: the others begin again without it, with all that is known already, so that
they ask for little more than what its coalitions would have been without it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.games.formation import Coalition, Formation, Question, Refusal, formation
from coterie.games.overlap import LinearGame
from coterie.strategies.federation import name_order
from coterie.strategies.method import MethodSettings, setting
from coterie.strategies.pfedocf.mixing import clearly_positive
from coterie.wire.errors import Refused

log = logging.getLogger(__name__)

MIXED = ("overlapping", "disjoint", "grand-mixed")  # mechanisms whose personal models are mixtures
FEW = 30  # validation samples below which a client is warned
SHOWN = 1000  # joins and refusals in an event line

Answers = dict[int, np.ndarray]  # client -> losses of the models that it was sent, (models, groups of samples)
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
    trial_rounds: int = setting(
        3, "Measured game: rounds before it in which all clients train a model together, and each its own.", ge=1
    )
    candidates: int = setting(
        10, "Measured game: how many coalitions a client looks at, nearest models first. 0: all.", ge=0
    )


@dataclass
class Played:
    formation: Formation
    losses: dict[Question, np.ndarray]
    asked: dict[int, int] = field(default_factory=dict)  # client -> models that it was sent
    exchanges: int = 0
    left: dict[int, Refused] = field(default_factory=dict)  # client -> why it is out


def play(
    clients: Iterable[int],
    ask: Ask,
    prices: np.ndarray,
    nearest: Callable[[int, Sequence[Coalition]], Sequence[Coalition]] | None = None,
    *,
    disjoint: bool = False,
) -> Played:
    """Coalitions among these clients."""
    players = set(clients)
    losses: dict[Question, np.ndarray] = {}
    played = Played(Formation([]), losses, dict.fromkeys(sorted(players), 0))
    while True:
        steps = formation(
            players,
            lambda client, coalition: float(losses[client, coalition].mean()),
            prices,
            known=losses.__contains__,
            candidates=nearest,
            rises=lambda member, before, after: clearly_positive(losses[member, after] - losses[member, before]),
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
        played.asked[client] += sum(len(coalition) > 1 for coalition in coalitions)
        if client in answers:
            played.losses |= {(client, c): row for c, row in zip(coalitions, answers[client], strict=True)}
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


def coalitions_in_words(clients: Sequence[str], coalitions: Sequence[Sequence[str]]) -> str:
    """One line: how many there are, and who is best off alone."""
    alone = [client for client in clients if not any(client in members for members in coalitions)]
    if len(alone) == len(clients):
        return f"no coalition: each of the {len(clients)} clients is better off with a model of its own"
    number = "1 coalition" if len(coalitions) == 1 else f"{len(coalitions)} coalitions"
    more = f" and {len(alone) - 20} more" if len(alone) > 20 else ""
    return f"{number}; alone are {', '.join(alone[:20])}{more}" if alone else f"{number}; nobody is alone"


def warn_of_few(validation_samples: Mapping[str, int]) -> None:
    few = [client for client, number in validation_samples.items() if number < FEW]
    if few:
        log.warning(
            "%d of %d clients have fewer than %d validation samples (client %s has %d): they choose coalitions by chance to some "
            "extent; raise validation-fraction, or give them more samples",
            len(few), len(validation_samples), FEW, few[0], validation_samples[few[0]],
        )  # fmt: skip


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
