"""The tables of all coalitions against one coalition at a time."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games import coalitions
from coterie.games.coalitions import coalition_averages, coalition_scores
from coterie.games.shapley import shapley_from_table


def masks(n):
    for size in range(1, n + 1):
        for members in itertools.combinations(range(n), size):
            yield sum(1 << member for member in members), list(members)


@given(st.integers(1, 6), st.integers(0, 2**32), st.booleans())
@settings(max_examples=40, deadline=None)
def test_averages_one_by_one(n, seed, weighted):
    rng = np.random.default_rng(seed)
    outputs, weights = rng.normal(size=(n, 3, 2)), rng.uniform(1, 9, size=n)
    table = coalition_averages(outputs, weights=weights if weighted else None)
    assert table.shape == (1 << n, 3, 2)
    assert (table[0] == 0).all()
    for mask, members in masks(n):
        expected = np.average(outputs[members], axis=0, weights=weights[members] if weighted else None)
        np.testing.assert_allclose(table[mask], expected, atol=1e-12)


@pytest.mark.parametrize("block", [1, 1000, 1 << 18])
def test_scores_of_averaged_linear_classifiers(block, monkeypatch):
    """The accuracy and loss of the averaged classifier itself, whatever the size of the blocks."""
    monkeypatch.setattr(coalitions, "BLOCK", block)
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(57, 8)), rng.integers(0, 5, size=57)
    classifiers, biases = rng.normal(size=(4, 5, 8)), rng.normal(size=(4, 5))
    logits = np.einsum("sf,mcf->msc", features, classifiers) + biases[:, None]
    scores = coalition_scores(logits, labels)
    assert scores.accuracy[0] == 0 and scores.loss[0] == pytest.approx(math.log(5))
    for mask, members in masks(4):
        answers = features @ classifiers[members].mean(axis=0).T + biases[members].mean(axis=0)
        assert scores.accuracy[mask] == pytest.approx(np.mean(answers.argmax(axis=1) == labels))
        probabilities = np.exp(answers) / np.exp(answers).sum(axis=1, keepdims=True)
        assert scores.loss[mask] == pytest.approx(-np.log(probabilities[np.arange(57), labels]).mean())


def test_weights_and_large_logits():
    logits = np.array([[[1000.0, 0.0]], [[-1000.0, 0.0]]])
    scores = coalition_scores(logits, [0], weights=[3, 1])
    np.testing.assert_allclose(scores.accuracy, [0, 1, 0, 1])
    np.testing.assert_allclose(scores.loss, [math.log(2), 0, 1000, 0], atol=1e-12)


def test_tables_are_what_shapley_reads():
    """Members 0, 1, 2, 5 averaged, v = -(mean - 1)², v(∅) = -4: the values are known."""
    means = coalition_averages([0.0, 1.0, 2.0, 5.0])
    table = -((means - 1) ** 2)
    table[0] = -4
    np.testing.assert_allclose(shapley_from_table(table), np.array([329, 293, 193, -491]) / 108, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coalition_averages(3.0), r"shape \(\)"),
        (lambda: coalition_averages([[]]), "one array per member"),
        (lambda: coalition_averages([1.0, math.nan]), r"outputs\[1\] is nan"),
        (lambda: coalition_averages(np.zeros(21)), "at most 20 members"),
        (lambda: coalition_averages([1.0, 2.0], weights=[1.0]), "2 positive numbers"),
        (lambda: coalition_averages([1.0, 2.0], weights=[1.0, 0.0]), "2 positive numbers"),
        (lambda: coalition_averages([1.0, 2.0], weights=[1.0, math.nan]), r"weights\[1\] is nan"),
        (lambda: coalition_scores(np.zeros((2, 3)), [0, 1, 1]), "logits must have 3 axes"),
        (lambda: coalition_scores(np.zeros((2, 3, 4)), [0, 1]), "labels must be 3 whole numbers"),
        (lambda: coalition_scores(np.zeros((2, 2, 4)), [0.0, 1.0]), "labels must be 2 whole numbers"),
        (lambda: coalition_scores(np.zeros((2, 2, 4)), [0, 4]), "labels reach from 0 to 4"),
        (lambda: coalition_scores(np.full((2, 2, 4), math.inf), [0, 1]), "is inf"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
