"""Who gets which samples: partitions of a data set over clients, and each client's train, validation and test split.

iid           a random permutation cut into equal parts
dirichlet     each label's samples are dealt by shares drawn from Dir(alpha), label by label (Yurochkin et al. 2019)
pathological  each client has exactly `labels_per_client` labels; those who have a label share its samples equally
shards        samples sorted by label, cut into clients * shards_per_client equal shards, dealt at random
              (McMahan et al. 2017)
natural       the owners that the data set itself names

Everything is drawn from the seed. dirichlet and shards are flwr-datasets' partitioners over a table of indices and
labels. The others are a few lines of numpy: flwr-datasets' iid does not shuffle, and its pathological one leaves labels
out or gives some labels to far more clients than others.
"""

import hashlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from coterie.tasks.samples import DataError, Dataset, did_you_mean, read_arrays
from coterie.tasks.splits import Split, split
from coterie.wire.files import write_atomically

__all__ = ["KINDS", "Split", "cached_partition", "partition", "split"]

log = logging.getLogger(__name__)
KINDS = ("iid", "dirichlet", "pathological", "shards", "natural")
MAX_ALPHA = 1e9  # shares are even long before, and sums overflow long after


def partition(
    dataset: Dataset,
    num_clients: int,
    *,
    kind: str,
    seed: int,
    dirichlet_alpha: float = 0.5,
    dirichlet_balanced: bool = False,
    labels_per_client: int = 2,
    shards_per_client: int = 2,
    min_samples: int = 10,
) -> list[np.ndarray]:
    """Sample indices of every client: disjoint, ascending, never empty.

    `min_samples` is for dirichlet, the one kind that can leave a client with next to nothing.
    """
    _check_partition(dataset, num_clients, kind, seed)
    rng = np.random.default_rng(seed)
    if kind == "iid":
        parts = np.array_split(rng.permutation(len(dataset)), num_clients)
    elif kind == "natural":
        parts = _natural(dataset, num_clients)
    elif kind == "pathological":
        parts = _pathological(dataset.y, num_clients, labels_per_client, rng)
    elif kind == "shards":
        parts = _shards(dataset.y, num_clients, shards_per_client, seed)
    else:
        parts = _dirichlet(dataset.y, num_clients, dirichlet_alpha, dirichlet_balanced, min_samples, seed)
    return [np.sort(part).astype(np.int64) for part in parts]


def _check_partition(dataset: Dataset, num_clients: int, kind: str, seed: int) -> None:
    if kind not in KINDS:
        raise DataError(f"unknown partition {kind!r}. {did_you_mean(kind, KINDS)}")
    if num_clients < 1:
        raise DataError(f"num-clients is {num_clients}; it must be at least 1.")
    if num_clients > len(dataset):
        raise DataError(f"num-clients is {num_clients}, but there are only {len(dataset)} samples; take fewer clients.")
    if seed < 0:
        raise DataError(f"seed is {seed}; it must be 0 or more.")
    if dataset.num_classes == 0 and kind not in ("iid", "natural"):
        raise DataError(f"partition {kind!r} goes by labels, and a regression task has none; use 'iid' or 'natural'.")


def _natural(dataset: Dataset, num_clients: int) -> list[np.ndarray]:
    if dataset.owner is None:
        raise DataError(
            "partition 'natural' needs data that names its owners; this data set does not. Use another kind."
        )
    if num_clients != len(dataset.owners):
        raise DataError(
            f"partition 'natural' has {len(dataset.owners)} clients ({', '.join(dataset.owners[:10])}), but "
            f"num-clients is {num_clients}; set num-clients to {len(dataset.owners)}."
        )
    parts = [np.flatnonzero(dataset.owner == owner) for owner in range(num_clients)]
    for name, part in zip(dataset.owners, parts, strict=True):
        if len(part) == 0:
            raise DataError(f"partition 'natural': owner {name!r} has no samples; leave that owner out of the data.")
    return parts


def _pathological(
    labels: np.ndarray, num_clients: int, labels_per_client: int, rng: np.random.Generator
) -> list[np.ndarray]:
    present = np.unique(labels)
    if not 1 <= labels_per_client <= len(present):
        raise DataError(
            f"labels-per-client is {labels_per_client}; the data has {len(present)} labels: take 1 to {len(present)}."
        )
    held = deal_labels(present, num_clients, labels_per_client, rng)  # (clients, labels_per_client)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label in present:
        holders = np.flatnonzero((held == label).any(axis=1))
        samples = rng.permutation(np.flatnonzero(labels == label))
        if len(samples) < len(holders):
            raise DataError(
                f"label {label} has {len(samples)} samples, too few for the {len(holders)} clients that "
                "would hold it; take fewer clients or labels per client."
            )
        for holder, share in zip(holders, np.array_split(samples, max(len(holders), 1)), strict=False):
            parts[holder].append(share)
    return [np.concatenate(part) for part in parts]


