"""Who of a group is served badly by its model: on losses whose truth is known."""

import numpy as np
import pytest

from coterie.games.outsiders import outsiders, surprises

LABELS = 5
HARD = np.array([0.2, 0.5, 1.0, 1.5, 2.0])  # the mean loss of a label


def told(rng: np.random.Generator, counts: np.ndarray, worse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of exponential losses and of their squares, (members, labels)."""
    sums, squares = np.zeros(counts.shape), np.zeros(counts.shape)
    for member, label in np.ndindex(counts.shape):
        drawn = rng.exponential(HARD[label] * worse[member], int(counts[member, label]))
        sums[member, label], squares[member, label] = drawn.sum(), np.square(drawn).sum()
    return sums, squares


def test_the_score_by_hand():
    """One label. The others' losses are 1, 1, 3, 3: mean 2, variance 1. With 5 on two samples: (5 - 4) / sqrt(2 (1 + 2/4))."""
    scores, ratios = surprises(np.array([[5.0], [2.0], [6.0]]), np.array([[13.0], [2.0], [18.0]]), np.full((3, 1), 2.0))
    assert scores[0] == pytest.approx(1 / np.sqrt(2 * 1.5))
    assert ratios[0] == pytest.approx(5 / 4)


def test_members_of_one_kind_are_about_standard_normal_whatever_their_labels():
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(40):
        counts = rng.multinomial(60, rng.dirichlet(np.full(LABELS, 0.3)), 20).astype(float)
        counts[:10] = rng.multinomial(60, [0.2] * LABELS, 10)
        sums, squares = told(rng, counts, np.ones(20))
        assert not outsiders(sums, squares, counts).any()
        scores.append(surprises(sums, squares, counts)[0])
    assert np.mean(scores) == pytest.approx(0, abs=0.15)
    assert np.std(scores) == pytest.approx(1, abs=0.15)


def test_who_has_three_times_the_losses_is_found_and_who_has_hard_labels_is_not():
    rng = np.random.default_rng(1)
    counts = np.full((12, LABELS), 10.0)
    counts[1] = [0, 0, 0, 0, 50]  # twice the mean loss of the others, by its labels
    worse = np.ones(12)
    worse[0] = 3.0
    found = outsiders(*told(rng, counts, worse), counts)
    assert found.tolist() == [True, *[False] * 11]
    order = rng.permutation(12)
    sums, squares = told(np.random.default_rng(1), counts, worse)
    moved = outsiders(sums[order], squares[order], counts[order])
    np.testing.assert_array_equal(moved, outsiders(sums, squares, counts)[order])


@pytest.mark.parametrize("liars", [2, 6, 10])
def test_false_losses_do_not_drive_others_apart(liars):
    rng = np.random.default_rng(2)
    counts = np.full((20, LABELS), 10.0)
    sums, squares = told(rng, counts, np.ones(20))
    sums[:liars], squares[:liars] = 0.0, 0.0
    assert not outsiders(sums, squares, counts).any()
    sums[:liars], squares[:liars] = 500.0, 25000.0
    assert not outsiders(sums, squares, counts)[liars:].any()


def test_of_four_nobody_is_an_outsider_and_small_differences_do_not_count():
    rng = np.random.default_rng(3)
    counts = np.full((4, LABELS), 10.0)
    assert not outsiders(*told(rng, counts, np.array([9.0, 1, 1, 1])), counts).any()
    many = np.full((10, LABELS), 2000.0)
    worse = np.ones(10)
    worse[0] = 1.2  # beyond chance with so many samples, and yet not far worse
    sums, squares = told(rng, many, worse)
    assert surprises(sums, squares, many)[0][0] > 5
    assert not outsiders(sums, squares, many).any()
    assert not outsiders(np.zeros((6, 2)), np.zeros((6, 2)), np.zeros((6, 2))).any()
