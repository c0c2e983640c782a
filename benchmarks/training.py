"""What Coterie adds to the bare torch loop, in CPU seconds: for local training, and for whole simulated rounds.

    python benchmarks/training.py --data DIR [--rounds 5]

1. Local training on preloaded tensors against a loop over the same batches with torch.optim.SGD.
2. Rounds of FedAvg as `coterie run` does them (lenet5, 100 clients, Dirichlet 0.1, half of the data for testing, 10 clients
   per round, 5 epochs, batches of 32, all clients evaluated after every round) against that bare loop with the same
   evaluations, in one process. DIR holds fashion-mnist.npz; without it the digits are used.
3. The same rounds with one and with two workers: CPU seconds must stay, wall seconds must shrink.
"""

import argparse
import logging
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from coterie.client.data import load_client_data
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import run
from coterie.simulate import prepare
from coterie.tasks.datasets import DataError
from coterie.tasks.models import Network, build_network
from coterie.tasks.training import Samples, Sgd, train
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.randomness import derive_seed, generator

torch.set_num_threads(1)
REPEATS = 2


def bare_network(network: Network) -> nn.Module:
    """The same layers and weights as an ordinary module, each parameter in a tensor of its own."""
    module = nn.Sequential(network.extractor, network.classifier)
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()
    return module


def bare_training(module: nn.Module, samples: Samples, epochs: int, batch_size: int, rate: float) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    module.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(samples)).split(batch_size):
            if len(chosen) == 1:
                continue
            optimiser.zero_grad()
            functional.cross_entropy(module(samples.x[chosen]), samples.y[chosen]).backward()
            optimiser.step()


def measure_training(repeats: int = 5) -> None:
    rng = np.random.default_rng(0)
    samples = Samples(
        torch.from_numpy(rng.normal(size=(640, 1, 28, 28)).astype("f")), torch.from_numpy(rng.integers(0, 10, 640))
    )
    ours, bare = [], []
    for _ in range(repeats):
        network = build_network("lenet5", (1, 28, 28), 10, seed=1)
        start = time.process_time()
        train(network, samples, Sgd(0.01, 32), epochs=5, rng=rng)
        ours.append(time.process_time() - start)
        module = bare_network(build_network("lenet5", (1, 28, 28), 10, seed=1))
        start = time.process_time()
        bare_training(module, samples, 5, 32, 0.01)
        bare.append(time.process_time() - start)
    print(
        f"local training, lenet5, 640 samples, 5 epochs: {min(ours):.3f} CPU s, bare loop {min(bare):.3f}, "
        f"ratio {min(ours) / min(bare):.2f} (best of {repeats})"
    )


def bare_rounds(config: RunConfig, rounds: int) -> float:
    """CPU seconds of FedAvg as a plain script would do it: no messages, no checks, no files. Data are loaded before."""
    nodes = [{"partition-id": i, "num-partitions": config.num_clients} for i in range(config.num_clients)]
    data = [load_client_data(node, config, str(i)) for i, node in enumerate(nodes)]
    trains = [d.samples(d.split.train, "cpu") for d in data]
    tests = [d.samples(d.split.test, "cpu") for d in data]
    shape = tuple(trains[0].x.shape[1:])
    module = bare_network(build_network("lenet5", shape, 10, seed=derive_seed(config.seed, "model")))
    state = {name: value.clone() for name, value in module.state_dict().items()}
    start = time.process_time()
    for server_round in range(1, rounds + 1):
        number = round(config.fraction_train * config.num_clients)
        chosen = generator(config.seed, "sample", server_round).permutation(config.num_clients)[:number]
        total = sum(len(trains[i]) for i in chosen)
        mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in state.items()}
        for i in chosen:
            module.load_state_dict(state)
            bare_training(module, trains[i], config.local_epochs, config.batch_size, config.learning_rate)
            for name, value in module.state_dict().items():
                mean[name] += value.double() * (len(trains[i]) / total)
        state = {name: value.to(state[name].dtype) for name, value in mean.items()}
        module.load_state_dict(state)
        module.eval()
        with torch.inference_mode():
            for samples in tests:
                outputs = torch.cat([module(chunk) for chunk in samples.x.split(512)])
                float((outputs.argmax(1) == samples.y).float().mean())
                float(functional.cross_entropy(outputs, samples.y))
    return time.process_time() - start


def simulated_rounds(config: dict, workers: int) -> tuple[float, float]:
    """(CPU, wall) seconds of the rounds as `coterie run` does them, with its files and report, in all its processes."""

    def cpu() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    start, wall = cpu(), time.monotonic()
    pool = Workers(workers)
    with tempfile.TemporaryDirectory() as directory:
        run(SimulationGrid(pool, int(config["num-clients"]), config, directory), config, Path(directory))
    pool.close()
    return cpu() - start, time.monotonic() - wall


def measure_rounds(data_root: str, rounds: int) -> None:
    values = {
        "strategy": "fedavg",
        "task": "fashion-mnist",
        "model": "lenet5",
        "num-clients": 100,
        "partition": "dirichlet",
        "dirichlet-alpha": 0.1,
        "test-fraction": 0.5,
        "validation-fraction": 0.0,
        "fraction-train": 0.1,
        "local-epochs": 5,
        "batch-size": 32,
        "learning-rate": 0.01,
        "num-server-rounds": rounds,
        "data-root": data_root,
    }
    try:
        config = prepare(values)
    except DataError as error:
        print(f"{error}\nusing the digits instead")
        config = prepare({**values, "task": "digits", "num-clients": 50})
    settings = RunConfig.parse(split_sections(config)[0])
    bare, ones, twos = [], [], []
    for _ in range(REPEATS):  # in turn: what else the machine does changes with time
        bare.append(bare_rounds(settings, rounds))
        ones.append(simulated_rounds(config, 1))
        twos.append(simulated_rounds(config, 2))
    least = min(bare)
    print(f"{settings.task}, {settings.num_clients} clients, {rounds} rounds of FedAvg: bare loop {least:.2f} CPU s")
    for workers, measured in ((1, ones), (2, twos)):
        cpu, wall = min(c for c, _ in measured), min(w for _, w in measured)
        print(
            f"  coterie, {workers} workers: {cpu:.2f} CPU s, ratio {cpu / least:.2f}; "
            f"{wall:.2f} s wall, {cpu / wall:.2f} cores busy"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="directory with fashion-mnist.npz")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    measure_training()
    measure_rounds(arguments.data, arguments.rounds)
