"""Task `linear`: what is generated is what the recipe says, for any number of clients."""

import numpy as np
import pytest

from coterie.client.data import linear_recipe, partitioned
from coterie.tasks.linear import LinearRecipe, linear_parameters, load_linear
from coterie.tasks.resolve import number_of_clients, partition_kind, task_spec
from coterie.tasks.samples import DataError
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError


def test_least_squares_finds_the_parameters_and_the_noise():
    recipe = LinearRecipe(clients=5, features=4, noise=0.5, samples="4000")
    data, thetas = load_linear(recipe), linear_parameters(recipe)
    for client, theta in enumerate(thetas):
        mine = data.owner == client
        found, rest, *_ = np.linalg.lstsq(data.x[mine].astype(float), data.y[mine].astype(float), rcond=None)
        np.testing.assert_allclose(found, theta, atol=0.05)
        assert rest[0] / 4000 == pytest.approx(0.25, rel=0.1)


def test_groups_lie_together_and_deviation_is_the_distance_within():
    thetas = linear_parameters(LinearRecipe(clients=300, features=10, groups=3, deviation=0.2))
    for group in range(3):
        members = thetas[group::3]
        assert (members - members.mean(axis=0)).std() == pytest.approx(0.2, rel=0.1)
    assert np.linalg.norm(thetas[0] - thetas[1]) > 3 * np.linalg.norm(thetas[0] - thetas[3])
    same = linear_parameters(LinearRecipe(clients=4, groups=2, deviation=0.0))
    np.testing.assert_array_equal(same[0], same[2])


def test_what_a_client_gets_does_not_depend_on_how_many_there_are():
    few, many = load_linear(LinearRecipe(clients=3)), load_linear(LinearRecipe(clients=8))
    np.testing.assert_array_equal(few.x, many.x[many.owner < 3])
    np.testing.assert_array_equal(few.y, many.y[many.owner < 3])
    other = load_linear(LinearRecipe(clients=3, seed=2))
    assert not np.array_equal(few.y, other.y)


def test_a_range_of_samples():
    counts = np.bincount(load_linear(LinearRecipe(clients=200, features=1, samples="20-30")).owner)
    assert counts.min() == 20 and counts.max() == 30
    assert set(np.bincount(load_linear(LinearRecipe(samples=" 7 ")).owner)) == {7}


def test_the_run_configuration_says_all_of_it():
    config = RunConfig(task="linear", input_shape="3", linear_groups=2, linear_samples="12", linear_noise=0.0, seed=4)
    data, parts = partitioned(config, 5)
    assert data.x.shape == (60, 3) and [len(part) for part in parts] == [12] * 5
    theta = linear_parameters(linear_recipe(config, 5))[3]
    np.testing.assert_allclose(data.y[parts[3]], data.x[parts[3]] @ theta, atol=1e-5)
    again, _ = partitioned(config.model_copy(update={"seed": 5}), 5)
    assert not np.array_equal(again.y, data.y)
    more, _ = partitioned(config.model_copy(update={"linear_noise": 1.0}), 5)
    np.testing.assert_array_equal(more.x, data.x)
    assert not np.array_equal(more.y, data.y)


def test_the_task_is_known():
    spec = task_spec("linear", "", "7")
    assert spec.input_shape == (7,) and spec.kind == "regression" and task_spec("linear").input_shape == (20,)
    assert partition_kind(spec, "auto") == "natural" and number_of_clients(spec, "auto", 0) == 10
    assert number_of_clients(spec, "auto", 4) == 4


@pytest.mark.parametrize("samples", ["1", "0-5", "9-3", "many", "", "-4", "3-", "1e3", "9999999999"])
def test_numbers_of_samples_that_mean_nothing(samples):
    with pytest.raises(DataError, match="linear-samples"):
        LinearRecipe(samples=samples)


def test_too_much_and_too_strange():
    with pytest.raises(DataError, match="take fewer"):
        LinearRecipe(clients=10**4, samples="100000")
    with pytest.raises(DataError, match="give their number"):
        task_spec("linear", "", "3,8,8")
    with pytest.raises(ConfigError, match=r"server-data = '0.2'.*task 'linear'"):
        partitioned(RunConfig(task="linear", server_data="0.2"), 3)
