"""The game as the server plays it: over messages it is the game in memory, and who leaves does not stop it."""

import numpy as np
import pytest

from coterie.games.overlap import LinearGame, MeasuredGame, form_coalitions
from coterie.strategies.pfedocf.game import Nearest, play


def linear(n=8, seed=0):
    rng = np.random.default_rng(seed)
    thetas = np.repeat([[0.0, 0.0], [3.0, 1.0]], n // 2, axis=0) + 0.1 * rng.normal(size=(n, 2))
    return LinearGame(thetas, rng.integers(8, 40, size=n), 1.0)


def answering(game, asked, silent=()):
    def ask(wanted):
        asked.append(wanted)
        gone = {client: "away" for client in wanted if client in silent}
        return {i: [game.error(i, c) for c in cs] for i, cs in wanted.items() if i not in gone}, gone

    return ask


@pytest.mark.parametrize("disjoint", [False, True])
def test_played_over_messages_it_is_the_game_in_memory(disjoint):
    for seed in range(10):
        game = linear(seed=seed)
        asked = []
        alone = {i: game.error(i, {i}) for i in range(game.n)}
        played = play(alone, answering(game, asked), np.zeros(game.n), disjoint=disjoint)
        expected = MeasuredGame(game.n, game.error)
        assert played.formation.coalitions == form_coalitions(expected, disjoint=disjoint)
        questions = [(i, c) for wanted in asked for i, cs in wanted.items() for c in cs]
        assert len(questions) == len(set(questions)) == sum(played.asked.values())  # nothing is asked twice
        assert played.exchanges == len(asked) and not played.left
        assert not any(len(c) == 1 for _, c in questions)  # errors alone were known


def test_who_leaves_in_the_middle_is_out_and_the_others_play_on():
    game = linear(seed=4)
    for silent in ([0], [3], [0, 5]):
        asked = []
        played = play({i: game.error(i, {i}) for i in range(8)}, answering(game, asked, silent), np.zeros(8))
        assert set(played.left) == set(silent)
        rest = [i for i in range(8) if i not in silent]
        smaller = MeasuredGame(len(rest), lambda i, c, rest=rest: game.error(rest[i], {rest[m] for m in c}))
        expected = [frozenset(rest[i] for i in c) for c in form_coalitions(smaller)]
        assert played.formation.coalitions == expected
        questions = [(i, c) for wanted in asked for i, cs in wanted.items() for c in cs if i not in silent]
        assert len(questions) == len(set(questions))  # what was answered before is not asked again


def test_all_but_one_leave():
    game = linear()
    played = play({i: 1.0 for i in range(8)}, answering(game, [], range(1, 8)), np.zeros(8))
    assert played.formation.coalitions == [frozenset({0})]


def test_nearest_coalitions_by_their_models():
    rng = np.random.default_rng(0)
    models, samples = rng.normal(size=(6, 9)), rng.integers(1, 50, size=6).astype(float)
    nearest = Nearest(models, samples, 2)
    coalitions = [frozenset({1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({1, 2, 3, 4})]
    means = [np.average(models[sorted(c)], axis=0, weights=samples[sorted(c)]) for c in coalitions]
    distances = [np.linalg.norm(mean - models[0]) for mean in means]
    assert [nearest.distance(0, c) for c in coalitions] == pytest.approx(np.square(distances))
    assert list(nearest(0, coalitions)) == [coalitions[i] for i in np.argsort(distances)[:2]]
    assert nearest(0, coalitions[:2]) == coalitions[:2]


def test_fewer_candidates_fewer_questions():
    game = linear(n=20)
    sent = {}
    for number in (3, 20):
        alone = {i: game.error(i, {i}) for i in range(20)}
        nearest = Nearest(game.thetas, game.samples, number)
        played = play(alone, answering(game, []), np.zeros(20), nearest)
        sent[number] = sum(played.asked.values())
        for coalition in played.formation.coalitions:
            assert all(game.error(i, coalition) <= game.error(i, {i}) for i in coalition)
    assert sent[3] < sent[20] / 2
