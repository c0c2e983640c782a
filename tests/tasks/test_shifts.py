"""Clients that differ in kind, made from data that do not."""

import numpy as np
import pytest
import torch
from scipy.ndimage import rotate

from coterie.client.data import load_client_data
from coterie.tasks.samples import DataError
from coterie.tasks.shifts import Shift, kind_of
from coterie.tasks.training import Samples
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError


def images(size: int = 8) -> Samples:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 1, size, size)).astype(np.float32))
    return Samples(x, torch.arange(20) % 10)


@pytest.mark.parametrize(("kind", "quarters", "sign"), [(1, 0, -1), (2, 1, 1), (3, 1, -1)])
def test_turned_and_inverted(kind, quarters, sign):
    plain = images()
    shifted = Shift("rotate-invert", kind, 10, 1)(plain)
    np.testing.assert_array_equal(shifted.x, sign * np.rot90(plain.x.numpy(), quarters, axes=(2, 3)))
    np.testing.assert_array_equal(shifted.y, plain.y)
    quarter = Shift("rotate", kind, 10, 1)(plain)
    np.testing.assert_array_equal(quarter.x, np.rot90(plain.x.numpy(), kind, axes=(2, 3)))


def test_tilted_as_by_scipy():
    x = np.zeros((1, 1, 33, 33), np.float32)
    x[..., 6:27, 14:19] = 1.0  # a bar, away from the border
    tilted = Shift("tilt", 1, 10, 1)(Samples(torch.from_numpy(x), torch.zeros(1, dtype=torch.int64))).x[0, 0].numpy()
    by_scipy = [rotate(x[0, 0], angle, reshape=False, order=1) for angle in (30, -30)]
    assert min(np.abs(tilted - other).max() for other in by_scipy) < 0.02


@pytest.mark.parametrize(("name", "moved"), [("permute-labels", None), ("swap-labels", 4)])
def test_labels_are_renamed_alike_for_a_kind_and_otherwise_for_another(name, moved):
    plain = images()
    one, again, other = (Shift(name, kind, 10, 1)(plain).y.numpy() for kind in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    renamed = dict(zip(plain.y.tolist(), one.tolist(), strict=True))
    assert sorted(renamed.values()) == list(range(10))
    if moved:
        assert sum(a != b for a, b in renamed.items()) == moved
        assert all(renamed[renamed[label]] == label for label in range(10))
    assert Shift(name, 0, 10, 1)(plain) is plain


def test_kinds():
    assert [kind_of("rotate", i, 3) for i in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [kind_of("lone", i, 3) for i in range(3)] == [1, 0, 0]
    assert [kind_of("lones", i, 1) for i in range(5)] == [1, 2, 3, 0, 0]
    assert kind_of("none", 5, 3) == 0


def test_what_cannot_be_shifted_is_refused():
    table = Samples(torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="shift = 'rotate': turns square images"):
        Shift("rotate", 1, 10, 1)(table)
    with pytest.raises(DataError, match="shift = 'permute-labels': goes by labels"):
        Shift("permute-labels", 1, 0, 1)(Samples(table.x, torch.zeros(4)))


def mine(client: int = 1, **values):
    config = RunConfig.parse({"task": "digits", "num-clients": 4, "partition": "iid", **values})
    return load_client_data({"partition-id": client, "num-partitions": 4}, config, str(client))


def test_a_client_has_its_kind_and_as_many_samples_as_told():
    plain, turned = mine(), mine(**{"shift": "rotate", "client-samples": "60", "validation-fraction": 0.2})
    assert (len(turned.split.train), len(turned.split.validation)) == (48, 12)
    np.testing.assert_array_equal(turned.split.test, plain.split.test)
    expected = np.rot90(plain.samples(plain.split.test, "cpu").x.numpy(), 1, axes=(2, 3))
    np.testing.assert_array_equal(turned.samples(plain.split.test, "cpu").x, expected)
    sizes = [len(mine(i, **{"client-samples": "6-48", "validation-fraction": 0.0}).split.train) for i in range(4)]
    assert all(6 <= size <= 48 for size in sizes) and len(set(sizes)) > 1


@pytest.mark.parametrize("value", ["many", "0", "48-6"])
def test_a_bad_number_of_samples_is_refused(value):
    with pytest.raises(ConfigError, match=f"client-samples = '{value}'"):
        mine(**{"client-samples": value})
