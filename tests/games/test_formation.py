"""How coalitions form: in batches as at once, disjoint ones too, for any table of errors."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games.formation import formation
from coterie.games.overlap import LinearGame, form, form_coalitions, is_individually_stable


class TableGame:
    """Every error is an independent random number: no structure that an algorithm could lean on."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def error(self, client, coalition):
        key = [self.seed, client, sum(1 << member for member in coalition)]
        return float(np.random.default_rng(key).random() * 4 / (3 + len(coalition)))


def in_batches(game, **settings):
    """Play with a table that only holds what was asked for: looking anything else up fails."""
    answers, batches = {}, []
    steps = formation(
        range(game.n),
        lambda client, coalition: answers[client, coalition],
        np.zeros(game.n),
        known=answers.__contains__,
        **settings,
    )
    try:
        while True:
            questions = next(steps)
            assert questions and not set(questions) & set(answers) and len(set(questions)) == len(questions)
            assert all(client in coalition for client, coalition in questions)
            batches.append(questions)
            answers |= {question: game.error(*question) for question in questions}
    except StopIteration as end:
        return end.value, batches


@given(st.integers(1, 7), st.integers(0, 10_000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_asked_in_batches_or_at_hand_it_is_the_same_game(n, seed, disjoint):
    game = TableGame(n, seed)
    asked, batches = in_batches(game, disjoint=disjoint)
    at_hand = form(game, disjoint=disjoint)
    assert asked == at_hand
    first = {client for client, _ in batches[0]}
    assert first == set(range(n))  # the first step asks everybody at once


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_stable_whatever_the_errors_are(n, seed):
    game = TableGame(n, seed)
    coalitions = form_coalitions(game)
    assert is_individually_stable(game, coalitions)
    for i in range(n):
        for c in coalitions:
            gains = i not in c and game.error(i, c | {i}) < game.error(i, frozenset({i}))
            assert not gains or any(game.error(m, c | {i}) > game.error(m, c) for m in c)


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_disjoint_coalitions_are_a_partition_that_nobody_can_improve_without_harm(n, seed):
    game = TableGame(n, seed)
    coalitions = form_coalitions(game, disjoint=True)
    assert sorted(client for c in coalitions for client in c) == list(range(n))
    for own in coalitions:
        assert all(game.error(i, own) <= game.error(i, frozenset({i})) for i in own)
        for i in own:
            rest = own - {i}
            for c in coalitions:
                if c == own or not game.error(i, c | {i}) < game.error(i, own):
                    continue
                losers = [m for m in c if game.error(m, c | {i}) > game.error(m, c)]
                assert losers + [m for m in rest if game.error(m, rest) > game.error(m, own)]


def test_refusals_and_joins_say_what_happened():
    found = form(TableGame(6, 3))
    game = TableGame(6, 3)
    assert found.joins and found.refusals
    for refusal in found.refusals:
        assert refusal.member in refusal.coalition and refusal.client not in refusal.coalition
        assert refusal.after == game.error(refusal.member, refusal.coalition | {refusal.client})
        assert refusal.before == game.error(refusal.member, refusal.coalition) < refusal.after
    rebuilt = [frozenset({i}) for i in range(6)]
    for join in found.joins:  # the moves, one after the other, lead to what stands
        assert join.error < join.alone
        rebuilt[rebuilt.index(join.coalition)] = join.coalition | {join.client}
        rebuilt = list(dict.fromkeys(rebuilt))
    assert rebuilt == found.coalitions


def linear(n=8, seed=0):
    rng = np.random.default_rng(seed)
    thetas = np.repeat([[0.0, 0.0], [3.0, 1.0]], n // 2, axis=0) + 0.1 * rng.normal(size=(n, 2))
    return LinearGame(thetas, rng.integers(8, 40, size=n), 1.0)


def test_a_cost_counts_for_disjoint_coalitions_too():
    game = linear()
    assert len(form_coalitions(game, disjoint=True)) < 8
    assert form_coalitions(game, disjoint=True, costs=100.0) == [frozenset({i}) for i in range(8)]
