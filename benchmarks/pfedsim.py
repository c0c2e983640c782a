"""What pFedSim costs the server.

    python benchmarks/pfedsim.py --data DIR

1. The personalised aggregation of 1,000 LeNet5 clients (all extractors of all clients in one matrix product, from the server's
   store) against a bare numpy product of that size.
2. The server's share of a personal round with 100 clients, 10 of them training for 5 epochs, in CPU seconds: everything in the
   main process (messages, checks, similarity, aggregation, events, checkpoint) against all processes together.
3. Memory and time of the store on disk with 1,000 MobileNetV2 clients.
"""

import argparse
import logging
import os
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from coterie.games.similarity import aggregation_weights, similarity_rows
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import run
from coterie.simulate import prepare
from coterie.strategies.observer import Observer
from coterie.strategies.pool import ModelPool
from coterie.tasks.models import build_network


def measure_aggregation(clients: int = 1000) -> None:
    layout = build_network("lenet5", (3, 32, 32), 10, seed=1).dump()
    rng = np.random.default_rng(0)
    pool = ModelPool(layout, Path(), "memory")
    pool.expect(clients)
    for i in range(clients):
        pool.put(str(i), {part: rng.normal(size=like.shape).astype(like.dtype) for part, like in layout.items()})
    classifiers = pool.part("classifier")[:, :840].reshape(clients, 10, 84)
    start = time.process_time()
    similarity = similarity_rows(classifiers, range(clients))
    similar = time.process_time() - start
    mixed_parts = [part for part in layout if part != "classifier"]
    start = time.process_time()
    weights = aggregation_weights(similarity)
    for part in mixed_parts:
        pool.mixed(weights, part)
    ours = time.process_time() - start
    matrix = np.concatenate([pool.part(part) for part in mixed_parts if part != "counters"], axis=1)
    square = weights.astype(np.float32)
    start = time.process_time()
    square @ matrix
    bare = time.process_time() - start
    print(
        f"aggregation for {clients} x LeNet5 ({matrix.shape[1]} numbers each): {ours:.2f} CPU s, bare product {bare:.2f}, "
        f"ratio {ours / bare:.2f}; all similarities {similar:.2f} CPU s"
    )


def measure_server_share(data_root: str, rounds: int = 6) -> None:
    config = prepare({
        "strategy": "pfedsim", "task": "fashion-mnist", "model": "lenet5", "num-clients": 100, "partition": "dirichlet",
        "dirichlet-alpha": 0.1, "test-fraction": 0.5, "validation-fraction": 0.0, "fraction-train": 0.1, "local-epochs": 5,
        "learning-rate": 0.01, "num-server-rounds": rounds, "pfedsim.warmup": 0.5, "data-root": data_root,
    })  # fmt: skip
    marks: list[float] = []

    class Mark(Observer):
        """Notes the main process's CPU seconds after every round."""

        def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
            marks.append(time.process_time())

    pool = Workers(1)
    with tempfile.TemporaryDirectory() as directory:
        run(SimulationGrid(pool, 100, config, directory), config, Path(directory), [Mark()])
    pool.close()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    clients = (usage.ru_utime + usage.ru_stime) / rounds
    personal = (marks[-1] - marks[rounds // 2 - 1]) / (rounds - rounds // 2)
    print(
        f"server in a personal round of 100 clients: {personal:.3f} CPU s, clients {clients:.2f}, "
        f"share {100 * personal / (personal + clients):.1f} %"
    )


def measure_disk(clients: int) -> None:
    layout = build_network("mobilenet-v2", (3, 32, 32), 10, seed=1).dump()
    rows = {part: np.zeros(like.shape, like.dtype) for part, like in layout.items()}
    with tempfile.TemporaryDirectory() as directory:
        pool = ModelPool(layout, Path(directory), "disk")
        pool.expect(clients)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        for i in range(clients):
            pool.put(str(i), rows)
        written = time.process_time() - start
        start = time.process_time()
        for part in layout:
            pool.mixed(np.full((10, clients), 1 / clients), part)
        mixed = time.process_time() - start
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = sum(path.stat().st_size for path in Path(directory).iterdir())
    print(
        f"{clients} x MobileNetV2 on disk: {size / 2**30:.1f} GiB in files, peak memory grew by "
        f"{(after - before) / 1024:.0f} MiB, {written:.1f} CPU s to write all, {mixed:.1f} to mix for 10 clients"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="directory with fashion-mnist.npz")
    parser.add_argument("--disk-clients", type=int, default=1000, help="clients of the third figure; 9 MB of disk each")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    measure_disk(arguments.disk_clients)  # first: its peak memory must not hide behind the others'
    measure_aggregation()
    measure_server_share(arguments.data)
