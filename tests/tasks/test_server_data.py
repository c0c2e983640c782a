"""The server's validation data: nobody else has them, and what is wrong with them is told."""

import numpy as np
import pytest

from coterie.client.data import partitioned
from coterie.simulate import prepare
from coterie.strategies.registry import parse_config
from coterie.strategies.server_game import server_samples
from coterie.tasks.datasets import load_dataset
from coterie.tasks.samples import DataError
from coterie.tasks.server_data import held_out, without

BASE = {"strategy": "afedsv", "task": "digits"}


def config_of(**values):
    return parse_config(prepare({**BASE, **values}))[0]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "pathological", "shards"])
def test_no_client_has_a_sample_of_the_server(partition):
    config = config_of(**{"server-data": "0.2", "partition": partition})
    dataset, parts = partitioned(config, 10)
    taken = held_out(dataset, "0.2", 0)
    assert len(taken) == round(0.2 * len(dataset)) == len(server_samples(config, "cpu"))
    mine = server_samples(config, "cpu").x.numpy().reshape(len(taken), -1)
    dealt = np.concatenate(parts)
    assert len(dealt) == len(set(dealt.tolist())) <= len(dataset) - len(taken)
    rest = np.setdiff1d(np.arange(len(dataset)), dealt)
    pixels = (dataset.x[rest].reshape(len(rest), -1) - dataset.mean[0]) / dataset.std[0]
    here = {row.tobytes() for row in pixels.astype(np.float32).round(3)}
    assert {row.tobytes() for row in mine.round(3)} <= here
    if partition in ("iid", "dirichlet"):  # these deal everything
        assert len(dealt) == len(dataset) - len(taken)


def test_labels_in_proportion_and_by_seed():
    digits = load_dataset("digits", "data")
    taken = held_out(digits, "200", 1)
    assert len(taken) == 200 and np.ptp(np.bincount(digits.y[taken])) <= 2
    assert not np.array_equal(taken, held_out(digits, "200", 2)) and len(held_out(digits, "", 1)) == 0


def test_only_of_the_published_test_set():
    import dataclasses

    digits = dataclasses.replace(load_dataset("digits", "data"), num_test=100)
    assert held_out(digits, "0.5", 1).min() >= len(digits) - 100 and len(held_out(digits, "0.5", 1)) == 50
    assert len(held_out(digits, "100", 1)) == 100
    left, where = without(digits, held_out(digits, "40", 1))
    assert len(left) == len(where) == len(digits) - 40 and np.array_equal(left.y, digits.y[where])
    with pytest.raises(DataError, match="from 1 to 100, or a share below 1, of the published test set"):
        held_out(digits, "101", 1)


@pytest.mark.parametrize("text", ["0", "-5", "1797", "2.5", "0.0001", "nan", "inf"])
def test_wrong_amounts(text):
    with pytest.raises(DataError, match="server-data = "):
        config_of(**{"server-data": text})


def test_a_file_of_the_servers_own(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 17, (30, 8, 8)).astype(np.uint8), np.arange(30) % 10
    np.savez(tmp_path / "own.npz", x=x, y=y)
    config = config_of(**{"server-data": str(tmp_path / "own.npz")})
    samples = server_samples(config, "cpu")
    digits = load_dataset("digits", "data")
    np.testing.assert_allclose(samples.x[:, 0].numpy(), (x - digits.mean[0]) / digits.std[0], rtol=1e-5)
    assert sum(len(part) for part in partitioned(config, 10)[1]) == len(digits)  # clients lose nothing
    np.savez(tmp_path / "wrong.npz", x=x, y=y + 5)
    with pytest.raises(DataError, match=r"label 1\d in row \d+ is outside 0..9"):
        config_of(**{"server-data": str(tmp_path / "wrong.npz")})
    np.savez(tmp_path / "shape.npz", x=x[:, :4], y=y)
    with pytest.raises(DataError, match="shape"):
        config_of(**{"server-data": str(tmp_path / "shape.npz")})
    with pytest.raises(DataError, match="there is no such file"):
        config_of(**{"server-data": str(tmp_path / "missing.npz")})
