"""Robust means against other ways to compute them."""

import cvxpy
import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.strategies.robust import geometric_median_weights, near_median_weights
from coterie.wire.arrays import unpack
from coterie.wire.messages import MODEL

WEIGHTS = ("extractor", "classifier")  # of an mlp


def uploads(run) -> dict[str, dict[str, np.ndarray]]:
    return {
        name: unpack(answer.content.array_records[MODEL])
        for name, answer in run.grid.answered
        if answer.metadata.message_type == "train"
    }


@pytest.mark.parametrize("seed", range(5))
def test_geometric_median_by_two_other_optimisers(seed):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((7, 4))
    points[0] += 50  # far away
    masses = rng.uniform(0.5, 2.0, 7)
    found = geometric_median_weights(points, masses, iterations=2000) @ points

    def total(z):
        return masses @ np.linalg.norm(points - z, axis=1)

    z = cvxpy.Variable(4)
    cvxpy.Problem(cvxpy.Minimize(sum(m * cvxpy.norm(p - z) for m, p in zip(masses, points, strict=True)))).solve()
    assert total(found) == pytest.approx(total(z.value), rel=1e-6)
    free = minimize(
        total, points.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 9999}
    )
    np.testing.assert_allclose(found, free.x, atol=1e-3)


def test_geometric_median_of_equal_points_and_on_a_point():
    same = geometric_median_weights(np.ones((4, 3)), np.ones(4))
    np.testing.assert_allclose(same, 0.25)
    heavy = geometric_median_weights(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([10.0, 1.0, 1.0]))
    assert heavy[0] > 0.999  # half of the mass sits on one point: it is the median


FAR = {"attack.kind": "huge", "attack.strength": 5e-5}  # 50 times as long: just not left out before
SETTINGS = {"model": "mlp", "num-clients": 5, "num-server-rounds": 1}


def test_median_and_trimmed_mean_number_by_number(federate):
    run = federate(strategy="median", **SETTINGS)
    stacked = np.stack([parts["classifier"] for parts in uploads(run).values()])
    np.testing.assert_allclose(run.model["classifier"], np.median(stacked, axis=0), rtol=1e-6)
    run = federate(strategy="trimmed-mean", **SETTINGS, **{"trimmed-mean.cut": 0.2})
    stacked = np.sort(np.stack([parts["extractor"] for parts in uploads(run).values()]), axis=0)
    np.testing.assert_allclose(run.model["extractor"], stacked[1:-1].mean(axis=0), rtol=1e-4, atol=1e-7)


def test_counters_stay_integers(federate):
    for strategy in ("median", "trimmed-mean", "rfa", "krum", "afedsv"):
        run = federate(strategy=strategy, **{**SETTINGS, "model": "lenet5"})
        assert run.model["counters"].dtype == np.int64


def test_krum_leaves_out_the_one_far_away(federate):
    run = federate(
        strategy="krum",
        **SETTINGS,
        **{"krum.malicious": 0.2, "krum.keep": 0.6, "attack.clients": "3", **FAR},
    )
    weights = run.events[0]["weights"]
    assert len(weights) == 3 and "3" not in weights
    models = uploads(run)
    mean = sum(weight * models[name]["classifier"].astype(float) for name, weight in weights.items())
    np.testing.assert_allclose(run.model["classifier"], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["rfa", "krum", "median", "trimmed-mean", "afedsv", "afedsv-plus"])
def test_a_long_update_does_not_move_the_model_far(federate, strategy):
    """Beside FedAvg, which it moves by ten times an honest step."""

    def moved(name):
        settings = {**SETTINGS, "strategy": name, "partition": "iid"}
        models = (federate(**settings, **attack).model for attack in ({}, {**FAR, "attack.clients": "1"}))
        honest, attacked = (np.concatenate([model[part] for part in WEIGHTS]) for model in models)
        return float(np.linalg.norm(honest - attacked))

    assert moved(strategy) < moved("fedavg") / 4


def test_near_median_by_hand():
    """Around the origin, by symmetry, the geometric median's weights are as 1 / distance; two at 2.6 = 2 x 1.3 keep 1/16."""
    points = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [2.6, 0.0], [-2.6, 0.0]])
    expected = np.array([1.0] * 4 + [1 / 2.6 / 16] * 2)
    np.testing.assert_allclose(near_median_weights(points, np.ones(6)), expected / expected.sum(), rtol=1e-6)
    np.testing.assert_allclose(near_median_weights(points[:4], np.ones(4)), 0.25, rtol=1e-6)  # nobody is far
    masses = np.array([1.0, 1.0, 2.0, 4.0])
    np.testing.assert_allclose(near_median_weights(np.ones((4, 3)), masses), masses / 8)


def test_near_the_median_the_pull_of_a_bad_third_falls_with_its_distance():
    rng = np.random.default_rng(1)
    honest = rng.standard_normal((14, 50))
    centre, moved = honest.mean(axis=0), {}
    for far in (20.0, 200.0):
        points = np.vstack([honest, np.tile(far * np.eye(50)[0], (6, 1))])
        moved[far] = np.linalg.norm(near_median_weights(points, np.ones(20)) @ points - centre)
        median = np.linalg.norm(geometric_median_weights(points, np.ones(20)) @ points - centre)
        assert moved[far] < median
    assert moved[200.0] < moved[20.0]
