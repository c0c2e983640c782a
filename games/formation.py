"""How coalitions form: clients move one after the other, each through its whole list of coalitions, until nobody moves.

`formation` is a generator. Before it looks at errors that are not known yet it yields the questions, many at a time, so that
they can be asked over a network in one message per client; who has all errors at hand just lets it run. The result is the
same either way: what is asked ahead of time is never used before its turn.

    overlapping   a client joins C if   err(C + i) + k cost < err({i}),   k = coalitions of two and more it is then in,
                  and no member m of C loses:   err_m(C + i) ≤ err_m(C),   and it does not end below zero
    disjoint      it leaves its coalition B for C if that lowers its error, no member of C loses, and nobody left in B does

    utility_m = err_m({m}) - min over its coalitions C of err_m(C) - cost · (its coalitions of two and more)

A mixture is at least as good as the best of what it is mixed of, so who is not below zero by its best coalition is not below
zero in the sense of the paper's eq. 6. Being alone costs nothing. Only a join of its own, or the first guest of a client that was
alone, makes a member pay more; it is asked both times, and errors only fall: nobody ever is below zero.

Every move lowers the mover's error and raises nobody's, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from coterie.games.checks import FloatArray

Coalition = frozenset[int]
Question = tuple[int, Coalition]  # the error of this client under the model of this coalition
Candidates = Callable[[int, Sequence[Coalition]], Sequence[Coalition]]
Rises = Callable[[int, Coalition, Coalition], bool]  # of this client's error, from one coalition to the other


@dataclass(frozen=True)
class Join:
    client: int
    coalition: Coalition  # as it was before
    error: float  # the client's in it
    alone: float


@dataclass(frozen=True)
class Refusal:
    client: int
    coalition: Coalition
    member: int  # who would lose by it
    before: float  # its error
    after: float
    utility: float | None = None  # what it would have after all costs, if that is why


@dataclass
class Formation:
    """What came of it: the coalitions that stand, and how they came about."""

    coalitions: list[Coalition]
    sweeps: int = 0  # in the last of them nobody moved
    joins: list[Join] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def formation(
    players: Iterable[int],
    error: Callable[[int, Coalition], float],
    prices: FloatArray,
    *,
    known: Callable[[Question], bool] | None = None,
    candidates: Candidates | None = None,
    rises: Rises | None = None,
    disjoint: bool = False,
) -> Generator[list[Question], None, Formation]:
    """Play the game among `players`; when it goes on after a yield, `error` must have the answers.

    known: which questions have an answer already; all, if not given. candidates: which of the coalitions that stand a
    client looks at; all, if not given. rises: whether a member's error rises when one coalition becomes the other, where
    errors are not exact; `disjoint` needs exact ones to come to an end.
    """
    game = _Play(sorted(players), error, prices, known, candidates, None if disjoint else rises)
    turn = game.disjoint_turn if disjoint else game.overlapping_turn
    moved = True
    while moved:
        moved = False
        game.found.sweeps += 1
        for client in game.order:
            yield from game.ask_ahead(client)
            moved |= yield from turn(client)
    return game.found


def finish(steps: Generator[list[Question], None, Formation]) -> Formation:
    """Run to the end where all errors are at hand."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Formation = end.value
            return result


def joined_by(client: int, coalition: Coalition, coalitions: Iterable[Coalition]) -> list[Coalition]:
    """The coalitions that stand after the client joined this one; equal ones are one."""
    return list(dict.fromkeys(c | {client} if c == coalition else c for c in coalitions))


def shared_after(client: int, coalition: Coalition, coalitions: Collection[Coalition]) -> int:
    """In how many coalitions it is with others, and pays for, after it joined this one."""
    return sum(client in c and len(c) > 1 for c in coalitions) + (coalition | {client} not in coalitions)


def utility_of(
    client: int, coalitions: Iterable[Coalition], error: Callable[[int, Coalition], float], price: float
) -> float:
    """What the best of its coalitions gains a client over being alone, less the cost of all of them (eq. 6 without mixing)."""
    alone = error(client, frozenset({client}))
    errors = [error(client, c) for c in coalitions if client in c and len(c) > 1]
    return alone - min([alone, *errors]) - price * len(errors)


