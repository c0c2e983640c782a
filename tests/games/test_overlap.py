"""Overlapping coalitions: closed forms by Monte Carlo, stability by brute force over all (client, coalition)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.games.overlap import LinearGame, MeasuredGame, coalitions_of, form, form_coalitions, is_individually_stable

THETAS = np.array([[1.0, 0.0, -1.0], [1.2, 0.1, -0.9], [0.7, 0.4, -1.5]])
SAMPLES = np.array([8, 20, 12])
NOISE = np.array([1.0, 0.5, 2.0])


def random_game(seed, n=6):
    rng = np.random.default_rng(seed)
    features = int(rng.integers(1, 4))
    thetas = rng.normal(size=features) + rng.choice([0.02, 0.1, 0.3]) * rng.normal(size=(n, features))
    return LinearGame(thetas, rng.integers(features + 2, 60, size=n), rng.uniform(0.5, 2.0))


@pytest.fixture(scope="module")
def least_squares_runs():
    """θ̂ of the three clients in 40,000 runs: (runs, clients, features)."""
    rng = np.random.default_rng(0)
    runs = []
    for theta, samples, noise in zip(THETAS, SAMPLES, NOISE, strict=True):
        x = rng.normal(size=(40_000, samples, 3))
        y = x @ theta + rng.normal(size=(40_000, samples)) * math.sqrt(noise)
        runs.append(np.linalg.solve(x.transpose(0, 2, 1) @ x, (x.transpose(0, 2, 1) @ y[..., None]))[..., 0])
    return np.stack(runs, axis=1)


def squared_error(models, client):
    return ((models - THETAS[client]) ** 2).sum(axis=-1)


@pytest.mark.parametrize("client", range(3))
def test_lemma_1_alone(client, least_squares_runs):
    game = LinearGame(THETAS, SAMPLES, NOISE)
    measured = squared_error(least_squares_runs[:, client], client).mean()
    assert game.error(client, {client}) == pytest.approx(measured, rel=0.05)
    assert game.error(client, {client}) == pytest.approx(NOISE[client] * 3 / (SAMPLES[client] - 4))


@pytest.mark.parametrize("coalition", [{0, 1}, {1, 2}, {0, 1, 2}])
def test_lemma_2_in_a_coalition(coalition, least_squares_runs):
    game, inside = LinearGame(THETAS, SAMPLES, NOISE), sorted(coalition)
    models = np.average(least_squares_runs[:, inside], axis=1, weights=SAMPLES[inside])
    for client in range(3):
        assert game.error(client, coalition) == pytest.approx(squared_error(models, client).mean(), rel=0.05)


def test_lemma_3_mixing(least_squares_runs):
    game = LinearGame(THETAS, SAMPLES, NOISE)
    coalitions, weights = [{0}, {0, 1}, {0, 1, 2}], np.array([0.2, 0.5, 0.3])
    mixed = sum(
        weight * np.average(least_squares_runs[:, sorted(c)], axis=1, weights=SAMPLES[sorted(c)])
        for weight, c in zip(weights, coalitions, strict=True)
    )
    matrix = game.mixture_matrix(0, coalitions)
    assert weights @ matrix @ weights == pytest.approx(squared_error(mixed, 0).mean(), rel=0.05)
    np.testing.assert_allclose(matrix.diagonal(), [game.error(0, c) for c in coalitions])


def test_plug_in_errors_are_unbiased(least_squares_runs):
    """Games of estimated thetas have the errors of the true game on average; without the correction they do not."""
    truth, coalitions = LinearGame(THETAS, SAMPLES, NOISE), [frozenset({0}), frozenset({0, 1}), frozenset({0, 1, 2})]
    runs = least_squares_runs[:6000]
    games = [LinearGame(thetas, SAMPLES, NOISE, estimated=True) for thetas in runs]
    naive = [LinearGame(thetas, SAMPLES, NOISE) for thetas in runs[:500]]
    for coalition in coalitions:
        mean = np.mean([game.errors(coalition) for game in games], axis=0)
        np.testing.assert_allclose(mean, truth.errors(coalition), atol=0.05)
    matrix = np.mean([game.mixture_matrix(0, coalitions) for game in games], axis=0)
    np.testing.assert_allclose(matrix, truth.mixture_matrix(0, coalitions), atol=0.05)
    assert np.mean([game.error(0, coalitions[2]) for game in naive]) > truth.error(0, coalitions[2]) + 0.2


def pays_at_best(game, client, coalitions, costs, error=None):
    """What is left of its gain (with its best coalition, or with this error) when all coalitions with others are paid for."""
    mine = [c for c in set(coalitions) if client in c and len(c) > 1]
    best = min([game.error(client, c) for c in mine] or [game.error(client, {client})]) if error is None else error
    return game.error(client, {client}) - best - costs[client] * len(mine)


def wants_and_may(game, client, coalition, coalitions, costs):
    grown = coalition | {client}
    after = [*(c for c in coalitions if c != coalition), grown]
    if not pays_at_best(game, client, after, costs, game.error(client, grown)) > 0:
        return False
    for member in coalition:
        left = pays_at_best(game, member, after, costs)
        if game.error(member, grown) > game.error(member, coalition) or left < min(
            0, pays_at_best(game, member, coalitions, costs)
        ):
            return False
    return True


def blocking_pairs(game, coalitions, costs=None):
    """All (client, coalition) that break stability, straight from the definition."""
    costs = np.zeros(game.n) if costs is None else costs
    return [
        (i, c) for i in range(game.n) for c in coalitions if i not in c and wants_and_may(game, i, c, coalitions, costs)
    ]


def test_four_hundred_games_are_stable():
    joined = 0
    for seed in range(400):
        game = random_game(seed, n=2 + seed % 7)
        coalitions = form_coalitions(game)
        assert blocking_pairs(game, coalitions) == []
        assert is_individually_stable(game, coalitions)
        assert len(set(coalitions)) == len(coalitions)
        assert set().union(*coalitions) == set(range(game.n))
        for coalition in coalitions:  # nobody is worse off than alone
            assert all(game.error(i, coalition) <= game.error(i, {i}) for i in coalition)
        joined += sum(len(coalition) > 1 for coalition in coalitions)
    assert joined > 400  # the games are not trivial


def test_thirty_clients_are_stable():
    for seed in range(5):
        game = random_game(seed, n=30)
        assert blocking_pairs(game, form_coalitions(game)) == []


def test_instability_is_seen():
    """Two equal clients alone: each wants to join the other. On random structures brute force agrees."""
    game = LinearGame([[1.0], [1.0]], [10, 10], 1.0)
    assert not is_individually_stable(game, [{0}, {1}])
    assert is_individually_stable(game, [{0, 1}])
    rng, verdicts = np.random.default_rng(0), []
    for seed in range(200):
        game = random_game(seed, n=4)
        structure = {frozenset({i}) for i in range(4)} | {
            frozenset(np.flatnonzero(rng.random(4) < 0.5).tolist() or [0])
        }
        verdicts.append(is_individually_stable(game, structure))
        assert verdicts[-1] == (blocking_pairs(game, structure) == [])
    assert 0 < sum(verdicts) < 200


def test_alike_clients_form_one_coalition_and_strangers_none():
    assert form_coalitions(LinearGame(np.ones((5, 2)), [10] * 5, 1.0)) == [frozenset(range(5))]
    apart = form_coalitions(LinearGame(100.0 * np.eye(4), [50] * 4, 1.0))
    assert apart == [frozenset({i}) for i in range(4)]
    assert form_coalitions(LinearGame([[1.0]], [10], 1.0)) == [frozenset({0})]


def test_coalitions_overlap():
    """A client between two others trains with both; they do not train with each other."""
    coalitions = form_coalitions(LinearGame([[-0.35], [0.0], [0.35]], [10, 10, 10], 1.0))
    assert frozenset({0, 1}) in coalitions and frozenset({1, 2}) in coalitions
    assert not any({0, 2} <= coalition for coalition in coalitions)


def utility_by_equation_6(game, client, coalitions, cost):
    """err({i}) - err(mixture) - cost of every coalition with others; the best mixture by a general solver."""
    alone = game.local_errors
    mine = [c for c in coalitions if client in c and len(c) > 1]
    shares = np.zeros((len(mine) + 1, game.n))
    shares[0, client] = 1
    for row, coalition in zip(shares[1:], mine, strict=True):
        for member in coalition:
            row[member] = game.samples[member] / sum(game.samples[m] for m in coalition)

    def error(weights):
        share = weights @ shares
        return share**2 @ alone + ((share @ game.thetas - game.thetas[client]) ** 2).sum()

    starts = [*np.eye(len(shares)), np.full(len(shares), 1 / len(shares))]
    mixed = minimize(
        error, min(starts, key=error), method="SLSQP", bounds=[(0, 1)] * len(shares),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
    )  # fmt: skip
    return alone[client] - min(mixed.fun, *map(error, starts)) - cost * len(mine)


def test_thirty_clients_with_costs_are_not_below_zero():
    """Under the old rule 25, 169 and 297 of 600 were: what others made of a client's own coalition cost it nothing."""
    for price in (0.001, 0.004):
        for seed in range(4):
            game = random_game(seed, n=30)
            costs = price * game.samples
            coalitions = form_coalitions(game, costs=costs)
            assert min(utility_by_equation_6(game, i, coalitions, costs[i]) for i in range(30)) >= -1e-9
            assert blocking_pairs(game, coalitions, costs) == []


