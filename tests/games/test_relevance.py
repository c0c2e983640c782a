"""pFedSV's relevance, choice of collaborators and weights."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.games.relevance import (
    aggregation_weights,
    ask_next,
    choose_collaborators,
    faded,
    gain_weights,
    update_relevance,
)
from coterie.games.shapley import shapley_from_table


def test_relevance_moves_towards_the_new_values():
    before = np.array([0.0, 1.0, -1.0, 0.5])
    after = update_relevance(before, [1, 3], [2.0, -0.5])
    np.testing.assert_allclose(after, [0.0, 0.2 * 1 + 0.8 * 2, -1.0, 0.2 * 0.5 - 0.8 * 0.5])
    np.testing.assert_array_equal(before, [0.0, 1.0, -1.0, 0.5])
    np.testing.assert_array_equal(update_relevance(before, [0], [9.0], alpha=1.0), before)


def test_the_first_judgement_sets_the_score():
    np.testing.assert_allclose(update_relevance([0.0, 0.0, 1.0], [0, 2], [3.0, 3.0], first=[0]), [3.0, 0.0, 2.6])


def test_scores_fade_with_the_rounds():
    np.testing.assert_allclose(faded([1.0, -2.0, 3.0, 0.0], [0, 1, 2, math.inf]), [1.0, -1.8, 2.43, 0.0])


def test_gain_weights_by_hand():
    np.testing.assert_array_equal(gain_weights([]), [1])
    np.testing.assert_array_equal(gain_weights([-0.1, 0.0]), [1, 0, 0])
    np.testing.assert_allclose(gain_weights([0.3, -0.2]), [1 / 2, 1 / 2, 0])
    # two help, one thrice as much: 1/3 is the own share, 2/3 are theirs
    np.testing.assert_allclose(gain_weights([0.3, -0.2, 0.1]), [1 / 3, 1 / 2, 0, 1 / 6])
    np.testing.assert_allclose(gain_weights([1e-320, 1e-320]), [1 / 3, 1 / 3, 1 / 3])


def test_a_model_that_lowers_nothing_gets_no_weight():
    """Own model .97 right, another .50, their average .90. In the paper's game, which starts from nothing, the other is
    worth something and would get 22 % of the weight though it costs 7 points."""
    own, other, average = 0.97, 0.50, 0.90
    paper = shapley_from_table([0.0, own, other, average])
    np.testing.assert_allclose(aggregation_weights(paper, [1.0, 1.0], own=0), [0.685, 0.215] / np.array(0.9))
    losses = -np.log([own, other, average])
    np.testing.assert_array_equal(gain_weights([losses[0] - losses[2]]), [1, 0])


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_gain_weights_of_a_game_by_brute_force(others, seed):
    """Values as mean marginals over all orders, shares one by one."""
    losses = np.random.default_rng(seed).uniform(0, 2, size=1 << others)  # of the own model with every coalition
    values = np.zeros(others)
    for order in itertools.permutations(range(others)):
        mask = 0
        for player in order:
            values[player] += losses[mask] - losses[mask | 1 << player]
            mask |= 1 << player
    values /= math.factorial(others)
    if others > 1:
        np.testing.assert_allclose(shapley_from_table(losses[0] - losses), values, atol=1e-12)
    weights = gain_weights(values)
    helpful = [j for j in range(others) if values[j] > 0]
    assert weights.sum() == pytest.approx(1) and weights[0] == pytest.approx(1 / (len(helpful) + 1))
    for j in range(others):
        share = values[j] / sum(values[i] for i in helpful) if j in helpful else 0.0
        assert weights[1 + j] == pytest.approx(share * len(helpful) / (len(helpful) + 1))


def rounds_to_find_all(relevant, n, k, rng):
    """Rounds until every relevant client was downloaded, when its value is positive and all others' negative."""
    relevance, downloaded = np.zeros(n), np.zeros(n, dtype=bool)
    for number in range(1, 4 * n):
        chosen = choose_collaborators(relevance, downloaded, 0, k, rng)
        assert 0 not in chosen and len(set(chosen.tolist())) == len(chosen) <= k
        relevance = update_relevance(relevance, chosen, [0.1 if j in relevant else -0.1 for j in chosen])
        downloaded[chosen] = True
        if downloaded[list(relevant)].all():
            return number
    raise AssertionError("never found")


@pytest.mark.parametrize("n", range(2, 9))
def test_every_relevant_client_is_found_within_the_bound(n):
    """Every sign pattern, every k: ⌈(n-m-1)/k⌉ + 1 rounds; for m > k no choice of k per round beats ⌈(n-1)/k⌉."""
    rng = np.random.default_rng(n)
    for pattern in itertools.product([False, True], repeat=n - 1):
        relevant = {j for j, good in enumerate(pattern, start=1) if good}
        m = len(relevant)
        for k in range(1, n):
            bound = math.ceil((n - m - 1) / k) + 1 if m <= k else math.ceil((n - 1) / k)
            assert m == 0 or rounds_to_find_all(relevant, n, k, rng) <= bound


