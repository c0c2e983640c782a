"""Samplers of the Shapley value. Each takes a memo and a generator and returns values and standard errors.

Permutations (`mc`, and truncated `tmc`; Castro et al. 2009, Ghorbani & Zou 2019): the value of i is its mean marginal
    v(P + i) - v(P) over random orders, P being the players strictly before i.
Differences to a pivot j (`dmc`; ShapleyFL, Sun et al. 2023, Algorithm 3):
    φ_i - φ_j = 1/(n-1) Σ_s E[ v(S + i) - v(S + j) ],  S uniform among the C(n-2, s) coalitions of s others.
Complementary contributions (`cc`; Zhang et al. 2023):
    φ_i = 1/n Σ_k E[ v(S) - v(N - S) ],  S uniform among the C(n-1, k-1) coalitions of k players with i.

What is drawn, and when the budget ends the drawing, depends on coalitions and never on utilities (except in `tmc`), so
every coalition of a stratum is equally likely to count, and a budget biases nothing. `mc` and `dmc` are unbiased; `cc`
fits a game to its own draws, a bias that makes up a few per cent of its squared error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from coterie.games.checks import FloatArray
from coterie.games.memo import Memo
from coterie.games.smooth import smooth_game

Result = tuple[FloatArray, FloatArray]
Differences = tuple[dict[int, dict[int, float]], list[FloatArray]]


def least_budget(method: str, n: int) -> int:
    """With so many evaluations a method has values of n players, whatever it draws; `auto` has them with those of `mc`."""
    needed = {
        "exact": 1 << n,
        "dmc": 2 + n * (n - 1),
        "cc": 2 + sum(2 * math.ceil(n / size) for size in range(1, n // 2 + 1)),
    }
    return min(needed.get(method, n + 1), 1 << n)


def permutations(memo: Memo, rng: np.random.Generator, *, antithetic: bool, tolerance: float | None = None) -> Result:
    """Mean marginals over random orders; with a tolerance an order is cut off once v is that close to v(N)."""
    n, rows = memo.n, []
    # Only truncated orders can stay free of new coalitions for ever.
    for _ in itertools.count() if tolerance is None else range(max(memo.budget, 1000)):
        order = rng.permutation(n).tolist()
        orders = [order, order[::-1]] if antithetic else [order]
        if tolerance is None:
            if not memo.affords(mask for one in orders for mask in _prefixes(one)):
                break
            walks = [_marginals(memo, one) for one in orders]
        else:
            cut = [_truncated_marginals(memo, one, tolerance) for one in orders]
            walks = [walk for walk in cut if walk is not None]
            if len(walks) < len(orders):
                break
        rows.append(np.mean(walks, axis=0))
        if memo.complete:
            break
    if not rows:
        least = 2 * n if antithetic else least_budget("mc", n)
        raise ValueError(f"budget={memo.budget} does not pay for one order of {n} players: give at least {least}")
    marginals = np.array(rows)  # (orders, players)
    spread = marginals.std(axis=0, ddof=1) if len(rows) > 1 else np.full(n, np.nan)
    return marginals.mean(axis=0), spread / math.sqrt(len(rows))


def _prefixes(order: list[int]) -> Iterator[int]:
    mask = 0
    yield mask
    for player in order:
        mask |= 1 << player
        yield mask


def _marginals(memo: Memo, order: list[int]) -> FloatArray:
    utilities = np.array([memo(mask) for mask in _prefixes(order)])
    row = np.empty(memo.n)
    row[order] = np.diff(utilities)
    return row


def _truncated_marginals(memo: Memo, order: list[int], tolerance: float) -> FloatArray | None:
    """Marginals in this order, zero from where v is within tolerance · |v(N) - v(∅)| of v(N); None: budget spent."""
    if not memo.affords([0, memo.grand]):
        return None
    before, row = memo(0), np.zeros(memo.n)
    close = tolerance * abs(memo(memo.grand) - before)
    mask = 0
    for player in order:
        if abs(memo(memo.grand) - before) < close:
            break
        mask |= 1 << player
        if not memo.affords([mask]):
            return None
        row[player] = memo(mask) - before
        before = memo(mask)
    return row


def pivot_differences(memo: Memo, rng: np.random.Generator, *, pivot: int) -> Result:
    """Differences to the pivot's value, stratum by stratum; the values follow from Σ φ = v(N) - v(∅)."""
    n = memo.n
    others = [player for player in range(n) if player != pivot]
    differences, variances = np.zeros(n), np.zeros(n)
    for size, (drawn, turns) in enumerate(_draw_differences(memo, rng, pivot, others)):
        count = np.array([len(drawn[player]) for player in others])
        differences[others] += [sum(drawn[player].values()) / len(drawn[player]) for player in others]
        # φ is the differences less their mean: what all differences of a turn share drops out
        shared = np.array(turns)  # (turns, players)
        effects = shared - shared.mean(axis=1, keepdims=True)
        spread = effects.var(axis=0, ddof=1) if len(turns) > 1 else np.full(n, np.nan)
        left = 1 - count.mean() / math.comb(n - 2, size)
        variances += np.where(left <= 0, 0.0, spread * left / count.mean())
    differences /= n - 1
    base = (memo(memo.grand) - memo(0) - differences.sum()) / n
    return base + differences, np.sqrt(variances) / (n - 1)


