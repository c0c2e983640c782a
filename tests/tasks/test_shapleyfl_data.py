"""ShapleyFL's data: long tails, images of foreign classes, and the published test set."""

import numpy as np
import pytest
import torch

from coterie.client.data import load_client_data, partitioned
from coterie.strategies.server_game import server_samples
from coterie.tasks.datasets import load_dataset
from coterie.tasks.foreign import foreign_images, foreign_set
from coterie.tasks.long_tail import long_tail
from coterie.tasks.models import build_network
from coterie.tasks.samples import DataError
from coterie.tasks.training import chosen_samples
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError

MEAN, STD = 0.1307 * 255, 0.3081 * 255  # of MNIST


@pytest.fixture
def root(tmp_path):
    """Sets in the shape of MNIST, which is dark, Fashion-MNIST, which is bright, and CIFAR-10."""
    rng = np.random.default_rng(0)
    for name, shape, low, high in (("mnist", (28, 28), 0, 90), ("fashion-mnist", (28, 28), 200, 256)):
        x, y = rng.integers(low, high, (500, *shape), dtype=np.uint8), np.arange(500) % 10
        if name == "mnist":
            x[:, 4:8, 4:8] = 10 * y[:, None, None]
        x[0, 1, 1] = 255
        np.savez(tmp_path / name, x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    x = rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar10", x_train=x[:40], y_train=y[:40], x_test=x[40:60], y_test=y[40:60])
    return str(tmp_path)


def test_counts_fall_geometrically():
    labels = np.repeat(np.arange(5), 1000)
    kept = long_tail(labels, 100.0, np.random.default_rng(0))
    counts = sorted(np.bincount(labels[kept]).tolist(), reverse=True)
    assert counts == [1000, 316, 100, 32, 10] and len(set(kept.tolist())) == len(kept)


@pytest.mark.parametrize("seed", range(5))
def test_the_ratio_is_what_was_asked_for_where_labels_differ_in_number(seed):
    """As many as in MNIST."""
    labels = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    kept = long_tail(labels, 100.0, np.random.default_rng(seed))
    counts = np.sort(np.bincount(labels[kept], minlength=10))[::-1]
    assert counts[0] >= 5421 and counts[0] / counts[-1] == pytest.approx(100, rel=0.01)
    np.testing.assert_allclose(counts[1:] / counts[:-1], 100 ** (-1 / 9), rtol=0.02)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_the_whole_set_has_the_tail_before_it_is_dealt(kind):
    config = RunConfig(task="digits", long_tail=20.0, partition=kind, num_clients=5)
    dataset, parts = partitioned(config, 5)
    counts = np.sort(np.bincount(dataset.y[np.concatenate(parts)], minlength=10))[::-1]
    assert 17 <= counts[0] / counts[-1] <= 23 and counts[0] > 150
    whole = partitioned(config.model_copy(update={"long_tail": 1.0}), 5)[1]
    assert sum(map(len, whole)) >= len(dataset) - 9  # equal shards leave a few over


def test_a_tail_that_is_too_long_and_values_without_labels_are_refused():
    with pytest.raises(DataError, match="long-tail = 1000: the rarest label would have no sample; lower it"):
        partitioned(RunConfig(task="digits", long_tail=1000.0), 5)
    with pytest.raises(DataError, match="regression task has none"):
        partitioned(RunConfig(task="synthetic-linear", long_tail=2.0), 6)


def test_foreign_images_are_another_sets_in_the_shape_and_scale_of_the_task(root):
    mnist, cifar = load_dataset("mnist", root), load_dataset("cifar10", root)
    other = foreign_set("mnist", "auto", root)
    images = foreign_images(other, mnist, 40, np.random.default_rng(0), "cpu")
    pixels = images * STD + MEAN
    assert images.shape == (40, 1, 28, 28) and float(pixels.min()) > 199 and float(pixels.max()) < 256
    known = {image.tobytes() for image in other.x}
    assert all(image.numpy().astype(np.uint8).tobytes() in known for image in pixels.round())
    assert foreign_images(other, cifar, 3, np.random.default_rng(0), "cpu").shape == (3, 3, 32, 32)
    assert foreign_set("digits", "auto", root) is None and foreign_set("mnist", "none", root) is None
    with pytest.raises(DataError, match="is the task itself"):
        foreign_set("mnist", "mnist", root)
    with pytest.raises(DataError, match="has no images"):
        foreign_set("mnist", "synthetic-linear", root)


def test_a_bad_client_trains_with_half_of_its_images_from_another_set(federate, root):
    from coterie.client.participant import Participant

    settings = {"task": "mnist", "data_root": root, "model": "linear", "num_server_rounds": 1}
    bad = {"attack.kind": "open-set", "attack.strength": 0.5, "attack.clients": "1"}
    run = federate(**settings, **bad)
    assert run.events[0]["left-out"] == {}
    contexts = {str(c.node_config["partition-id"]): c for c in run.grid.contexts.values()}
    me = Participant.of(contexts["1"])
    honest = me.train_samples()
    spoiled = me.attack().on_samples(honest)
    bright = ((spoiled.x * STD + MEAN).flatten(1).min(dim=1).values > 199).numpy()
    assert bright.sum() == round(len(honest) / 2) and torch.equal(spoiled.y, honest.y)
    assert torch.equal(spoiled.x[~bright], honest.x[~bright]) and Participant.of(contexts["0"]).attack() is None


def test_the_published_test_set_without_the_servers_is_what_is_tested(federate, root):
    """200 published test images, 50 of them the server's: the other 150 are tested, and nobody trains with them."""
    settings = {"task": "mnist", "data_root": root, "model": "linear", "server_data": "50", "test_data": "published"}
    config = RunConfig(**settings, num_clients=4, partition="iid")
    split = [load_client_data({"partition-id": i}, config, str(i)).split for i in range(4)]
    trained = np.concatenate([np.concatenate([one.train, one.validation]) for one in split])
    tested = np.concatenate([one.test for one in split])
    assert sorted(trained) == list(range(300)) and len(set(tested)) == 150 and tested.min() >= 300
    assert [len(one.test) for one in split] == [38, 38, 37, 37]
    dataset = load_dataset("mnist", root)
    seen = (server_samples(config, "cpu").x * STD + MEAN).round().numpy().astype(np.uint8)
    servers = [i for i, image in enumerate(dataset.x) if image.tobytes() in {one.tobytes() for one in seen}]
    assert len(servers) == 50 and sorted([*servers, *tested]) == list(range(300, 500))
    run = federate(**settings, num_server_rounds=2)
    samples = chosen_samples(dataset, np.sort(tested), "cpu")
    network = build_network("linear", (1, 28, 28), 10, seed=0)
    network.load({part: run.model[part] for part in network.parts})
    accuracy = float((network(samples.x).argmax(dim=1) == samples.y).double().mean())
    assert run.result["models"]["global"]["mean"]["accuracy-weighted"] == pytest.approx(accuracy, abs=1e-9)


def test_a_task_without_a_published_test_set_says_so():
    with pytest.raises(ConfigError, match="has no published test set; use 'own'"):
        partitioned(RunConfig(task="digits", test_data="published"), 5)