def test_no_deadlock_in_the_case_that_stops_the_printed_rule():
    """20 clients, 2 relevant, k = 5."""
    for seed in range(50):
        assert rounds_to_find_all({3, 17}, 20, 5, np.random.default_rng(seed)) <= 5


def test_k_shrinks_to_the_positive_ones_after_everybody_was_seen():
    scores, seen = np.array([9.0, 0.1, -0.2, 0.4, 0.0, -0.1]), np.ones(6, dtype=bool)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(choose_collaborators(scores, seen, 0, 5, rng), [3, 1])
    np.testing.assert_array_equal(choose_collaborators(scores, seen, 0, 1, rng), [3])
    np.testing.assert_array_equal(choose_collaborators(-scores, seen, 3, 5, rng), [2, 5])
    # nobody positive: still one, the best
    np.testing.assert_array_equal(choose_collaborators(-np.abs(scores), seen, 0, 5, rng), [4])
    # one unseen: k stays, the unseen one first
    seen[2] = False
    np.testing.assert_array_equal(choose_collaborators(scores, seen, 0, 3, rng), [2, 3, 1])


def test_first_choice_is_random_and_seeded():
    start = np.zeros(30), np.zeros(30, dtype=bool), 4, 5
    first, again, other = (choose_collaborators(*start, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert set(first.tolist()) != set(other.tolist())


def test_alone_there_is_nobody_to_choose():
    assert choose_collaborators([0.0], [False], 0, 5, np.random.default_rng(0)).size == 0


# --- half for what helped, half for the unknown -------------------------------------------------------------------------


class Asker:
    """A client that asks by `ask_next`, and is told what the others are worth to it."""

    def __init__(self, others, k, rng):
        self.scores, self.judged = np.zeros(others), np.full(others, -math.inf)
        self.k, self.rng, self.now = k, rng, 0

    def ask(self, worth, rounds=1):
        ages = self.now - self.judged
        chosen = ask_next(faded(self.scores, ages), ages, self.k, self.rng).tolist()
        assert len(set(chosen)) == len(chosen) <= self.k
        self.now += rounds
        if chosen:
            first = [j for j in chosen if np.isinf(self.judged[j])]
            before = faded(self.scores, self.now - self.judged)
            updated = update_relevance(before, chosen, [worth(j) for j in chosen], first=first)
            self.scores[chosen], self.judged[chosen] = updated[chosen], self.now
        return chosen


@pytest.mark.parametrize("n", range(2, 9))
def test_a_few_clients_are_all_found_within_the_bound(n):
    """n <= 2k + 1: every sign pattern, the bound of the paper's choice."""
    rng = np.random.default_rng(n)
    for pattern in itertools.product([False, True], repeat=n - 1):
        m = sum(pattern)
        for k in range(n // 2, n):
            bound = math.ceil((n - m - 1) / k) + 1 if m <= k else math.ceil((n - 1) / k)
            asker = Asker(n - 1, k, rng)
            found = {j for _ in range(bound) for j in asker.ask(lambda j, good=pattern: 0.1 if good[j] else -0.1)}
            assert found >= {j for j, good in enumerate(pattern) if good}


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32))
def test_nobody_is_excluded_for_good(others, k, seed):
    """Whatever they are found to be worth: after five rounds a client waits for its turn, and those before it take at most
    as many rounds as the places for them allow. With a single place, one who is asked as the best either helped, and the
    next round is for those who wait, or is no longer among the best: for each who waited there are at most two such rounds,
    and one for each who was among the best before."""
    rng = np.random.default_rng(seed)
    asker = Asker(others, k, rng)
    turns = math.ceil(others / (k // 2)) if k > 1 else 4 * others
    last = np.zeros(others)
    for now in range(1, 60):
        last[asker.ask(lambda j: rng.normal())] = now
        assert (now - last).max() <= 5 + turns


def test_two_that_take_turns_at_being_the_best_do_not_keep_the_others_waiting():
    """Each time one of them is asked, it helps a little less than the other did."""
    asker, worth = Asker(8, 1, np.random.default_rng(0)), 1.0
    asked = []
    for _ in range(60):
        worth *= 0.7
        asked += asker.ask(lambda j, worth=worth: worth if j < 2 else -1.0)
    assert min(asked.count(j) for j in range(8)) >= 3


def test_one_bad_round_does_not_exclude_a_true_collaborator():
    """Worth -.0001 when it was first judged, and a lot ever after."""
    asker = Asker(20, 5, np.random.default_rng(0))
    worth = [-0.0001]
    rounds = [3 in asker.ask(lambda j: -0.1 if j != 3 else worth.pop() if worth else 1.0) for _ in range(40)]
    assert rounds.index(True) + 16 < 40 and sum(rounds) >= 20


def test_a_hundred_clients_use_what_they_learned():
    """10 participations, ten rounds apart, x 5 downloads; 36 of 99 share a label. Before, 10 of 3,000 were repeats."""
    repeats, helpful, downloads = 0, 0, 0
    for seed in range(20):
        asker, seen = Asker(99, 5, np.random.default_rng(seed)), set()
        for _ in range(10):
            chosen = asker.ask(lambda j: 0.1 if j < 36 else -0.1, rounds=10)
            downloads += len(chosen)
            repeats += len(seen & set(chosen))
            helpful += sum(j < 36 for j in chosen)
            seen |= set(chosen)
    assert downloads == 20 * 50
    assert 0.4 < repeats / downloads < 0.6  # at most 3 of 5, and new ones are met in every round
    assert helpful / downloads > 0.6


def test_places_by_hand():
    """Others 0 to 7: four positive scores, two never judged, two that are negative, one of them not judged for long."""
    scores = np.array([0.4, 0.3, 0.2, 0.1, 0.0, 0.0, -0.1, -0.2])
    ages = np.array([1, 0, 1, 6, math.inf, math.inf, 9, 4])
    rng = np.random.default_rng(0)

    def chosen(k, scores=scores, ages=ages):
        return ask_next(scores, ages, k, rng).tolist()

    assert chosen(5)[:3] == [0, 1, 2] and set(chosen(5)[3:]) == {4, 5}
    assert chosen(6)[:3] == [0, 1, 2] and set(chosen(6)[3:5]) == {4, 5} and chosen(6)[5] == 6
    assert set(chosen(7)[4:6]) == {4, 5} and chosen(7)[6] == 6  # the best four, two unknown, the oldest
    assert set(chosen(2)) == {4, 5}  # they fit
    assert chosen(1, ages=np.where(ages == 0, 1, ages)) == [0]  # they do not; none of the best was the last to be asked
    assert chosen(1)[0] in (4, 5)
    known = np.where(np.isinf(ages), 1, ages)
    assert chosen(5, ages=known) == [0, 1, 2, 6, 3]  # the oldest first
    assert chosen(5, ages=np.ones(8)) == [0, 1, 2, 3]  # nobody waits: all that helped, and nobody else
    assert chosen(5, scores=-np.ones(8), ages=np.ones(8)) == []


def test_weights_by_hand():
    np.testing.assert_allclose(aggregation_weights([0.2, 0.1, -0.4], [1.0, 0.25, 1.0], own=0), [1 / 3, 2 / 3, 0])
    np.testing.assert_array_equal(aggregation_weights([-0.2, 0.0, -0.4], [1.0, 2.0, 3.0], own=1), [0, 1, 0])
    # a distance of zero counts as the smallest positive one
    np.testing.assert_allclose(aggregation_weights([0.1, 0.1, 0.1], [0.0, 2.0, 4.0], own=0), [0.4, 0.4, 0.2])
    np.testing.assert_allclose(aggregation_weights([0.1, 0.3], [0.0, 0.0], own=0), [0.25, 0.75])


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1e6)), min_size=1, max_size=8), st.data())
def test_weights_are_a_distribution_without_harmful_members(members, data):
    values, distances = np.array(members).T
    own = data.draw(st.integers(0, len(values) - 1))
    weights = aggregation_weights(values, distances, own)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    if (values > 0).any():
        assert (weights[values <= 0] == 0).all()
    else:
        assert weights[own] == 1


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: update_relevance([0.0, 0.0], [2], [1.0]), "member is 2"),
        (lambda: update_relevance([0.0, 0.0], [0, 0], [1.0, 1.0]), "one value per distinct member"),
        (lambda: update_relevance([0.0, 0.0], [0], [1.0, 1.0]), "do not match"),
        (lambda: update_relevance([0.0, 0.0], [0], [math.nan]), r"values\[0\] is nan"),
        (lambda: update_relevance([0.0, 0.0], [0], [1.0], alpha=1.5), "alpha is 1.5"),
        (lambda: choose_collaborators([0.0, 0.0], [False], 0, 1, RNG), "one flag per client"),
        (lambda: choose_collaborators([0.0, 0.0], [False] * 2, 2, 1, RNG), "own is 2"),
        (lambda: choose_collaborators([0.0, 0.0], [False] * 2, 0, 0, RNG), "k is 0"),
        (lambda: choose_collaborators([0.0, 0.0], [False] * 2, 0, 1, None), "rng is None"),
        (lambda: faded([0.0, 1.0], [1.0]), "ages must be 2 numbers"),
        (lambda: ask_next([0.0, 1.0], [1.0, -1.0], 1, RNG), "ages must be 2 numbers"),
        (lambda: ask_next([0.0, 1.0], [1.0, math.nan], 1, RNG), "ages must be 2 numbers"),
        (lambda: ask_next([0.0, 1.0], [1.0, 1.0], 0, RNG), "k is 0"),
        (lambda: ask_next([0.0, 1.0], [1.0, 1.0], 1, None), "rng is None"),
        (lambda: gain_weights([0.1, math.nan]), r"values\[1\] is nan"),
        (lambda: aggregation_weights([0.1, math.nan], [1.0, 1.0], 0), r"values\[1\] is nan"),
        (lambda: aggregation_weights([0.1], [1.0, 1.0], 0), "1 values but 2 distances"),
        (lambda: aggregation_weights([0.1], [-1.0], 0), r"distances\[0\] is -1.0"),
        (lambda: aggregation_weights([0.1], [1.0], 1), "own is 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
