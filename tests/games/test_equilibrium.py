"""Collaboration equilibria against both axioms by brute force, networkx-free reachability, and exact Pareto points."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.games.equilibrium import (
    Violation,
    benefit_graph,
    check_axioms,
    collaboration_equilibrium,
    collaborators_from_weights,
    exhaustive_optimal_set,
    linear_pareto_front,
    stable_coalitions,
)


def subsets(clients):
    pool = sorted(clients)
    return [frozenset(c) for size in range(1, len(pool) + 1) for c in itertools.combinations(pool, size)]


def partitions(clients):
    if not clients:
        yield []
        return
    first, rest = clients[0], clients[1:]
    for companions in itertools.chain.from_iterable(itertools.combinations(rest, k) for k in range(len(rest) + 1)):
        block = frozenset({first, *companions})
        for others in partitions([c for c in rest if c not in companions]):
            yield [block, *others]


def generic_utility(n, seed, lonely=0.0):
    """U_i(C) = the best u_i(T) over T ⊆ C with i in T, for generic numbers u; a bonus for small T makes sparse sets."""
    rng = np.random.default_rng(seed)
    base = {(i, c): rng.random() - lonely * len(c) for i in range(n) for c in subsets(range(n)) if i in c}
    best = {(i, c): max(base[i, t] for t in subsets(c) if i in t) for i, c in base}
    return base, lambda i, c: best[i, frozenset(c)]


def satisfies(utility, partition, n):
    """Both axioms, straight from their definition."""
    home = {i: c for c in partition for i in c}
    inner = all(
        any(utility(i, part) < utility(i, c) for i in part) for c in partition for part in subsets(c) if part != c
    )
    outer = all(any(utility(i, c) <= utility(i, home[i]) for i in c) for c in subsets(range(n)) if c not in partition)
    return inner and outer


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_equilibria_satisfy_both_axioms_by_brute_force(n):
    kinds = set()
    for seed in range(12 if n < 6 else 4):
        base, utility = generic_utility(n, seed, lonely=0.25)

        def optimal_set(client, remaining, base=base):
            return max((c for c in subsets(remaining) if client in c), key=lambda c: base[client, c])

        found = collaboration_equilibrium(optimal_set, n)
        assert sorted(itertools.chain.from_iterable(found)) == list(range(n))
        assert check_axioms(utility, found) == []
        fitting = [p for p in partitions(list(range(n))) if satisfies(utility, p, n)]
        assert set(found) in [set(p) for p in fitting]
        kinds.add(tuple(sorted(map(len, found))))
    assert len(kinds) > 1  # not always the same shape


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_check_axioms_is_the_definition_for_every_partition(n):
    verdicts = []
    for seed in range(6):
        _, utility = generic_utility(n, seed, lonely=0.3)
        for partition in partitions(list(range(n))):
            verdicts.append(check_axioms(utility, partition) == [])
            assert verdicts[-1] == satisfies(utility, partition, n)
    assert 0 < sum(verdicts) < len(verdicts)


def test_violations_are_named():
    pair = {frozenset({0}): 1.0, frozenset({1}): 1.0, frozenset({0, 1}): 2.0}

    def better_together(client, coalition):
        return pair[coalition & {0, 1}] if client < 2 else 1.0

    alone = check_axioms(better_together, [{0}, {1}, {2}])
    assert alone == [Violation("outer agreement", frozenset({0, 1}))]
    crowd = check_axioms(better_together, [{0, 1, 2}])
    assert Violation("inner agreement", frozenset({0, 1})) in crowd
    assert Violation("inner agreement", frozenset({2})) in crowd
    assert check_axioms(better_together, [{0, 1}, {2}]) == []
    assert check_axioms(better_together, [{0}, {1}, {2}], largest=1) == []


def test_nested_data_leave_everybody_alone():
    """Everybody wants the client with the most data, who needs nobody."""
    found = collaboration_equilibrium(lambda client, remaining: {client, max(remaining)}, 5)
    assert found == [frozenset({i}) for i in (4, 3, 2, 1, 0)]


def test_sets_are_recomputed_among_those_who_remain():
    """0 and 1 want each other; 2 and 3 both want 0, and only when 0 is gone do they see each other."""
    asked = []

    def optimal_set(client, remaining):
        asked.append((client, remaining))
        if client < 2:
            return {0, 1}
        return {client, 0} if 0 in remaining else {2, 3}

    assert collaboration_equilibrium(optimal_set, 4) == [frozenset({0, 1}), frozenset({2, 3})]
    assert (2, frozenset({2, 3})) in asked


@given(st.integers(1, 8), st.data())
@settings(max_examples=80, deadline=None)
def test_stable_coalitions_are_mutually_reachable_and_closed(n, data):
    wishes = {i: data.draw(st.sets(st.integers(0, n - 1), max_size=3)) for i in range(n)}
    reach = np.eye(n, dtype=bool)
    for client, wish in wishes.items():
        reach[client, list(wish)] = True  # client needs wish
    for middle in range(n):
        reach |= reach[:, [middle]] & reach[[middle]]
    expected = {frozenset(np.flatnonzero(reach[i]).tolist()) for i in range(n) if (reach[:, i] >= reach[i]).all()}
    assert set(stable_coalitions(benefit_graph(wishes))) == expected


def test_benefit_graph_points_from_the_helper_to_the_helped():
    graph = benefit_graph({0: {0, 1}, 1: {1}, 2: set()})
    assert set(graph.edges) == {(1, 0)} and set(graph.nodes) == {0, 1, 2}


def test_exhaustive_search_takes_the_fewest_of_equally_good_collaborators():
    optimal_set = exhaustive_optimal_set(lambda client, coalition: float(len(coalition & {0, 1})))
    assert optimal_set(0, frozenset({0, 1, 2, 3})) == {0, 1}
    assert optimal_set(2, frozenset({2, 3})) == {2}
    assert collaboration_equilibrium(optimal_set, 4) == [frozenset({0, 1}), frozenset({2}), frozenset({3})]


def test_a_coalition_that_helps_nobody_breaks_inner_agreement():
    """What a coarse utility with many ties leads to: its parts are as good as the whole."""
    assert check_axioms(lambda client, coalition: 1.0, [{0, 1}]) == [
        Violation("inner agreement", frozenset({0})),
        Violation("inner agreement", frozenset({1})),
    ]


def test_collaborators_from_weights():
    assert collaborators_from_weights([0.6, 0.05, 0.3, 0.05], 0) == {0, 2}
    assert collaborators_from_weights([0.6, 0.06, 0.3, 0.04], 3) == {0, 1, 2, 3}
    assert collaborators_from_weights([0.6, 0.06, 0.34, 0.0], 3, threshold=0.5) == {0, 2, 3}
    assert collaborators_from_weights([0.0, 1.0], 1, threshold=0.0) == {1}


def regression(thetas, samples, seed, sigma=1.0):
    """A_i, b_i of clients with y = X θ_i + noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(thetas), samples, thetas.shape[1]))
    y = np.einsum("isf,if->is", x, thetas) + sigma * rng.normal(size=(len(thetas), samples))
    return x, y, np.einsum("isf,isg->ifg", x, x) / samples, np.einsum("isf,is->if", x, y) / samples


