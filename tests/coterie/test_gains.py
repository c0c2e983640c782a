"""What clients gain over training alone, by hand."""

import numpy as np
import pytest

from coterie.gains import gains


def result(strategy: str, seed: int, values: dict[str, float], metric: str = "accuracy") -> dict:
    clients = {name: {metric: value, "num-samples": 10} for name, value in values.items()}
    return {"strategy": strategy, "seed": seed, "models": {"personal": {"clients": clients}}}


def test_paired_by_client_within_one_seed():
    runs = [result("local", 1, {"a": 0.5, "b": 0.8, "c": 0.9}), result("mine", 1, {"a": 0.7, "b": 0.8, "c": 0.8})]
    found = gains(runs, "accuracy", {})["mine"]
    assert found["mean"] == pytest.approx(0.1 / 3)
    assert found["error"] == pytest.approx(np.sqrt(7 / 3) / 10 / np.sqrt(3))  # of .2, 0, -.1
    assert found["harmed"] == pytest.approx(1 / 3)


def test_by_seed_where_there_are_several_and_without_bad_clients():
    runs = [
        *(result("local", seed, {"a": 0.5, "b": 0.5}) for seed in (1, 2)),
        result("mine", 1, {"a": 0.6, "b": 0.1}),
        result("mine", 2, {"a": 0.8, "b": 0.6}),
        {"strategy": "mine", "seed": 3, "failed": "no quorum"},
    ]
    found = gains(runs, "accuracy", {1: {"b"}, 2: set()})["mine"]
    assert found["mean"] == pytest.approx((0.1 + 0.2) / 2)
    assert found["error"] == pytest.approx(0.05)
    assert found["harmed"] == 0


def test_a_lower_loss_is_a_gain_and_without_local_there_is_none():
    runs = [result("local", 1, {"a": 2.0}, "loss"), result("mine", 1, {"a": 1.5}, "loss")]
    assert gains(runs, "loss", {})["mine"]["mean"] == 0.5
    assert gains(runs[1:], "loss", {}) == {}
