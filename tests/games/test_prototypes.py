"""Kinds of clients from prototypes, on Gaussians whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from coterie.games.prototypes import (
    Kinds,
    Prototypes,
    bounded,
    group_by_kind,
    prior,
    prior_shift,
    prototypes_of,
    to_groups,
)

CLASSES, DIMENSIONS = 6, 8


def centres(seed: int, scale: float = 2.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=(CLASSES, DIMENSIONS))


def client(rng: np.random.Generator, means: np.ndarray, samples: int = 60, labels=None, swap=None) -> Prototypes:
    y = rng.choice(np.arange(CLASSES) if labels is None else labels, samples)
    x = means[y] + rng.normal(size=(samples, DIMENSIONS))
    return prototypes_of(x, y if swap is None else np.asarray(swap)[y], CLASSES)


def test_prototypes_by_hand_and_rare_labels_are_not_told():
    x = np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0], [9.0, 9.0]])
    told = prototypes_of(x, np.array([2, 2, 2, 0]), 3)
    np.testing.assert_array_equal(told.counts, [0, 0, 3])
    np.testing.assert_allclose(told.means, [[0, 0], [0, 0], [3, 2]])
    np.testing.assert_allclose(told.squares, [8, 24])  # (4 + 0 + 4), (4 + 4 + 16)


def test_t_by_hand():
    """One label, one feature with variance 1: D = 9, v = 1/4 + 1/12; no pair of labels, so no tolerance."""
    one = Prototypes(np.array([4.0]), np.array([[0.0]]), np.array([3.0]))
    other = Prototypes(np.array([12.0]), np.array([[1.0]]), np.array([11.0]))
    assert Kinds([one, other]).distances(0)[1] == pytest.approx(1 / (1 / 4 + 1 / 12))
    far = Prototypes(np.array([12.0]), np.array([[30.0]]), np.array([11.0]))
    assert Kinds([one, far]).distances(0)[1] == 8  # the cap


def test_t_is_about_one_for_clients_of_one_kind():
    rng = np.random.default_rng(0)
    means = np.zeros((CLASSES, DIMENSIONS))  # labels alike: the tolerance is nothing, and T is an F ratio
    table = Kinds([client(rng, means) for _ in range(40)]).all_distances()
    assert table[np.triu_indices(40, 1)].mean() == pytest.approx(1.0, abs=0.05)


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
@settings(max_examples=15, deadline=None)
def test_neither_order_nor_scale_matters(seed, scale):
    rng = np.random.default_rng(seed)
    clients = [client(rng, centres(seed + i % 2), 40) for i in range(6)]
    groups = group_by_kind(clients)
    order = rng.permutation(6)
    stretched = np.exp(rng.normal(size=DIMENSIONS)) * scale
    moved = [
        Prototypes(clients[i].counts, clients[i].means * stretched, clients[i].squares * stretched**2) for i in order
    ]
    assert {frozenset(int(order[i]) for i in group) for group in group_by_kind(moved)} == {frozenset(g) for g in groups}


def test_kinds_with_permuted_labels_are_found_exactly():
    rng = np.random.default_rng(3)
    means, swaps = centres(3), [rng.permutation(CLASSES) for _ in range(3)]
    clients = [client(rng, means, swap=swaps[i % 3]) for i in range(12)]
    assert group_by_kind(clients) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_a_lone_kind_is_alone_and_mixtures_of_labels_are_none():
    rng = np.random.default_rng(4)
    means = centres(4)
    clients = [client(rng, means, labels=[i % CLASSES, (i + 1) % CLASSES]) for i in range(6)]
    assert group_by_kind([*clients, client(rng, -means)]) == [[0, 1, 2, 3, 4, 5], [6]]


def test_one_strange_label_splits_nothing():
    """A single label at D / v = 23 counts as 8: (5 x 1 + 8) / 6 < 3, a little less with the tolerance."""
    means = np.zeros((CLASSES, 1))
    counts = np.full(CLASSES, 20.0)
    one = Prototypes(counts, means, np.array([114.0]))  # variance 1
    apart = np.full((CLASSES, 1), np.sqrt(0.1))  # D / v = 1 for v = 1/20 + 1/20
    apart[0] = np.sqrt(23 * 0.1)
    assert 2 < Kinds([one, Prototypes(counts, apart, np.array([114.0]))]).distances(0)[1] <= 13 / 6
    assert group_by_kind([one, Prototypes(counts, apart, np.array([114.0]))]) == [[0, 1]]


def test_clients_without_a_shared_label_are_merged_if_others_see_them_alike():
    rng = np.random.default_rng(5)
    means = centres(5)
    first, second = client(rng, means, labels=[0, 1]), client(rng, means, labels=[2, 3])
    assert group_by_kind([first, second]) == [[0, 1]]  # nothing speaks against it
    other = centres(6)
    both = [client(rng, other, labels=[0, 1, 2, 3]) for _ in range(2)]
    turned = client(rng, other, labels=[2, 3])  # of the others' kind, though it shares no label with the first
    assert group_by_kind([first, turned, *both]) == [[1, 2, 3], [0]]


def test_the_variance_cannot_be_forged_by_one():
    rng = np.random.default_rng(6)
    clients = [client(rng, centres(6 + i % 2)) for i in range(6)]
    forged = Prototypes(clients[0].counts, clients[0].means, clients[0].squares * 1e12)
    assert group_by_kind([forged, *clients[1:]]) == [[0, 2, 4], [1, 3, 5]]


def test_features_without_variance_are_dropped():
    rng = np.random.default_rng(7)
    clients = [client(rng, centres(7 + i % 2)) for i in range(4)]
    dead = [
        Prototypes(c.counts, np.hstack([c.means, np.full((CLASSES, 1), i)]), np.append(c.squares, 0.0))
        for i, c in enumerate(clients)
    ]
    np.testing.assert_allclose(Kinds(dead).all_distances(), Kinds(clients).all_distances())


def test_noise_on_the_sums_counts_as_chance():
    """Clients of one kind, sums with noise of variance 100: T stays about 1, and would be far above it unaccounted for."""
    rng = np.random.default_rng(8)
    plain, accounted = [], []
    for _ in range(30):
        told = client(rng, np.zeros((CLASSES, DIMENSIONS)), 600)
        means = told.means + rng.normal(size=told.means.shape) * 10 / told.counts[:, None]
        plain.append(Prototypes(told.counts, means, told.squares))
        accounted.append(Prototypes(told.counts, means, told.squares, 100.0))
    pairs = np.triu_indices(30, 1)
    assert Kinds(accounted).all_distances()[pairs].mean() == pytest.approx(1.0, abs=0.1)
    assert Kinds(plain).all_distances()[pairs].mean() > 1.7


def test_the_distance_to_the_own_group_leaves_the_client_out():
    rng = np.random.default_rng(9)
    clients = [client(rng, centres(9 + i // 3)) for i in range(6)]
    kinds = Kinds(clients)
    without = Kinds(clients).merged([[0], [1, 2], [3, 4, 5]]).distances(0)[1:]
    np.testing.assert_allclose(to_groups(kinds, 0, [[0, 1, 2], [3, 4, 5]]), without)
    assert without[0] < 3 < without[1]


def test_the_shift_of_priors_is_what_bayes_says():
    """Two Gaussians, logits of the group's posterior: shifted, they are the posterior under the client's own priors."""
    group, own = np.array([300.0, 100.0]), np.array([10.0, 90.0])
    density = [multivariate_normal([0.0, 0.0]), multivariate_normal([1.0, 2.0])]
    x = np.random.default_rng(1).normal(size=(20, 2))
    likelihood = np.stack([d.pdf(x) for d in density], axis=1)

    def posterior(counts):
        weighted = likelihood * (counts + 0.5) / (counts.sum() + 1)
        return weighted / weighted.sum(axis=1, keepdims=True)

    shifted = np.exp(np.log(posterior(group)) + prior_shift(own, group))
    np.testing.assert_allclose(shifted / shifted.sum(axis=1, keepdims=True), posterior(own))
    np.testing.assert_allclose(prior(own), [10.5 / 101, 90.5 / 101])
    np.testing.assert_array_equal(prior_shift(own, own), 0.0)


def test_who_claims_many_samples_does_not_draw_groups_together():
    """Half-way between two kinds that are T = 6 apart: T = 6 / 4 to either of them, and unbounded it would outweigh both."""
    counts, squares = np.full(CLASSES, 10.0), np.full(1, 54.0)  # variance 1
    apart = np.sqrt(6 * (1 / 50 + 1 / 50))  # five clients of each kind
    kinds = [Prototypes(counts, np.full((CLASSES, 1), apart * (i % 2)), squares) for i in range(10)]
    liar = Prototypes(counts * 1e4, np.full((CLASSES, 1), apart / 2), squares * 1e4)
    groups = group_by_kind([*kinds, liar])
    assert [sorted(i for i in group if i < 10) for group in groups] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert bounded([*kinds, liar])[-1].counts.sum() == 4 * 60
    assert all(one is same for one, same in zip(bounded(kinds), kinds, strict=True))