@given(st.integers(0, 10_000), st.floats(0.0002, 0.2), st.booleans())
@settings(max_examples=60, deadline=None)
def test_nobody_ends_below_zero(seed, price, disjoint):
    game = random_game(seed)
    costs = price * game.samples / game.samples.mean()
    coalitions = form_coalitions(game, costs=costs, disjoint=disjoint)
    assert all(utility_by_equation_6(game, i, coalitions, costs[i]) >= -1e-9 for i in range(game.n))
    if not disjoint:
        assert blocking_pairs(game, coalitions, costs) == []
        assert is_individually_stable(game, coalitions, costs=costs)


def test_a_host_that_cannot_pay_refuses_its_guest():
    """Both gain .4; that pays for the guest's .1, not for the host's .5."""
    errors = {1: 1.0, 2: 0.6}
    found = form(MeasuredGame(2, lambda i, c: errors[len(c)]), costs=[0.5, 0.1])
    assert found.coalitions == [{0}, {1}] and not found.joins
    (refusal,) = found.refusals
    assert (refusal.client, refusal.coalition, refusal.member) == (1, {0}, 0)
    assert refusal.utility == pytest.approx(-0.1)
    assert form_coalitions(MeasuredGame(2, lambda i, c: errors[len(c)]), costs=[0.4, 0.1]) == [{0, 1}, {1}]