class _Play:
    def __init__(
        self,
        order: list[int],
        error: Callable[[int, Coalition], float],
        prices: FloatArray,
        known: Callable[[Question], bool] | None,
        candidates: Candidates | None,
        rises: Rises | None,
    ) -> None:
        self.order, self.error, self.prices, self.known, self.candidates = order, error, prices, known, candidates
        self.rises = rises or (lambda member, before, after: error(member, after) > error(member, before))
        self.found = Formation([frozenset({client}) for client in order])
        self.refused: set[Question] = set()  # members' errors do not change while the coalition does not
        self.too_dear: set[Question] = set()

    def wishes(self, client: int) -> Sequence[Coalition]:
        others = [c for c in self.found.coalitions if client not in c and (client, c) not in self.refused]
        return self.candidates(client, others) if self.candidates else others

    def ask_ahead(self, client: int) -> Generator[list[Question], None, None]:
        """What a turn begins with: the client's own errors. If some are not known, those of later turns are asked, too."""
        if self.known and any(not self.known(question) for question in self._own_questions(client)):
            later = self.order[self.order.index(client) :]
            yield [q for one in later for q in self._own_questions(one) if not self.known(q)]

    def _own_questions(self, client: int) -> list[Question]:
        return [(client, c | {client}) for c in [frozenset[int](), *self.wishes(client)]]

    def overlapping_turn(self, client: int) -> Generator[list[Question], None, bool]:
        found, price = self.found, self.prices[client]
        ranked = self._ranked(client)
        alone = self.error(client, frozenset({client}))

        def pays(value: float, coalition: Coalition) -> bool:
            return value < alone and value + shared_after(client, coalition, found.coalitions) * price < alone

        yield from self._ask_members(client, [c for value, c in ranked if pays(value, c)])
        before = len(found.joins)
        for value, coalition in ranked:
            if pays(value, coalition) and self._may_join(client, coalition):
                found.coalitions[:] = joined_by(client, coalition, found.coalitions)
                found.joins.append(Join(client, coalition, value, alone))
        return len(found.joins) > before

    def disjoint_turn(self, client: int) -> Generator[list[Question], None, bool]:
        found, price = self.found, self.prices[client]
        own = next(c for c in found.coalitions if client in c)
        rest = own - {client}
        now = self.error(client, own) + (price if rest else 0.0)
        better = [(value, c) for value, c in self._ranked(client) if value + price < now]
        yield from self._ask_members(client, [c for _, c in better])
        yield from self._ask((m, rest) for m in sorted(rest) if better)
        if better and (loser := self._loser(rest, own, rest)) is not None:  # who is left behind must not lose either
            found.refusals.append(self._refusal(client, better[0][1], loser, own, rest))
            return False
        for value, coalition in better:
            if self._may_join(client, coalition):
                moved = {coalition: coalition | {client}, own: rest}
                found.coalitions[:] = [c for c in (moved.get(c, c) for c in found.coalitions) if c]
                found.joins.append(Join(client, coalition, value, self.error(client, frozenset({client}))))
                return True
        return False

    def _ranked(self, client: int) -> list[tuple[float, Coalition]]:
        return sorted(((self.error(client, c | {client}), c) for c in self.wishes(client)), key=lambda wish: wish[0])

    def _ask_members(self, client: int, coalitions: list[Coalition]) -> Generator[list[Question], None, None]:
        """All that the members of these coalitions must say before the client may join."""
        yield from self._ask((m, grown) for c in coalitions for m in sorted(c) for grown in (c, c | {client}))

    def _ask(self, questions: Iterable[Question]) -> Generator[list[Question], None, None]:
        if self.known and (unknown := [question for question in questions if not self.known(question)]):
            yield unknown

    def _may_join(self, client: int, coalition: Coalition) -> bool:
        grown = coalition | {client}
        if (loser := self._loser(coalition, coalition, grown)) is not None:
            self.refused.add((client, coalition))
            self.found.refusals.append(self._refusal(client, coalition, loser, coalition, grown))
            return False
        payers = [member for member in sorted(coalition) if self.prices[member]]
        after = joined_by(client, coalition, self.found.coalitions) if payers else []
        for member in payers:
            utility = utility_of(member, after, self.error, self.prices[member])
            if utility < min(0.0, utility_of(member, self.found.coalitions, self.error, self.prices[member])):
                self._too_dear(replace(self._refusal(client, coalition, member, coalition, grown), utility=utility))
                return False
        return True

    def _too_dear(self, refusal: Refusal) -> None:
        """Told once, but asked again: a member pays less when two of its coalitions become one."""
        if (refusal.client, refusal.coalition) not in self.too_dear:
            self.too_dear.add((refusal.client, refusal.coalition))
            self.found.refusals.append(refusal)

    def _loser(self, members: Coalition, before: Coalition, after: Coalition) -> int | None:
        """The first of the members that is worse off, if there is one."""
        return next((m for m in sorted(members) if self.rises(m, before, after)), None)

    def _refusal(self, client: int, wish: Coalition, loser: int, before: Coalition, after: Coalition) -> Refusal:
        return Refusal(client, wish, loser, self.error(loser, before), self.error(loser, after))
