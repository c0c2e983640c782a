"""Partitions and splits: laws that hold for every data set and seed, and the settings that are refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.tasks import partitions
from coterie.tasks.datasets import DataError, Dataset, load_dataset
from coterie.tasks.partitions import KINDS, cached_partition, partition, split
from coterie.tasks.splits import Split

BY_LABEL = ("iid", "dirichlet", "pathological", "shards")


def labelled(labels: np.ndarray, owner: np.ndarray | None = None) -> Dataset:
    x = np.zeros((len(labels), 1), np.float32)
    owners = () if owner is None else tuple(f"owner-{i}" for i in range(int(owner.max()) + 1))
    classes = max(int(labels.max()) + 1, 2)
    one = np.ones(1, np.float32)
    return Dataset(x, labels.astype(np.int64), classes, one, one, owner=owner, owners=owners)


def balanced(classes: int, each: int) -> Dataset:
    return labelled(np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each)))


def regression(n: int) -> Dataset:
    one = np.ones(1, np.float32)
    return Dataset(np.zeros((n, 1), np.float32), np.zeros(n, np.float32), 0, one, one)


def assert_disjoint(parts: list[np.ndarray], n: int) -> np.ndarray:
    together = np.concatenate(parts)
    assert all(part.dtype == np.int64 and len(part) > 0 for part in parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < n
    return together


# --- laws of all kinds -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(BY_LABEL),
    clients=st.integers(1, 12),
    classes=st.integers(2, 6),
    seed=st.integers(0, 2**32),
    alpha=st.floats(0.01, 100),
)
def test_every_client_gets_samples_and_no_sample_goes_to_two(kind, clients, classes, seed, alpha):
    data = balanced(classes, 40)
    parts = partition(data, clients, kind=kind, seed=seed, dirichlet_alpha=alpha)
    assert len(parts) == clients
    together = assert_disjoint(parts, len(data))
    if kind in ("iid", "dirichlet"):
        assert len(together) == len(data)
    if kind == "iid":
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    if kind == "shards":  # all shards are equal, so less than a sample per shard is left over
        assert len({len(part) for part in parts}) == 1
        assert len(data) - len(together) < clients * 2


@pytest.mark.parametrize("kind", BY_LABEL)
def test_the_seed_decides(kind):
    data = load_dataset("digits", "unused")
    first, again, other = (partition(data, 10, kind=kind, seed=seed) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_partition_is_the_same_in_another_process():
    code = (
        "import hashlib; from tasks.datasets import load_dataset; from tasks.partitions import partition\n"
        "parts = partition(load_dataset('digits', 'unused'), 5, kind='dirichlet', seed=3)\n"
        "print(hashlib.sha256(b''.join(part.tobytes() + b'|' for part in parts)).hexdigest())"
    )
    root = Path(partitions.__file__).parents[1]
    run = [sys.executable, "-W", "ignore", "-c", code]
    outputs = {subprocess.run(run, cwd=root, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(outputs) == 1 and len(outputs.pop().strip()) == 64


# --- dirichlet -------------------------------------------------------------------------------------------------------


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    clients, classes, each, alpha = 8, 150, 200, 0.4
    parts = partition(balanced(classes, each), clients, kind="dirichlet", seed=1, dirichlet_alpha=alpha)
    labels = balanced(classes, each).y
    shares = np.array([np.bincount(labels[part], minlength=classes) for part in parts]) / each
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.15)


def test_a_large_alpha_is_nearly_even():
    data = balanced(5, 400)
    parts = partition(data, 4, kind="dirichlet", seed=1, dirichlet_alpha=1e5)
    table = np.array([np.bincount(data.y[part], minlength=5) for part in parts])
    assert abs(table - 100).max() <= 5


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.1])
def test_dirichlet_ends_with_everybody_at_the_minimum(alpha):
    data = load_dataset("digits", "unused")
    parts = partition(data, 100, kind="dirichlet", seed=1, dirichlet_alpha=alpha)
    assert len(assert_disjoint(parts, len(data))) == len(data)
    assert min(len(part) for part in parts) == 10


def test_the_minimum_gives_way_when_there_are_not_enough_samples():
    parts = partition(balanced(2, 10), 20, kind="dirichlet", seed=1, dirichlet_alpha=0.1)
    assert [len(part) for part in parts] == [1] * 20


def test_nobody_is_empty_even_without_a_minimum():
    parts = partition(balanced(3, 20), 30, kind="dirichlet", seed=1, dirichlet_alpha=0.01, min_samples=0)
    assert min(len(part) for part in parts) == 1


def test_topping_up_takes_from_the_richest_only():
    parts = [np.arange(0, 50), np.array([50]), np.array([], np.int64), np.arange(60, 66)]
    filled = partitions.top_up(parts, 4, np.random.default_rng(0))
    assert [len(part) for part in filled] == [43, 4, 4, 6]
    assert set(filled[3]) == set(range(60, 66)) and 50 in filled[1]
    assert sorted(np.concatenate(filled)) == sorted(np.concatenate(parts))


# --- pathological and shards -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 25), classes=st.integers(2, 12), seed=st.integers(0, 2**32), data=st.data())
def test_pathological_clients_have_exactly_their_labels(clients, classes, seed, data):
    per_client = data.draw(st.integers(1, classes))
    samples = balanced(classes, 60)
    parts = partition(samples, clients, kind="pathological", seed=seed, labels_per_client=per_client)
    held = [set(samples.y[part].tolist()) for part in parts]
    assert all(len(labels) == per_client for labels in held)
    times = [sum(label in labels for labels in held) for label in range(classes)]
    assert max(times) - min(times) <= 1
    if clients * per_client >= classes:
        assert min(times) >= 1  # every label is somewhere, and then every sample is
        assert len(np.concatenate(parts)) == len(samples)


def test_pathological_clients_are_equally_large():
    parts = partition(balanced(10, 90), 10, kind="pathological", seed=5, labels_per_client=2)
    assert {len(part) for part in parts} == {90}


def test_which_samples_of_a_label_a_pathological_client_gets_is_random():
    data = balanced(2, 30)
    one, two = (partition(data, 3, kind="pathological", seed=seed, labels_per_client=2) for seed in (1, 2))
    assert not np.array_equal(one[0], two[0])


def test_two_shards_hold_few_labels():
    data = balanced(10, 200)
    parts = partition(data, 100, kind="shards", seed=1)
    assert {len(part) for part in parts} == {20}
    held = [len(np.unique(data.y[part])) for part in parts]
    assert max(held) == 2 and min(held) == 1  # 20 shards per label, none across two labels


# --- natural ---------------------------------------------------------------------------------------------------------


def test_natural_clients_are_the_owners():
    owner = np.array([1, 0, 2, 1, 1, 0])
    parts = partition(labelled(np.array([0, 1, 0, 1, 0, 1]), owner), 3, kind="natural", seed=1)
    assert [part.tolist() for part in parts] == [[1, 5], [0, 3, 4], [2]]


def test_regression_can_be_natural_or_iid():
    data = load_dataset("synthetic-linear", "unused")
    assert [len(part) for part in partition(data, 6, kind="natural", seed=1)] == [200] * 6
    assert [len(part) for part in partition(data, 5, kind="iid", seed=1)] == [240] * 5
    for kind in ("dirichlet", "pathological", "shards"):
        with pytest.raises(DataError, match="regression"):
            partition(data, 6, kind=kind, seed=1)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "dirichlet", "dirichlet_alpha": 0.0}, "dirichlet-alpha is 0.0"),
        ({"kind": "dirichlet", "dirichlet_alpha": -1.0}, "dirichlet-alpha is -1.0"),
        ({"kind": "dirichlet", "dirichlet_alpha": float("nan")}, "dirichlet-alpha is nan"),
        ({"kind": "dirichlet", "dirichlet_alpha": float("inf")}, "dirichlet-alpha is inf"),
        ({"kind": "dirichlet", "dirichlet_alpha": 1e308}, "at most 1e"),
        ({"kind": "pathological", "labels_per_client": 4}, "labels-per-client is 4; the data has 3 labels"),
        ({"kind": "pathological", "labels_per_client": 0}, "labels-per-client is 0"),
        ({"kind": "shards", "shards_per_client": 0}, "shards-per-client is 0"),
        ({"kind": "shards", "shards_per_client": 20}, "from 1 to 7"),
        ({"kind": "iid", "num_clients": 0}, "num-clients is 0"),
        ({"kind": "iid", "num_clients": -3}, "num-clients is -3"),
        ({"kind": "iid", "num_clients": 31}, "only 30 samples"),
        ({"kind": "dirichlet", "num_clients": 31}, "only 30 samples"),
        ({"kind": "iid", "seed": -1}, "seed is -1"),
        ({"kind": "dirichlett"}, "Did you mean 'dirichlet'"),
        ({"kind": ""}, "Known: iid, dirichlet, pathological, shards, natural"),
        ({"kind": "natural"}, "names its owners"),
    ],
)
def test_bad_settings_are_refused_by_name(arguments, message):
    arguments = {"num_clients": 4, "seed": 1, **arguments}
    with pytest.raises(DataError, match=message):
        partition(balanced(3, 10), **arguments)


def test_natural_needs_the_right_number_of_clients():
    data = labelled(np.array([0, 1, 0]), np.array([0, 1, 1]))
    with pytest.raises(DataError, match="set num-clients to 2"):
        partition(data, 3, kind="natural", seed=1)


def test_a_label_rarer_than_its_holders_is_refused():
    with pytest.raises(DataError, match="label 1 has 2 samples"):
        partition(labelled(np.array([0] * 30 + [1] * 2)), 5, kind="pathological", seed=1)


# --- the file cache --------------------------------------------------------------------------------------------------


def test_the_cache_gives_the_same_without_drawing_again(tmp_path, monkeypatch):
    data = load_dataset("digits", "unused")
    plain = partition(data, 10, kind="dirichlet", seed=1, dirichlet_alpha=0.3)
    made = cached_partition(data, 10, kind="dirichlet", seed=1, cache=tmp_path / "new", dirichlet_alpha=0.3)
    monkeypatch.setattr(partitions, "partition", lambda *_, **__: pytest.fail("drawn again"))
    read = cached_partition(data, 10, kind="dirichlet", seed=1, cache=tmp_path / "new", dirichlet_alpha=0.3)
    for parts in (made, read):
        assert len(parts) == 10
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(parts, plain, strict=True))
    assert [path.name[:10] for path in (tmp_path / "new").iterdir()] == ["partition-"]


def test_every_setting_and_the_labels_have_a_file_of_their_own(tmp_path):
    one, two = labelled(np.array([0, 1] * 20)), labelled(np.array([1, 0] * 20))
    owned = labelled(np.array([0, 1] * 20), np.array([0, 1] * 20))
    for data, clients, kind, seed, more in (
        (one, 2, "iid", 1, {}),
        (two, 2, "iid", 1, {}),
        (owned, 2, "iid", 1, {}),
        (one, 3, "iid", 1, {}),
        (one, 2, "pathological", 1, {}),
        (one, 2, "iid", 2, {}),
        (one, 2, "pathological", 1, {"labels_per_client": 1}),
    ):
        cached_partition(data, clients, kind=kind, seed=seed, cache=tmp_path, **more)
    assert len(list(tmp_path.iterdir())) == 7


def test_a_damaged_cache_is_made_anew(tmp_path):
    data = balanced(3, 10)
    first = cached_partition(data, 2, kind="iid", seed=1, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    again = cached_partition(data, 2, kind="iid", seed=1, cache=tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    with np.load(path) as file:
        assert len(file["indices"]) == 30


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    parts = cached_partition(balanced(3, 10), 2, kind="iid", seed=1, cache=tmp_path / "file")
    assert len(parts) == 2 and "could not be kept" in caplog.text


def test_without_a_cache_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(cached_partition(balanced(3, 10), 2, kind="iid", seed=1, cache=None)) == 2
    assert list(tmp_path.iterdir()) == []


# --- splits ----------------------------------------------------------------------------------------------------------


def parts_of(result: Split) -> list[list[int]]:
    return [result.train.tolist(), result.validation.tolist(), result.test.tolist()]


@settings(max_examples=200, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    test_fraction=st.floats(0, 0.99),
    validation_fraction=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
)
def test_a_split_is_a_partition_with_the_right_sizes(labels, test_fraction, validation_fraction, seed):
    every = np.array([5, *labels, 5])  # two samples of the data set belong to somebody else
    indices = np.arange(1, len(labels) + 1)
    made = split(indices, every, test_fraction=test_fraction, validation_fraction=validation_fraction, seed=seed)
    assert sorted(np.concatenate([made.train, made.validation, made.test])) == indices.tolist()
    assert len(made.train) >= 1
    n, rest = len(labels), len(labels) - len(made.test)
    if test_fraction > 0 and n >= 2:
        assert len(made.test) >= 1
    if validation_fraction > 0 and rest >= 2:
        assert len(made.validation) >= 1
    assert len(made.test) <= max(n * test_fraction + 0.5, 1)
    assert len(made.validation) <= max(rest * validation_fraction + 0.5, 1)
    if test_fraction == 0:
        assert len(made.test) == 0
    if validation_fraction == 0:
        assert len(made.validation) == 0


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (4, (2, 1, 1)), (10, (6, 2, 2)), (100, (64, 16, 20))],
)
def test_small_clients(n, sizes):
    made = split(np.arange(n), np.zeros(n, np.int64), test_fraction=0.2, validation_fraction=0.2, seed=1)
    assert tuple(len(part) for part in parts_of(made)) == sizes


def test_labels_are_in_proportion_everywhere():
    labels = np.repeat([0, 1, 2], [100, 60, 40])
    made = split(np.arange(200), labels, test_fraction=0.5, validation_fraction=0.2, seed=3)
    assert np.bincount(labels[made.test]).tolist() == [50, 30, 20]
    assert np.bincount(labels[made.validation]).tolist() == [10, 6, 4]


def test_a_label_with_one_sample_stays_in_training():
    labels = np.array([0] * 10 + [1])
    for seed in range(30):
        made = split(np.arange(11), labels, test_fraction=0.5, validation_fraction=0.3, seed=seed)
        assert 10 in made.train


def test_two_samples_of_two_labels_still_have_a_test():
    made = split(np.array([0, 1]), np.array([0, 1]), test_fraction=0.2, validation_fraction=0.5, seed=1)
    assert len(made.train) == len(made.test) == 1 and len(made.validation) == 0


def test_the_split_follows_the_seed_and_the_test_ignores_the_validation():
    labels = np.arange(100) % 5
    args = {"test_fraction": 0.3, "validation_fraction": 0.2}
    first = split(np.arange(100), labels, seed=1, **args)
    assert parts_of(first) == parts_of(split(np.arange(100), labels, seed=1, **args))
    assert parts_of(first) != parts_of(split(np.arange(100), labels, seed=2, **args))
    without = split(np.arange(100), labels, seed=1, test_fraction=0.3, validation_fraction=0)
    assert np.array_equal(first.test, without.test)


def test_the_validation_part_follows_the_seed_too():
    args = {"labels": np.zeros(40, np.int64), "test_fraction": 0, "validation_fraction": 0.5}
    one, two = (split(np.arange(40), seed=seed, **args) for seed in (1, 2))
    assert not np.array_equal(one.validation, two.validation)


def test_regression_targets_are_split_at_random():
    targets = np.linspace(0, 1, 50, dtype=np.float32)
    made = split(np.arange(50), targets, test_fraction=0.2, validation_fraction=0, seed=1)
    assert len(made.test) == 10 and made.test.tolist() != list(range(10))


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["test_fraction", "validation_fraction"])
def test_fractions_out_of_range_are_refused(name, bad):
    arguments = {"test_fraction": 0.2, "validation_fraction": 0.2, name: bad}
    with pytest.raises(DataError, match=f"{name.replace('_', '-')} is {bad}"):
        split(np.arange(10), np.zeros(10, np.int64), seed=1, **arguments)


def test_a_client_without_samples_is_refused():
    with pytest.raises(DataError, match="no samples"):
        split(np.array([], np.int64), np.zeros(10, np.int64), test_fraction=0.2, validation_fraction=0, seed=1)


def test_regression_and_kinds_are_all_known():
    assert set(BY_LABEL) | {"natural"} == set(KINDS)
    assert len(partition(regression(7), 7, kind="iid", seed=0)) == 7