def test_pareto_points_minimise_the_weighted_loss():
    rng = np.random.default_rng(0)
    x, y, grams, moments = regression(rng.normal(size=(3, 4)), 30, seed=1)
    preferences = rng.dirichlet(np.ones(3), size=5)
    points = linear_pareto_front(grams, moments, preferences)
    assert points.shape == (5, 4)
    for d, point in zip(preferences, points, strict=True):
        rows = np.concatenate([math.sqrt(w / 30) * part for w, part in zip(d, x, strict=True)])
        right = np.concatenate([math.sqrt(w / 30) * part for w, part in zip(d, y, strict=True)])
        np.testing.assert_allclose(point, np.linalg.lstsq(rows, right, rcond=None)[0], atol=1e-9)
        np.testing.assert_allclose(linear_pareto_front(grams, moments, d), point, atol=1e-12)
    corner = linear_pareto_front(grams, moments, [0, 1, 0])
    np.testing.assert_allclose(corner, np.linalg.lstsq(x[1], y[1], rcond=None)[0], atol=1e-9)


@pytest.mark.parametrize(("samples", "rho", "together"), [(100, 0.05, True), (2000, 0.1, False)])
def test_three_alike_clients_collaborate_iff_samples_are_few(samples, rho, together):
    """θ_i = θ + U[-rho, rho], 20 features, noise 1: the trio is better than oneself iff n < 3/rho²."""
    assert (samples < 3 / rho**2) == together
    gain = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        thetas = rng.normal(size=20) + rng.uniform(-rho, rho, size=(3, 20))
        _, _, grams, moments = regression(thetas, samples, seed)
        alone, trio = linear_pareto_front(grams, moments, [[1, 0, 0], [1, 1, 1]])
        gain.append(((alone - thetas[0]) ** 2).sum() - ((trio - thetas[0]) ** 2).sum())
    assert (np.mean(gain) > 0) == together
    assert abs(np.mean(gain)) > 3 * np.std(gain) / math.sqrt(20)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: collaboration_equilibrium(lambda i, r: {i}, 0), "n, the number of clients, is 0"),
        (lambda: collaboration_equilibrium(lambda i, r: {i, 7}, 3), "optimal_set of client 0 holds 7"),
        (lambda: check_axioms(lambda i, c: 0.0, [{0, 1}, {1}]), r"clients \[0, 1, 1\]"),
        (lambda: check_axioms(lambda i, c: 0.0, [{0, 2}]), r"clients \[0, 2\]"),
        (lambda: check_axioms(lambda i, c: 0.0, []), "exactly one"),
        (lambda: check_axioms(lambda i, c: 0.0, [set(range(17))]), "give largest"),
        (lambda: check_axioms(lambda i, c: math.nan, [{0, 1}]), "utility of client 0"),
        (lambda: collaborators_from_weights([0.0, 0.0], 0), "not all 0"),
        (lambda: collaborators_from_weights([0.5, -0.5], 0), "≥ 0"),
        (lambda: collaborators_from_weights([0.5, 0.5], 2), "client is 2"),
        (lambda: collaborators_from_weights([0.5, 0.5], 0, threshold=2.0), "threshold is 2.0"),
        (lambda: collaborators_from_weights([[0.5, 0.5]], 0), "one weight per client"),
        (lambda: linear_pareto_front(np.zeros((1, 2, 2)), np.zeros((1, 2)), [1.0]), "singular"),
        (lambda: linear_pareto_front(np.zeros((1, 2, 3)), np.zeros((1, 2)), [1.0]), "do not fit"),
        (lambda: linear_pareto_front(np.ones((1, 1, 1)), [[math.nan]], [1.0]), "is nan"),
        (lambda: linear_pareto_front(np.ones((1, 1, 1)), [[1.0]], [0.5, 0.5]), "do not fit"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
