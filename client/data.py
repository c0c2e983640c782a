"""Which samples are mine: a partition of the task's data set, or the data that the node configuration names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.client.tables import TableShare, prepared_share
from coterie.tasks.datasets import load_dataset
from coterie.tasks.linear import LinearRecipe, load_linear
from coterie.tasks.long_tail import long_tail
from coterie.tasks.partitions import cached_partition
from coterie.tasks.reading import SUFFIXES, is_table
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.tasks.samples import Dataset
from coterie.tasks.schema import Schema
from coterie.tasks.server_data import held_out, without
from coterie.tasks.shifts import Shift, kind_of
from coterie.tasks.sources import is_table_run, looked_at, pool_of, several
from coterie.tasks.splits import Split, split, stratified_order
from coterie.tasks.training import Samples, chosen_samples
from coterie.wire.config import RunConfig
from coterie.wire.errors import ConfigError
from coterie.wire.randomness import derive_seed, generator


@dataclass(frozen=True)
class ClientData:
    dataset: Dataset
    split: Split
    num_partitions: int  # 0: the client brings data of its own
    schema: Schema | None = None  # of a table
    shift: Shift | None = None

    def samples(self, indices: np.ndarray, device: str) -> Samples:
        """The chosen samples, normalised, on the device."""
        samples = chosen_samples(self.dataset, indices, device)
        return self.shift(samples) if self.shift else samples


def load_client_data(node_config: Mapping[str, Any], config: RunConfig, name: str) -> ClientData:
    if has_table(config):
        share = table_share(node_config, config, name)
        dataset, schema = prepared_share(share, config)
        return ClientData(dataset, share.split, share.num_partitions, schema=schema)
    own = str(node_config.get("data", ""))
    if own:
        spec = spec_of(config)
        classes = config.classes or ("regression" if spec.kind == "regression" else str(spec.num_outputs))
        shape = ",".join(str(size) for size in spec.input_shape)
        bad = config.bad_files
        dataset = load_dataset("own", config.data_root, data=own, classes=classes, input_shape=shape, bad_files=bad)
        if config.test_data == "published" or config.long_tail > 1 or config.shift != "none" or config.client_samples:
            raise ConfigError(
                "test-data, long-tail, shift, client-samples: are for data sets that are dealt; this client has data of its own"
            )
        return ClientData(dataset, _split(dataset, np.arange(len(dataset)), config, name), 0)
    partition_id, num_partitions = my_partition(node_config, config)
    return _dealt(config, partition_id, num_partitions, str(node_config.get("state-dir", "")))


@lru_cache(maxsize=20_000)
def _dealt(config: RunConfig, partition_id: int, num_partitions: int, cache: str) -> ClientData:
    """A client's share of the task's data set: indices, which are the same for all of its messages."""
    dataset, parts = partitioned(config, num_partitions, cache)
    alone = config.task == "own" and several(config.data)  # as if it had them on a machine of its own
    mine = _split(dataset, parts[partition_id], config, dataset.owners[partition_id] if alone else str(partition_id))
    if config.test_data == "published":
        mine = replace(mine, test=np.sort(published_tests(dataset, config)[partition_id::num_partitions]))
    mine = fewer(mine, dataset.y, config, str(partition_id))
    kind = kind_of(config.shift, partition_id, config.shift_groups)
    shift = Shift(config.shift, kind, dataset.num_classes, derive_seed(config.seed, "shift")) if kind else None
    return ClientData(dataset, mine, num_partitions, shift=shift)


def my_partition(node_config: Mapping[str, Any], config: RunConfig) -> tuple[int, int]:
    """Which share of the data set is this client's, and of how many."""
    if "partition-id" not in node_config:
        raise ConfigError("node configuration: give data='...', or partition-id")
    if config.task == "own" and not config.data:
        raise ConfigError(
            "node configuration: no shared-data: a client opens no file that only the run names; start it with --data PATH and "
            "--partition I for its share of these data, or with --data PATH alone for data of its own"
        )
    partition_id, num_partitions = int(node_config["partition-id"]), num_partitions_of(node_config, config)
    if not num_partitions:
        raise ConfigError(
            "node configuration: no num-partitions, and the run has num-clients = 0: say into how many shares the data set is "
            "dealt, for example num-clients=4"
        )
    if not 0 <= partition_id < num_partitions:
        raise ConfigError(f"node configuration: partition-id = {partition_id}: must be from 0 to {num_partitions - 1}")
    return partition_id, num_partitions