def _draw_differences(memo: Memo, rng: np.random.Generator, pivot: int, others: list[int]) -> list[Differences]:
    """For every size: each player's distinct coalitions S → v(S + player) - v(S + pivot), and whole turns as rows.

    A turn draws one order of the others; a player's S is the first ones in it beside itself. So most coalitions of a
    turn serve several players: n evaluations instead of 2(n-1).
    """
    n = memo.n
    draws: list[Differences] = [({player: {} for player in others}, []) for _ in range(n - 1)]
    for turn in itertools.count():
        live = [
            size
            for size, (drawn, _) in enumerate(draws)
            if any(len(one) < math.comb(n - 2, size) for one in drawn.values())
        ]
        if not live:
            break  # every stratum is exhausted, that is known exactly
        for size in live:
            order = rng.permutation(others).tolist()
            row = np.zeros(n)
            for player in order:
                mask = _mask([other for other in order[: size + 1] if other != player][:size])
                joined, replaced = mask | 1 << player, mask | 1 << pivot
                if not memo.affords([0, memo.grand, joined, replaced]):
                    if turn == 0:
                        least = least_budget("dmc", n)
                        raise ValueError(f"budget={memo.budget} does not fill every stratum: give dmc at least {least}")
                    return draws
                row[player] = draws[size][0][player][mask] = memo(joined) - memo(replaced)
            draws[size][1].append(row)
    return draws


