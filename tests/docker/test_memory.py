"""How much memory a client takes, of the 1 GB that it may."""

import json
import re
import threading

import pytest

pytestmark = pytest.mark.docker

IDLE, TRAINING = 250e6, 600e6  # bytes at most
UNITS = {"B": 1, "kB": 1e3, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def used(federation, numbers=(1, 2, 3, 4)):
    """What the engine counts for each client: without files that could be dropped."""
    names = [federation.container("client", n) for n in numbers]
    said = federation.docker("stats", "--no-stream", "--format", "{{.MemUsage}}", *names)
    amounts = [re.match(r"([\d.]+)([kKMG]?i?B) / 1GiB", line) for line in said.splitlines()]
    return [float(amount[1]) * UNITS[amount[2]] for amount in amounts if amount]


def test_clients_stay_within_their_memory(federation, record_property):
    idle = max(used(federation))
    run = federation.start_run("memory", "--strategy", "fedavg", "--model", "lenet5", "--num-server-rounds", "5",
                               "--task", "fashion-mnist", "--partition", "iid")  # fmt: skip
    peaks: list[float] = []
    watcher = threading.Thread(target=lambda: [peaks.append(max(used(federation))) for _ in iter(run.process.poll, 0)])
    watcher.start()
    run.finish()
    watcher.join()
    record_property("idle", idle)
    record_property("training", max(peaks))
    print(json.dumps({"idle MB": idle / 1e6, "training MB": max(peaks) / 1e6}))
    assert idle <= IDLE
    assert max(peaks) <= TRAINING
