"""pFedSV's relevance, choice of collaborators and weights."""

import itertools
import math

import numpy as np
import pytest
from coterie.games.relevance import aggregation_weights, choose_collaborators, update_relevance
from hypothesis import given
from hypothesis import strategies as st


def test_relevance_moves_towards_the_new_values():
    before = np.array([0.0, 1.0, -1.0, 0.5])
    after = update_relevance(before, [1, 3], [2.0, -0.5])
    np.testing.assert_allclose(after, [0.0, 0.2 * 1 + 0.8 * 2, -1.0, 0.2 * 0.5 - 0.8 * 0.5])
    np.testing.assert_array_equal(before, [0.0, 1.0, -1.0, 0.5])
    np.testing.assert_array_equal(update_relevance(before, [0], [9.0], alpha=1.0), before)


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
        (lambda: aggregation_weights([0.1, math.nan], [1.0, 1.0], 0), r"values\[1\] is nan"),
        (lambda: aggregation_weights([0.1], [1.0, 1.0], 0), "1 values but 2 distances"),
        (lambda: aggregation_weights([0.1], [-1.0], 0), r"distances\[0\] is -1.0"),
        (lambda: aggregation_weights([0.1], [1.0], 1), "own is 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
