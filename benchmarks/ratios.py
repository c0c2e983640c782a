"""What Coterie's own work costs, each beside a plain way to the same end: pairs of seconds, ours and the other.

Seconds are CPU seconds of this process where not said otherwise. A ratio of two that were taken in turn says more than either:
it hardly depends on the machine, nor on what else it does.
"""

import hashlib
import hmac
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from safetensors.numpy import save
from torch import nn
from torch.nn import functional

import coterie
from coterie.client.data import load_client_data
from coterie.client.store import FileStore
from coterie.server.checkpoints import save_checkpoint
from coterie.simulate import prepare
from coterie.strategies.pfedsv.pseudonyms import Pseudonyms
from coterie.tasks.models import HalvingPool, Network, build_network
from coterie.tasks.training import Samples, Sgd, evaluate, train
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.files import write_atomically

CLIENTS, ROUNDS = 50, 4
Pair = tuple[float, float]


def cpu_of(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def images(number: int) -> Samples:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 1, 28, 28)).astype("f")
    return Samples(torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, number)))


def bare_module(network: Network) -> nn.Module:
    """The same layers and weights with torch's own pooling, each parameter in a tensor of its own."""
    layers = [nn.MaxPool2d(2) if isinstance(layer, HalvingPool) else layer for layer in network.extractor]
    module = nn.Sequential(*layers, network.classifier)
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()
    return module


def bare_epochs(module: nn.Module, samples: Samples, epochs: int, batch_size: int, rate: float) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    module.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(samples)).split(batch_size):
            optimiser.zero_grad()
            loss = functional.mse_loss if samples.regression else functional.cross_entropy
            outputs = module(samples.x[chosen])
            loss(outputs[:, 0] if samples.regression else outputs, samples.y[chosen]).backward()
            optimiser.step()


@torch.inference_mode()
def bare_test(module: nn.Module, samples: Samples) -> tuple[float, float]:
    module.eval()
    outputs = torch.cat([module(chunk) for chunk in samples.x.split(512)])
    hits = (outputs.argmax(1) == samples.y).float().mean()
    return float(functional.cross_entropy(outputs, samples.y)), float(hits)


def training() -> Pair:
    samples, network = images(640), build_network("lenet5", (1, 28, 28), 10, seed=1)
    bare = bare_module(build_network("lenet5", (1, 28, 28), 10, seed=1))
    ours = cpu_of(lambda: train(network, samples, Sgd(0.01, 32), epochs=2, rng=np.random.default_rng(0)))
    return ours, cpu_of(lambda: bare_epochs(bare, samples, 2, 32, 0.01))


def evaluation() -> Pair:
    samples, network = images(4000), build_network("lenet5", (1, 28, 28), 10, seed=1)
    bare = bare_module(network)
    return cpu_of(lambda: evaluate(network, samples)), cpu_of(lambda: bare_test(bare, samples))


