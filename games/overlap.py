"""Overlapping coalitions: every client may train in several coalitions and mixes their models (pFedOCF).

Every client starts as a coalition of its own. Client i joins coalition C when that lowers its error and hurts nobody:

    err_i(C + i) + k · cost_i < err_i({i})      k = coalitions with others that it is then in, its own grown one, too
    err_j(C + i) ≤ err_j(C)                     for every j in C, and no j's utility falls below zero
    utility_j = err_j({j}) - min_C err_j(C) - cost_j · (coalitions with others that j is in)

The printed algorithm lets all clients ask their favourite at once; that is neither stable nor true to its own rule.
Here clients move one after the other, each through its whole list of coalitions, best first, until nobody moves.
Members only gain and nobody leaves, so this ends, and what it ends in is individually stable by construction: no join that
these rules allow is left. Nobody ends below zero.

`LinearGame` has the errors in closed form; any object with `n` and `error(client, coalition)` plays the same game.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from coterie.games import checks
from coterie.games.checks import FloatArray
from coterie.games.formation import Coalition, Formation, finish, formation, joined_by, shared_after, utility_of
from coterie.games.mixing import mixing_weights


class Game(Protocol):
    """What a coalition game must offer: the error of a client under the model of a coalition it is in."""

    @property
    def n(self) -> int: ...

    def error(self, client: int, coalition: Coalition) -> float: ...


class MeasuredGame:
    """A game whose errors are measured, for example as validation loss; each is asked for once."""

    def __init__(self, n: int, measure: Callable[[int, Coalition], float]) -> None:
        self.n = checks.whole_number("n, the number of clients,", n, least=1)
        self._measure = measure
        self._errors: dict[tuple[int, Coalition], float] = {}

    def error(self, client: int, coalition: Coalition) -> float:
        key = (client, coalition)
        if key not in self._errors:
            value = float(self._measure(client, coalition))
            if not np.isfinite(value):
                raise ValueError(f"error of client {client} in coalition {sorted(coalition)} is {value}: not finite")
            self._errors[key] = value
        return self._errors[key]


class LinearGame:
    """Linear regression with θ̂ = (XᵀX)⁻¹Xᵀy on x ~ N(0, I): expected squared error E|θ̂ - θ_i|² in closed form.

    s_i = noise_i · D / (n_i - D - 1)                      alone (Lemma 1); finite only for n_i > D + 1 samples
    err_i(C) = Σ_k w_k² s_k + |Σ_k w_k θ_k - θ_i|²         in C, w_k = n_k / Σ_C n (Lemma 2)
    err_i(a) = aᵀ M a, M_st = Σ_k w_sk w_tk s_k + b_s · b_t    mixing coalitions s, t, … with bias b (Lemma 3)

    With `estimated` the thetas are least squares estimates. Their squared distances are too large by s_k + s_i on
    average; that excess is taken off, so all errors are unbiased. (Then a small one may come out below zero.)
    """

    def __init__(self, thetas: ArrayLike, samples: ArrayLike, noise: ArrayLike, *, estimated: bool = False) -> None:
        self.thetas = checks.finite_array("thetas", thetas, ndim=2)  # (clients, features)
        self.n, features = self.thetas.shape
        self.samples = _per_client("samples", samples, self.n)
        noises = _per_client("noise", noise, self.n)
        if (noises < 0).any():
            raise ValueError(f"noise is {noises.min()}: a variance must not be negative")
        few = self.samples <= features + 1
        if few.any():
            raise ValueError(
                f"client {np.argmax(few)} has {self.samples[few][0]:g} samples for {features} features: "
                f"the expected error is finite only with at least {features + 2}"
            )
        self.local_errors = noises * features / (self.samples - features - 1)  # s
        self.estimated = estimated
        self._errors: dict[Coalition, FloatArray] = {}

    def error(self, client: int, coalition: Collection[int]) -> float:
        """Expected error of the client under the coalition's model."""
        return float(self.errors(frozenset(coalition))[client])

    def errors(self, coalition: Coalition) -> FloatArray:
        """Expected error of every client, member or not, under the coalition's model: (clients,)."""
        if coalition not in self._errors:
            weights = self._weights([coalition])[0]
            squared = ((weights @ self.thetas - self.thetas) ** 2).sum(axis=1)
            if self.estimated:
                self._errors[coalition] = squared + (2 * weights - 1) * self.local_errors
            else:
                self._errors[coalition] = squared + weights**2 @ self.local_errors
        return self._errors[coalition]

    def mixture_matrix(self, client: int, coalitions: Sequence[Collection[int]]) -> FloatArray:
        """M with the client's expected error aᵀ M a when it mixes the coalitions' models with weights a of sum 1."""
        weights = self._weights(coalitions)  # (coalitions, clients)
        bias = weights @ self.thetas - self.thetas[client]
        own = weights[:, client]
        if self.estimated:
            variance = (own[:, None] + own - 1) * self.local_errors[client]
        else:
            variance = (weights * self.local_errors) @ weights.T
        matrix: FloatArray = bias @ bias.T + variance
        return matrix

    def mixing_weights(self, client: int, coalitions: Sequence[Collection[int]]) -> FloatArray:
        """The weights of the least expected error for the client; list {client} too for a share of its local model."""
        return mixing_weights(self.mixture_matrix(client, coalitions))

    def _weights(self, coalitions: Sequence[Collection[int]]) -> FloatArray:
        weights = np.zeros((len(coalitions), self.n))
        for row, coalition in zip(weights, coalitions, strict=True):
            inside = list(coalition)
            row[inside] = self.samples[inside]
            row /= row.sum()
        return weights


