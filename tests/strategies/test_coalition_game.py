"""The game as the server plays it: over messages it is the game in memory, and who leaves does not stop it."""

import numpy as np
import pytest

from coterie.games.overlap import LinearGame, MeasuredGame, form_coalitions
from coterie.strategies.pfedocf.game import Nearest, coalitions_in_words, play, warn_of_few


def linear(n=8, seed=0):
    rng = np.random.default_rng(seed)
    thetas = np.repeat([[0.0, 0.0], [3.0, 1.0]], n // 2, axis=0) + 0.1 * rng.normal(size=(n, 2))
    return LinearGame(thetas, rng.integers(8, 40, size=n), 1.0)


def exact(errors):
    """Losses of two samples that agree: nothing is uncertain."""
    return np.repeat(np.array(errors)[:, None], 2, axis=1)


def answering(game, asked, silent=()):
    def ask(wanted):
        asked.append(wanted)
        gone = {client: "away" for client in wanted if client in silent}
        return {i: exact([game.error(i, c) for c in cs]) for i, cs in wanted.items() if i not in gone}, gone

    return ask


@pytest.mark.parametrize("disjoint", [False, True])
def test_played_over_messages_it_is_the_game_in_memory(disjoint):
    for seed in range(10):
        game = linear(seed=seed)
        asked = []
        played = play(range(game.n), answering(game, asked), np.zeros(game.n), disjoint=disjoint)
        expected = MeasuredGame(game.n, game.error)
        assert played.formation.coalitions == form_coalitions(expected, disjoint=disjoint)
        questions = [(i, c) for wanted in asked for i, cs in wanted.items() for c in cs]
        assert len(questions) == len(set(questions))  # nothing is asked twice
        assert sum(played.asked.values()) == len(questions) - game.n  # own models are with their clients
        assert played.exchanges == len(asked) and not played.left


def test_who_leaves_in_the_middle_is_out_and_the_others_play_on():
    game = linear(seed=4)
    for silent in ([0], [3], [0, 5]):
        asked = []
        played = play(range(8), answering(game, asked, silent), np.zeros(8))
        assert set(played.left) == set(silent)
        rest = [i for i in range(8) if i not in silent]
        smaller = MeasuredGame(len(rest), lambda i, c, rest=rest: game.error(rest[i], {rest[m] for m in c}))
        expected = [frozenset(rest[i] for i in c) for c in form_coalitions(smaller)]
        assert played.formation.coalitions == expected
        questions = [(i, c) for wanted in asked for i, cs in wanted.items() for c in cs if i not in silent]
        assert len(questions) == len(set(questions))  # what was answered before is not asked again


def test_all_but_one_leave():
    game = linear()
    played = play(range(8), answering(game, [], range(1, 8)), np.zeros(8))
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
        nearest = Nearest(game.thetas, game.samples, number)
        played = play(range(20), answering(game, []), np.zeros(20), nearest)
        sent[number] = sum(played.asked.values())
        for coalition in played.formation.coalitions:
            assert all(game.error(i, coalition) <= game.error(i, {i}) for i in coalition)
    assert sent[3] < sent[20] / 2


@pytest.mark.parametrize(("spread", "joined"), [(0.5, True), (0.05, False)])
def test_a_member_refuses_only_what_clearly_raises_its_error(spread, joined):
    """Client 1 gains; for client 0 the mean rises by .1, with a standard error of .25 or of .025."""

    def ask(wanted):
        tables = {
            (0, frozenset({0})): [1.0] * 5,
            (1, frozenset({1})): [1.0] * 5,
            (0, frozenset({0, 1})): 1.1 + spread * np.array([-1, 1, -1, 1, 0]) * np.sqrt(1.25),
            (1, frozenset({0, 1})): [0.5] * 5,
        }
        return {i: np.array([tables[i, c] for c in cs]) for i, cs in wanted.items()}, {}

    found = play([0, 1], ask, np.zeros(2)).formation
    assert (frozenset({0, 1}) in found.coalitions) == joined and bool(found.refusals) == (not joined)


def test_who_is_alone_is_said_in_words():
    assert (
        coalitions_in_words(["a", "b"], [])
        == "no coalition: each of the 2 clients is better off with a model of its own"
    )
    assert coalitions_in_words(["a", "b", "c"], [["a", "c"]]) == "1 coalition; alone are b"
    assert coalitions_in_words(["a", "b", "c"], [["a", "c"], ["b", "c"]]) == "2 coalitions; nobody is alone"


def test_few_validation_samples_are_warned_of_once(caplog):
    warn_of_few({"a": 30, "b": 100})
    assert not caplog.records
    warn_of_few({"a": 30, "b": 29, "c": 2})
    (record,) = caplog.records
    assert "2 of 3 clients have fewer than 30 validation samples (client b has 29)" in record.getMessage()