def fewer(mine: Split, labels: np.ndarray, config: RunConfig, name: str) -> Split:
    """`client-samples` of them to train and validate with, labels in proportion; all of them to test."""
    if not config.client_samples:
        return mine
    low, _, high = config.client_samples.partition("-")
    if not (low.isdecimal() and (not high or high.isdecimal()) and 1 <= int(low) <= int(high or low)):
        raise ConfigError(
            f"client-samples = {config.client_samples!r}: must be a number, or a range like 6-48; at least 1"
        )
    rng = generator(config.seed, "client-samples", client=name)
    number = int(rng.integers(int(low), int(high or low) + 1))
    rest = np.concatenate([mine.train, mine.validation])
    chosen = stratified_order(rest, labels, rng)[:number]
    validation = round(config.validation_fraction * len(chosen))
    return replace(mine, train=np.sort(chosen[validation:]), validation=np.sort(chosen[:validation]))


def has_table(config: RunConfig) -> bool:
    """Whether clients have tables in this run, whether their columns are agreed on or not yet."""
    return bool(config.table_schema) or is_table_run(config)


def table_share(node_config: Mapping[str, Any], config: RunConfig, name: str) -> TableShare:
    """The rows of a table that are this client's."""
    own = str(node_config.get("data", ""))
    number = 0
    if own:
        if not is_table(own):
            raise ConfigError(
                f"data = {own!r}: this run is about tables, and that is none ({', '.join(SUFFIXES)}); for arrays and images the "
                "run must say input-shape and classes"
            )
        told = {
            key: str(node_config[key]) for key in ("delimiter", "decimal", "encoding", "missing") if key in node_config
        }
        looked = looked_at(own, config.model_copy(update=told), alone=False)
        rows = np.arange(len(looked.table))
    else:
        mine, number = my_partition(node_config, config)
        _, parts = partitioned(config, number, str(node_config.get("state-dir", "")))
        (looked, rows), *_ = pool_of(config).rows(parts[mine])
    table = looked.table.take(rows)
    labels = table.columns[looked.label]
    y = labels.values if looked.regression else labels.codes
    assert y is not None
    chosen = fewer(_split_by(y, np.arange(len(table)), config, name, every_label=True), y, config, name)
    return TableShare(looked, table, rows, chosen, number)


def load_for_later(node_config: Mapping[str, Any], config: RunConfig, name: str) -> None:
    """Into this process's memory, for those that are forked from it."""
    if has_table(config):
        import_module("sklearn.compose")
        table_share(node_config, config, name)
    else:
        load_client_data(node_config, config, name)


def num_partitions_of(node_config: Mapping[str, Any], config: RunConfig) -> int:
    """Into how many shares the data set is dealt: as the node says, else one for each client of the run."""
    return int(node_config.get("num-partitions", config.num_clients))


