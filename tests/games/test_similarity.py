"""Classifier similarity against numbers by hand, against a plain loop, and its laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from coterie.games.similarity import SELF_WEIGHT, aggregation_weights, classifier_similarity, similarity_rows

A = [[1.0, 0.0], [0.0, 1.0]]
B = [[1.0, 1.0], [0.0, -1.0]]
entries = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
classifier_stacks = arrays(np.float32, array_shapes(min_dims=3, max_dims=3, max_side=5), elements=entries)


def plain(classifiers, self_weight):
    """Eq. 3, pair by pair and class by class."""
    n = len(classifiers)
    result = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            logs = []
            for row, other in zip(classifiers[i].astype(float), classifiers[j].astype(float), strict=True):
                lengths = math.sqrt(sum(row**2)) * math.sqrt(sum(other**2))
                cosine = sum(row * other) / lengths if lengths else 0.0
                logs.append(math.log(1 - min(max(cosine, 0.0), 0.9999)))
            result[i, j] = self_weight if i == j else -sum(logs) / len(logs)
    return result


def test_the_known_pair():
    similarity = classifier_similarity([A, B])
    assert similarity[0, 1] == pytest.approx(0.61397, abs=5e-6)
    assert similarity[0, 1] == pytest.approx(-math.log(1 - math.sqrt(0.5)) / 2, abs=1e-12)
    assert similarity[0, 0] == similarity[1, 1] == pytest.approx(9.21034, abs=1e-5)


def test_authors_variant_averages_before_the_logarithm():
    """Cosines c and -c: the paper has -log(1-c)/2, the authors' code 0."""
    c = 0.9567
    opposite = [[[1.0, 0.0], [1.0, 0.0]], [[c, math.sqrt(1 - c**2)], [-c, math.sqrt(1 - c**2)]]]
    assert classifier_similarity(opposite)[0, 1] == pytest.approx(1.57, abs=0.01)
    assert classifier_similarity(opposite, variant="authors")[0, 1] == pytest.approx(0, abs=1e-12)
    mean = math.sqrt(0.5) / 2 - 0.5
    assert mean < 0 and classifier_similarity([A, B], variant="authors")[0, 1] == 0
    same = classifier_similarity([A, A], variant="authors", self_weight=1)
    np.testing.assert_allclose(same, [[1, SELF_WEIGHT], [SELF_WEIGHT, 1]], rtol=1e-9)


@given(classifier_stacks, st.floats(0, 10))
@settings(max_examples=80, deadline=None)
def test_is_the_formula_symmetric_and_finite(classifiers, self_weight):
    similarity = classifier_similarity(classifiers, self_weight=self_weight)
    np.testing.assert_allclose(similarity, plain(classifiers, self_weight), atol=1e-9)
    assert (similarity == similarity.T).all()
    assert np.isfinite(similarity).all() and (similarity >= 0).all()
    assert (similarity.diagonal() == self_weight).all()
    assert np.isfinite(classifier_similarity(classifiers, variant="authors")).all()


def test_identical_and_zero_rows():
    identical = classifier_similarity(np.full((3, 4, 5), 0.1, dtype=np.float32))
    np.testing.assert_allclose(identical, SELF_WEIGHT, rtol=1e-9)
    zero = classifier_similarity(np.zeros((2, 3, 4)))
    np.testing.assert_array_equal(zero, np.eye(2) * SELF_WEIGHT)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_length_of_a_row_does_not_matter(scale):
    classifiers = np.random.default_rng(0).normal(size=(4, 3, 6))
    scaled = classifiers * np.array([1, scale, 1 / scale, 7])[:, None, None]
    np.testing.assert_allclose(classifier_similarity(scaled), classifier_similarity(classifiers), rtol=1e-9)


def test_equivariance():
    classifiers, order = np.random.default_rng(0).normal(size=(6, 3, 4)), [3, 1, 5, 0, 2, 4]
    shuffled = classifier_similarity(classifiers[order])
    np.testing.assert_allclose(shuffled, classifier_similarity(classifiers)[np.ix_(order, order)], atol=1e-12)


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_selected_rows_are_rows_of_the_whole(variant):
    classifiers = np.random.default_rng(1).normal(size=(9, 4, 5))
    whole = classifier_similarity(classifiers, self_weight=1.0, variant=variant)
    rows = similarity_rows(classifiers, [7, 2], self_weight=1.0, variant=variant)
    np.testing.assert_allclose(rows, whole[[7, 2]], atol=1e-12)
    assert similarity_rows(classifiers, []).shape == (0, 9)


def test_aggregation_weights_are_rows_that_sum_to_one():
    weights = aggregation_weights([[9.0, 1.0, 0.0], [1.0, 2.0, 1.0]])
    np.testing.assert_allclose(weights, [[0.9, 0.1, 0.0], [0.25, 0.5, 0.25]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classifier_similarity([A, [[math.nan, 0], [0, 1]]]), r"classifiers\[1, 0, 0\] is nan"),
        (lambda: classifier_similarity(A), "3 axes"),
        (lambda: classifier_similarity(np.zeros((0, 2, 2))), "empty"),
        (lambda: classifier_similarity([A, B], variant="code"), "variant is 'code'"),
        (lambda: classifier_similarity([A, B], self_weight=-1.0), "self_weight is -1.0"),
        (lambda: classifier_similarity([A, B], self_weight=math.nan), "self_weight is nan"),
        (lambda: similarity_rows([A, B], [2]), "selected client is 2"),
        (lambda: aggregation_weights([[1.0, 0.0], [0.0, 0.0]]), "row 1 of similarity is all 0"),
        (lambda: aggregation_weights([[1.0, -0.5]]), "must not be negative"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