def messages() -> Pair:
    """Rounds of light clients: what is not training is messages, checks, files."""
    values = {"strategy": "fedavg", "task": "linear", "num-clients": CLIENTS, "baseline": "none"}
    config = RunConfig.parse(split_sections(prepare(values))[0])

    def rounds(number: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            keys = {"num_clients": CLIENTS, "num_server_rounds": number, "baseline": "none"}
            coterie.run("fedavg", "linear", run_dir=f"{place}/run", workers=0, progress=False, **keys)

    nodes = [{"partition-id": i, "num-partitions": CLIENTS} for i in range(CLIENTS)]
    data = [load_client_data(node, config, str(i)) for i, node in enumerate(nodes)]
    trains, tests = ([d.samples(getattr(d.split, part), "cpu") for d in data] for part in ("train", "test"))
    module = nn.Linear(trains[0].x.shape[1], 1)

    def bare() -> None:
        for _ in range(ROUNDS):
            for samples in trains:
                bare_epochs(module, samples, config.local_epochs, config.batch_size, 1e-6)
            for samples in tests:
                with torch.inference_mode():
                    float(functional.mse_loss(module(samples.x)[:, 0], samples.y))

    rounds(1)
    once, more = cpu_of(lambda: rounds(1)), cpu_of(lambda: rounds(ROUNDS + 1))
    return max(more - once, 1e-9), cpu_of(bare)


def rosters() -> Pair:
    """pFedSV's names of 300 clients for each other, in a second round; beside making all of them anew."""
    names, known = [str(i) for i in range(300)], Pseudonyms(b"secret")

    def anew() -> None:
        for one in names:
            texts = (f"{len(one)}:{one}{other}".encode() for other in names if other != one)
            sorted(hmac.new(b"secret", text, hashlib.sha256).hexdigest()[:16] for text in texts)

    def ours() -> None:
        for one in names:
            known.roster(names, told_to=one)

    ours()
    return cpu_of(ours), cpu_of(anew)


def notes() -> Pair:
    """Wall seconds: what 100 clients of a simulation keep in a round, beside files that are flushed one by one."""
    parts = {"classifier": np.zeros(20_000, np.float32)}
    taken: list[float] = []
    for durable in (False, True):
        with tempfile.TemporaryDirectory() as place:
            stores = [FileStore(Path(place), str(i), durable=durable) for i in range(100)]
            for store in stores:
                store.keep(1, parts)
            start = time.monotonic()
            for store in stores:
                store.keep(2, parts)
            taken.append(time.monotonic() - start)
    return taken[0], taken[1]


def checkpoint() -> Pair:
    """The models of 300 LeNet-5 clients on the server, beside a file that is put together in memory first."""
    arrays = {"rows": np.random.default_rng(0).normal(size=(300, 44_426)).astype("f")}
    with tempfile.TemporaryDirectory() as place:

        def in_memory() -> None:
            data = save(arrays)
            hashlib.blake2b(data, digest_size=16).hexdigest()
            write_atomically(Path(place) / "state", data)

        ours = cpu_of(lambda: save_checkpoint(Path(place), {"round": 1, "arrays": arrays}))
        return ours, cpu_of(in_memory)


def span(sizes: Sequence[float], workers: int) -> float:
    """When the last of the workers ends, if each takes the next client as soon as it is free."""
    free = [0.0] * workers
    for size in sizes:
        first = free.index(min(free))
        free[first] += size
    return max(free)


def schedule() -> Pair:
    """Not measured but counted: what the longer of two workers has to do of a round of 10 clients, in samples; the longest
    first, beside as they come. Sizes are those of 100 clients drawn by a Dirichlet distribution. One half is the least."""
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(200):
        sizes = rng.dirichlet(np.ones(100))[:10]
        shares.append([span(order, 2) / sizes.sum() for order in (sorted(sizes, reverse=True), sizes)])
    longest, as_they_come = np.mean(shares, axis=0).tolist()
    return longest, as_they_come


def process_cpu(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


IMPORTS = "import torch, flwr.app, flwr.serverapp"


def first_help() -> Pair:
    return process_cpu("-m", "coterie", "--help"), process_cpu("-c", IMPORTS)


def first_round() -> Pair:
    with tempfile.TemporaryDirectory() as place:
        options = ("--num-server-rounds", "1", "--strategy", "fedavg", "--baseline", "none", "--workers", "0")
        ours = process_cpu("-m", "coterie", "run", *options, "--run-dir", f"{place}/run")
    return ours, process_cpu("-c", IMPORTS)


@dataclass(frozen=True)
class Measure:
    what: str
    beside: str
    take: Callable[[], Pair]
    unit: str = "CPU s"


MEASURES = {
    "training": Measure("LeNet-5, 640 images, 2 epochs", "bare torch loop", training),
    "evaluation": Measure("LeNet-5, 4,000 images", "bare torch loop, torch's pooling", evaluation),
    "messages": Measure(f"{ROUNDS} rounds of {CLIENTS} light clients", "bare torch loop", messages),
    "rosters": Measure("pFedSV's names of 300 clients, second round", "HMACs made anew, once", rosters),
    "notes": Measure("what 100 clients keep", "flushed one by one", notes, "s"),
    "checkpoint": Measure("models of 300 clients, 53 MB", "safetensors' save, one write", checkpoint),
    "schedule": Measure("longest of two workers, 10 clients", "as they come", schedule, "of the work"),
    "help": Measure("coterie --help", "import torch and flwr", first_help),
    "first-round": Measure("coterie run, one round on digits", "import torch and flwr", first_round),
}