def complementary_contributions(memo: Memo, rng: np.random.Generator) -> Result:
    """Mean complementary contributions by size, with what single players and a smooth game explain taken out as known.

    c_i = v(i) - v(N - i), centred, is known after the first turn. Within a size u(S) = v(S) - v(N - S) follows β·c(S).
    Through the rest goes a smooth game (games/smooth.py). What is averaged is only how far it is off: in coalitions
    that were not drawn as far as it is off in a drawn one that it has not seen.
    """
    n = memo.n
    draws = _draw_complements(memo, rng)
    single = np.array([draws[0].get(1 << player, -draws[0].get(memo.grand ^ 1 << player, 0.0)) for player in range(n)])
    centred = single - single.mean()
    members = [np.array([[mask >> player & 1 for player in range(n)] for mask in drawn], dtype=bool) for drawn in draws]
    slopes, rests = [], []
    for size, (inside, drawn) in enumerate(zip(members, draws, strict=True), start=1):
        contribution, explained = np.array(list(drawn.values())), inside @ centred
        x, y = explained, contribution
        if 2 * size == n:  # coalition and complement have the same size: both are draws of the one stratum
            x, y = np.concatenate([x, -x]), np.concatenate([y, -y])
        slopes.append(_slope(x, y, size * (n - size) / (n * (n - 1)) * (centred @ centred)))
        # what all coalitions of a size have in common is with everyone as often as against
        rests.append(contribution - slopes[-1] * explained - (y - slopes[-1] * x).mean())
    smooth = smooth_game(np.vstack(members), np.concatenate(rests))
    ends = np.cumsum([len(rest) for rest in rests])[:-1]
    total, variances = n * smooth.strata, np.zeros(n)
    for size, inside, slope, seen, unseen in zip(
        itertools.count(1), members, slopes, np.split(smooth.inside, ends), np.split(smooth.outside, ends)
    ):
        if 2 * size == n:
            sides = [
                (np.vstack([inside, ~inside]), np.concatenate([seen, -seen]), np.concatenate([unseen, -unseen]), size)
            ]
        else:
            sides = [(inside, seen, unseen, size), (~inside, -seen, -unseen, n - size)]
        for belongs, off_seen, off_unseen, taken in sides:
            means, spreads = _stratum(belongs, off_seen, off_unseen, math.comb(n - 1, taken - 1))
            total += means + slope * centred * (n - taken) / (n - 1)
            variances += spreads
    # The stratum of all n players is v(N) - v(∅) for everyone; it is what the values must sum to.
    values = total / n
    return values + (memo(memo.grand) - memo(0) - values.sum()) / n, np.sqrt(variances) / n


def _draw_complements(memo: Memo, rng: np.random.Generator) -> list[dict[int, float]]:
    """For sizes 1 to n/2: coalition → v(S) - v(N - S). A turn cuts a random order of all players into blocks of that
    size, so that every player is in a drawn coalition of every size."""
    n = memo.n
    draws: list[dict[int, float]] = [{} for _ in range(n // 2)]
    pairs = [math.comb(n, size) // (2 if 2 * size == n else 1) for size in range(1, n // 2 + 1)]
    for turn in itertools.count():
        live = [size for size, drawn in enumerate(draws, start=1) if len(drawn) < pairs[size - 1]]
        if not live:
            break  # every stratum is exhausted, that is known exactly
        for size in live:
            order = rng.permutation(n).tolist()
            for start in range(0, n, size):
                mask = _mask(order[place % n] for place in range(start, start + size))
                complement = memo.grand ^ mask
                if 2 * size == n:
                    mask, complement = min(mask, complement), max(mask, complement)
                if not memo.affords([0, memo.grand, mask, complement]):
                    if turn == 0:
                        least = least_budget("cc", n)
                        raise ValueError(f"budget={memo.budget} does not cover every size: give cc at least {least}")
                    return draws
                draws[size - 1][mask] = memo(mask) - memo(complement)
    return draws


def _slope(x: FloatArray, y: FloatArray, prior: float) -> float:
    """Least squares slope of y on x, with one draw's weight on slope 1: few draws cannot give a wild slope, and an
    additive game, whose slope is 1, is met exactly."""
    x, y = x - x.mean(), y - y.mean()
    weight = float(x @ x) + prior
    return float(x @ y + prior) / weight if weight > 0 else 1.0


def _stratum(belongs: NDArray[np.bool_], seen: FloatArray, unseen: FloatArray, population: int) -> Result:
    """Each player's mean over the `population` of which it drew some, without repeats, and the variance of that mean.

    A drawn coalition counts with `seen`, one that was not drawn with the mean of `unseen`. The spread is pooled over
    players; it is nan when no player was drawn twice.
    """
    count = belongs.sum(axis=0)
    shares = belongs / np.maximum(count, 1)  # (draws, players)
    means = unseen @ shares
    freedom = np.maximum(count - 1, 0).sum()
    deviations = np.where(belongs, unseen[:, None] - means, 0.0)
    pooled = (deviations**2).sum() / freedom if freedom else np.nan
    left = 1 - count / population
    variances = np.where(left <= 0, 0.0, pooled * left / np.maximum(count, 1))
    return seen @ shares * (1 - left) + means * left, variances


def _mask(players: Iterable[int]) -> int:
    return sum(1 << player for player in players)