def partitioned(config: RunConfig, num_partitions: int, cache: str = "") -> tuple[Dataset, list[np.ndarray]]:
    """The task's data set and the sample indices of every client; kept in memory, and with `cache` also on disk."""
    c = config
    settings: dict[str, Any] = {
        "kind": partition_kind(spec_of(c), c.partition),
        "seed": derive_seed(c.seed, "partition"),
        "dirichlet_alpha": c.dirichlet_alpha,
        "dirichlet_balanced": c.dirichlet_balanced,
        "labels_per_client": c.labels_per_client,
        "shards_per_client": c.shards_per_client,
    }
    dataset = _dataset(c, num_partitions)
    made = repr(linear_recipe(c, num_partitions)) if c.task == "linear" else ""
    table = (c.label, c.ignore, c.missing, c.delimiter, c.decimal, c.encoding)
    where = (c.task, c.data_root, c.data, c.classes, c.input_shape, made, *table)
    key = (*where, num_partitions, c.server_data, c.test_data, c.long_tail, *settings.values())
    if key not in _partitions:
        taken = held_out(dataset, c.server_data, derive_seed(c.seed, "server-data"))
        if c.test_data == "published":
            taken = np.union1d(taken, published_tests(dataset, c))
        if c.long_tail > 1:
            rest = np.setdiff1d(np.arange(len(dataset)), taken)
            rng = generator(c.seed, "long-tail")
            stay = rest[long_tail(dataset.y[rest], c.long_tail, rng)]
            if settings["kind"] == "shards":  # what equal shards leave over is taken from all labels alike
                shards = num_partitions * c.shards_per_client
                stay = stratified_order(stay, dataset.y, rng)[: len(stay) // shards * shards]
            taken = np.setdiff1d(np.arange(len(dataset)), stay)
        dealt, rest = without(dataset, taken) if len(taken) else (dataset, np.arange(len(dataset)))
        parts = cached_partition(dealt, num_partitions, cache=Path(cache) if cache else None, **settings)
        _partitions[key] = [rest[part] for part in parts]
    return dataset, _partitions[key]


def published_tests(dataset: Dataset, c: RunConfig) -> np.ndarray:
    """The published test samples that are not the server's, in a random order with labels in proportion."""
    if not dataset.num_test:
        raise ConfigError(f"test-data = 'published': {dataset.source} has no published test set; use 'own'")
    taken = held_out(dataset, c.server_data, derive_seed(c.seed, "server-data"))
    tests = np.setdiff1d(np.arange(len(dataset) - dataset.num_test, len(dataset)), taken)
    return stratified_order(tests, dataset.y, generator(c.seed, "published-tests"))


def _dataset(c: RunConfig, num_partitions: int) -> Dataset:
    if has_table(c):
        return pool_of(c).outline()
    if c.task != "linear":
        return load_dataset(
            c.task, c.data_root, data=c.data, classes=c.classes, input_shape=c.input_shape, bad_files=c.bad_files
        )
    if c.server_data:
        raise ConfigError(
            f"server-data = {c.server_data!r}: task 'linear' is generated for its clients, and a server has none of it; "
            "choose another task, or a method that needs no server data"
        )
    return load_linear(linear_recipe(c, num_partitions))


def linear_recipe(c: RunConfig, clients: int) -> LinearRecipe:
    """How task `linear` is made in this run: the seed gives everybody the same recipe."""
    features = spec_of(c).input_shape[0]
    seed = derive_seed(c.seed, "linear")
    return LinearRecipe(clients, features, c.linear_groups, c.linear_deviation, c.linear_noise, c.linear_samples, seed)


_partitions: dict[tuple[Any, ...], list[np.ndarray]] = {}  # by data set and settings


def _split(dataset: Dataset, indices: np.ndarray, config: RunConfig, name: str) -> Split:
    return _split_by(dataset.y, indices, config, name)


def _split_by(
    labels: np.ndarray, indices: np.ndarray, config: RunConfig, name: str, every_label: bool = False
) -> Split:
    return split(
        indices,
        labels,
        test_fraction=config.test_fraction if config.test_data == "own" else 0.0,
        validation_fraction=config.validation_fraction,
        seed=derive_seed(config.seed, "split", client=name),
        fold=max(config.fold, 1),
        folds=config.folds,
        every_label=every_label,
    )