def form_coalitions(game: Game, *, costs: ArrayLike = 0.0, disjoint: bool = False) -> list[Coalition]:
    """The coalitions that stand when no client wants to and may join another; equal coalitions count once.

    costs: what every coalition with others costs a client, in units of its error, for example c_i · n_i.
    disjoint: a client is in one coalition only, and leaves it for a better one if it hurts nobody.
    """
    return form(game, costs=costs, disjoint=disjoint).coalitions


def form(game: Game, *, costs: ArrayLike = 0.0, disjoint: bool = False) -> Formation:
    """`form_coalitions`, with how they came about: sweeps, who joined what, who was refused by whom."""
    game, prices = _checked(game), _costs(costs, game.n)
    return finish(formation(range(game.n), game.error, prices, disjoint=disjoint))


def is_individually_stable(game: Game, coalitions: Collection[Collection[int]], *, costs: ArrayLike = 0.0) -> bool:
    """Whether no join is left: none that lowers a client's error enough to pay for all its coalitions, raises the error of
    no member, and leaves no member below zero."""
    game, prices = _checked(game), _costs(costs, game.n)
    structure = {checks.members("a coalition", coalition, game.n) for coalition in coalitions}
    lonely = set(range(game.n)) - frozenset().union(*structure)
    if lonely:
        raise ValueError(f"client {min(lonely)} is in no coalition: every client is at least in one of its own")
    for client in range(game.n):
        alone = game.error(client, frozenset({client}))
        for coalition in structure:
            if client in coalition:
                continue
            cost = shared_after(client, coalition, structure) * prices[client]
            if not game.error(client, coalition | {client}) + cost < alone or not _accept(game, coalition, client):
                continue
            after = joined_by(client, coalition, structure)
            if not any(_falls_below_zero(game, member, structure, after, prices[member]) for member in coalition):
                return False
    return True


def coalitions_of(client: int, coalitions: Collection[Coalition]) -> list[Coalition]:
    """What the client can mix: itself alone first, then the coalitions it is in."""
    alone = frozenset({client})
    return [alone] + [coalition for coalition in coalitions if client in coalition and coalition != alone]


def _checked(game: Game) -> Game:
    """The game itself if its errors are known to be finite, else one that asks once and checks."""
    return game if isinstance(game, LinearGame | MeasuredGame) else MeasuredGame(game.n, game.error)


def _falls_below_zero(
    game: Game, member: int, before: Collection[Coalition], after: Collection[Coalition], price: float
) -> bool:
    return bool(price) and utility_of(member, after, game.error, price) < min(
        0.0, utility_of(member, before, game.error, price)
    )


def _accept(game: Game, coalition: Coalition, client: int) -> bool:
    grown = coalition | {client}
    if isinstance(game, LinearGame):  # all members in one comparison
        members = list(coalition)
        return bool((game.errors(grown)[members] <= game.errors(coalition)[members]).all())
    return all(game.error(member, grown) <= game.error(member, coalition) for member in coalition)


def _per_client(name: str, values: ArrayLike, n: int) -> FloatArray:
    array = np.asarray(values)
    full = checks.finite_array(name, np.full(n, array) if array.ndim == 0 else array, ndim=1)
    if full.shape != (n,):
        raise ValueError(f"{name} has {full.size} entries for {n} clients: give one number, or one per client")
    return full


def _costs(costs: ArrayLike, n: int) -> FloatArray:
    prices = _per_client("costs", costs, n)
    if (prices < 0).any():
        raise ValueError(f"costs holds {prices.min()}: a cost must not be negative")
    return prices