def deal_labels(present: np.ndarray, num_clients: int, labels_per_client: int, rng: np.random.Generator) -> np.ndarray:
    """Deal labels like cards from shuffled decks: distinct within a client, and used equally often up to one.

    So every label is held by somebody as soon as there are as many hands as labels.
    """
    deck: list[int] = []
    hands = []
    for _ in range(num_clients):
        hand = deck[:labels_per_client]
        deck = deck[labels_per_client:]
        if len(hand) < labels_per_client:
            fresh = rng.permutation(present).tolist()
            extra = [label for label in fresh if label not in hand][: labels_per_client - len(hand)]
            deck = [label for label in fresh if label not in extra]
            hand = hand + extra
        hands.append(hand)
    return np.array(hands)


def _shards(labels: np.ndarray, num_clients: int, shards_per_client: int, seed: int) -> list[np.ndarray]:
    if shards_per_client < 1 or num_clients * shards_per_client > len(labels):
        raise DataError(
            f"shards-per-client is {shards_per_client}; with {num_clients} clients and {len(labels)} samples it must "
            f"be from 1 to {len(labels) // num_clients}."
        )
    make = _partitioners("shards").ShardPartitioner
    partitioner = make(num_clients, "label", num_shards_per_partition=shards_per_client, seed=seed)
    return _run(partitioner, labels, num_clients)


def _dirichlet(
    labels: np.ndarray, num_clients: int, alpha: float, balanced: bool, min_samples: int, seed: int
) -> list[np.ndarray]:
    """Dirichlet shares; up to eleven draws to give everybody `min_samples`, then the last resort is to top up. `balanced`: no
    more for a client that has its equal share of all samples.

    With many clients and a small alpha no number of draws suffices: then the poorest are topped up from the richest.
    """
    if not 0 < alpha <= MAX_ALPHA:
        raise DataError(f"dirichlet-alpha is {alpha}; it must be above 0 and at most {MAX_ALPHA:g}, for example 0.5.")
    make = _partitioners("dirichlet").DirichletPartitioner
    least = max(min(min_samples, len(labels) // num_clients), 1)
    try:
        return _run(
            make(num_clients, "label", float(alpha), least, self_balancing=balanced, seed=seed), labels, num_clients
        )
    except ValueError:
        parts = _run(
            make(num_clients, "label", float(alpha), 0, self_balancing=balanced, seed=seed), labels, num_clients
        )
    return top_up(parts, least, np.random.default_rng(seed))


def top_up(parts: list[np.ndarray], least: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Give every part at least `least` samples: a poor one takes random samples of whoever is richest, one by one."""
    sizes = np.array([len(part) for part in parts])
    lists = [rng.permutation(part).tolist() for part in parts]
    for poor in np.flatnonzero(sizes < least):
        while len(lists[poor]) < least:
            rich = int(sizes.argmax())
            lists[poor].append(lists[rich].pop())
            sizes[rich] -= 1
            sizes[poor] += 1
    return [np.array(part, dtype=np.int64) for part in lists]


def _partitioners(kind: str) -> Any:
    try:
        from flwr_datasets import partitioner
    except ModuleNotFoundError:
        raise DataError(
            f"partition = {kind!r}: needs flwr-datasets, which a client's installation has not: pip install flwr-datasets."
        ) from None
    return partitioner


def _run(partitioner: Any, labels: np.ndarray, num_clients: int) -> list[np.ndarray]:
    from datasets import Dataset as Table

    partitioner.dataset = Table.from_dict({"index": np.arange(len(labels)), "label": labels})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for every draw that was too uneven, and those of pyarrow
        parts = [partitioner.load_partition(client) for client in range(num_clients)]
        return [part.with_format("numpy")[:]["index"] for part in parts]  # with [:] the column is read at once


def cached_partition(
    dataset: Dataset, num_clients: int, *, kind: str, seed: int, cache: Path | None, **settings: Any
) -> list[np.ndarray]:
    """`partition`, read from a file in `cache` if it was made before: a new client process need not draw it again."""
    if cache is None:
        return partition(dataset, num_clients, kind=kind, seed=seed, **settings)
    path = cache / f"partition-{_digest(dataset, num_clients, kind, seed, settings)}.npz"
    try:
        table = read_arrays(path)
        return np.split(table["indices"], table["starts"])
    except (DataError, KeyError):  # not there, or damaged
        parts = partition(dataset, num_clients, kind=kind, seed=seed, **settings)
    try:
        _write(parts, path)
    except OSError as error:
        log.warning("the partition could not be kept in %s: %s", path, error)
    return parts


def _write(parts: list[np.ndarray], path: Path) -> None:
    table = io.BytesIO()
    np.savez(table, indices=np.concatenate(parts), starts=np.cumsum([len(part) for part in parts])[:-1])
    write_atomically(path, table.getvalue())


def _digest(dataset: Dataset, num_clients: int, kind: str, seed: int, settings: dict[str, Any]) -> str:
    key = hashlib.sha256(repr(("1", num_clients, kind, seed, sorted(settings.items()), dataset.num_classes)).encode())
    key.update(np.ascontiguousarray(dataset.y).data)
    if dataset.owner is not None:
        key.update(repr(dataset.owners).encode() + np.ascontiguousarray(dataset.owner).tobytes())
    return key.hexdigest()[:32]
