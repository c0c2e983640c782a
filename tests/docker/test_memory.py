"""How much memory a client takes, of the 1 GB that it may."""

import re

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]  # the first one builds the image

IDLE, TRAINING = 250e6, 600e6  # bytes at most
UNITS = {"B": 1, "kB": 1e3, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def used(federation, numbers=(1, 2, 3, 4)):
    """What the engine counts for each client: without files that could be dropped."""
    names = [federation.container("client", n) for n in numbers]
    said = federation.docker("stats", "--no-stream", "--format", "{{.MemUsage}}", *names)
    amounts = [re.match(r"([\d.]+)([kKMG]?i?B) / 1GiB", line) for line in said.splitlines()]
    return [float(amount[1]) * UNITS[amount[2]] for amount in amounts if amount]


def test_clients_stay_within_their_memory(federation):
    # After a message the process of its run stays for two minutes, in case that another one comes.
    federation("restart", "client")
    federation.wait_until(lambda: all(federation.health("client", n) == "healthy" for n in range(1, 5)), "all healthy")
    idle = max(used(federation))
    method = ("--strategy", "fedavg", "--model", "lenet5", "--num-server-rounds", "2", "--local-epochs", "1")
    run = federation.start_run("memory", *method, "--task", "fashion-mnist", "--partition", "iid")
    training = 0.0
    while run.process.poll() is None:
        training = max(training, *used(federation))
    run.finish()
    print(f"a client takes {idle / 1e6:.0f} MB idle and {training / 1e6:.0f} MB in training")
    assert 0 < idle <= IDLE
    assert idle < training <= TRAINING
