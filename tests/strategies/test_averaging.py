"""The weighted mean of models, against numpy and against every trap of averaging."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.strategies.fedavg import sample_weights
from coterie.strategies.rounds import mean_metrics
from coterie.tasks.parts import average
from coterie.wire.checks import Update


def update(num_samples: int) -> Update:
    return Update({}, num_samples, {}, {}, 0)


def test_weights_are_shares_of_the_samples():
    assert sample_weights([update(n) for n in (10, 30, 0)]).tolist() == [0.25, 0.75, 0.0]
    assert sample_weights([update(7)]).tolist() == [1.0]
    assert sample_weights([update(0)] * 4).tolist() == [0.25] * 4


def test_the_mean_by_hand():
    models = [{"a": np.array([1.0, 2.0], np.float32)}, {"a": np.array([5.0, -2.0], np.float32)}]
    assert average(models, np.array([0.25, 0.75]))["a"].tolist() == [4.0, -1.0]
    assert average(models, np.array([1.0, 3.0]))["a"].tolist() == [4.0, -1.0]
    assert average(models, np.array([0.0, 2.0]))["a"].tolist() == [5.0, -2.0]


def test_one_model_stays_bit_for_bit():
    model = {"a": np.random.default_rng(0).normal(size=1000).astype(np.float32), "n": np.array([3, 4])}
    mean = average([model], np.array([17.0]))
    assert np.array_equal(mean["a"], model["a"]) and np.array_equal(mean["n"], model["n"])


def test_counters_stay_whole_numbers_and_dtypes_stay():
    models = [
        {"counters": np.array([10, 3]), "a": np.zeros(1, np.float32)},
        {"counters": np.array([21, 4]), "a": np.ones(1, np.float32)},
    ]
    mean = average(models, np.array([0.5, 0.5]))
    assert mean["counters"].dtype == np.int64 and mean["counters"].tolist() in ([15, 4], [16, 4], [16, 3], [15, 3])
    assert mean["a"].dtype == np.float32
    same = average([{"counters": np.array([7])}] * 3, np.array([0.1, 0.2, 0.3]))
    assert same["counters"].tolist() == [7]


def test_the_models_are_left_as_they_are():
    models = [{"a": np.ones(3, np.float32)}, {"a": np.zeros(3, np.float32)}]
    average(models, np.array([0.5, 0.5]))
    assert models[0]["a"].tolist() == [1, 1, 1] and models[1]["a"].tolist() == [0, 0, 0]


numbers = st.floats(-(2.0**100), 2.0**100, width=32)


@given(st.data())
@settings(max_examples=100)
def test_between_the_least_and_the_greatest(data):
    """So a running variance is never negative, whatever the weights sum to, and nothing overflows."""
    clients = data.draw(st.integers(1, 6))
    values = data.draw(hnp.arrays(np.float32, (clients, 5), elements=numbers))
    weights = data.draw(hnp.arrays(np.float64, clients, elements=st.floats(1e-3, 1e6)))
    mean = average([{"v": row} for row in values], weights)["v"]
    assert mean.dtype == np.float32 and np.isfinite(mean).all()
    low, high = values.min(axis=0), values.max(axis=0)
    room = np.spacing(np.maximum(abs(low), abs(high)))  # one rounding
    assert (mean >= low - room).all() and (mean <= high + room).all()
    variances = average([{"v": abs(row)} for row in values], weights)["v"]
    assert (variances >= 0).all()
    expected = (weights[:, None] / weights.sum() * values.astype(np.float64)).sum(axis=0)
    smallest = float(np.finfo(np.float32).smallest_subnormal)  # below it nothing is told apart
    np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-6 * float(abs(values).max()) + smallest)


def test_mean_metrics():
    metrics = {
        "a": {"num-samples": 10, "personal.accuracy": 0.5, "only-a": 1.0},
        "b": {"num-samples": 30, "personal.accuracy": 0.9},
        "nothing-to-test": {"num-samples": 0},
    }
    mean = mean_metrics(metrics)
    assert set(mean) == {"personal.accuracy", "personal.accuracy-weighted"}
    assert mean["personal.accuracy"] == pytest.approx(0.7) and mean["personal.accuracy-weighted"] == pytest.approx(0.8)
    assert mean_metrics({}) == {} and mean_metrics({"a": {"num-samples": 0}}) == {}