def test_a_cost_above_every_gain_keeps_all_alone():
    game = random_game(1)
    assert form_coalitions(game, costs=100.0) == [frozenset({i}) for i in range(game.n)]
    assert is_individually_stable(game, [{i} for i in range(game.n)], costs=100.0)


def test_a_measured_game_plays_the_same():
    for seed in range(40):
        linear = random_game(seed)
        asked = []

        def measure(client, coalition, linear=linear, asked=asked):
            assert client in coalition
            asked.append((client, coalition))
            return linear.error(client, coalition)

        measured = MeasuredGame(linear.n, measure)
        assert form_coalitions(measured) == form_coalitions(linear)
        assert len(asked) == len(set(asked))


def test_mixing_helps_and_includes_the_local_model():
    game = random_game(3)
    coalitions = form_coalitions(game)
    for client in range(game.n):
        mine = coalitions_of(client, coalitions)
        assert mine[0] == {client} and len(set(mine)) == len(mine)
        assert all(client in coalition for coalition in mine)
        weights = game.mixing_weights(client, mine)
        error = weights @ game.mixture_matrix(client, mine) @ weights
        assert error <= min(game.error(client, coalition) for coalition in mine) + 1e-12


class OwnGame:
    """The least that a game must offer."""

    n = 3

    def __init__(self, value):
        self.value = value

    def error(self, client, coalition):
        return self.value / len(coalition)


def test_any_object_with_n_and_error_is_a_game():
    assert form_coalitions(OwnGame(1.0)) == [frozenset({0, 1, 2})]
    assert is_individually_stable(OwnGame(1.0), [{0, 1, 2}])
    assert not is_individually_stable(OwnGame(1.0), [{0, 1}, {2}])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LinearGame(np.ones((2, 3)), [10, 4], 1.0), "client 1 has 4 samples for 3 features.*at least 5"),
        (lambda: LinearGame(np.ones((2, 3)), [10, 10, 10], 1.0), "samples has 3 entries for 2 clients"),
        (lambda: LinearGame(np.ones((2, 3)), [10, 10], -1.0), "noise is -1.0"),
        (lambda: LinearGame(np.ones((2, 3)), [10, 10], math.nan), r"noise\[0\] is nan"),
        (lambda: LinearGame([[1.0, math.inf]], [10], 1.0), "is inf"),
        (lambda: LinearGame([1.0, 2.0], [10, 10], 1.0), "thetas must have 2 axes"),
        (lambda: MeasuredGame(0, lambda i, c: 0.0), "n, the number of clients, is 0"),
        (lambda: form_coalitions(MeasuredGame(2, lambda i, c: math.nan)), r"coalition \[0, 1\] is nan"),
        (lambda: form_coalitions(OwnGame(math.inf)), "is inf: not finite"),
        (lambda: form_coalitions(random_game(0), costs=-1.0), "costs holds -1.0"),
        (lambda: form_coalitions(random_game(0), costs=[1.0]), "costs has 1 entries for 6 clients"),
        (lambda: is_individually_stable(random_game(0), [{0, 1}]), "client 2 is in no coalition"),
        (lambda: is_individually_stable(random_game(0), [{0, 9}]), "holds 9"),
        (lambda: is_individually_stable(random_game(0), [set(range(6)), set()]), "a coalition is empty"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
