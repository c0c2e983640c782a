"""What pFedSV costs a client: CPU seconds of its game, peak memory, bytes per round.

python benchmarks/pfedsv.py --data DIR

game        six LeNet-5 on 2000 MNIST images, against the paper's sampling: 18 random orders, every prefix tested anew
memory      the second exchange of a client with k = 5, above what the process had before it, against model plus data
bytes       shared extractor with k = 5, against FedAvg, for ResNet-34
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cli.communication import sizes_of
from client.coalition import _score_of_average, coalition_values
from client.participant import Participant
from client.pfedsv import personalize
from server.app import checked_config
from tasks.datasets import load_dataset
from tasks.models import Network, build_network
from tasks.training import Samples, Sgd, train
from wire.arrays import Parts, pack
from wire.messages import MODEL, OTHERS, PersonalizeOrder, content

MEMBERS, IMAGES, K = 6, 2000, 5
CASES = [("mnist", "lenet5", False), ("cifar10", "resnet34", True), ("cifar10", "resnet34", False)]


def cpu_seconds(action: Callable[[], object], times: int = 3) -> float:
    """The least of several tries, each in processor time."""
    best = float("inf")
    for _ in range(times):
        started = time.process_time()
        action()
        best = min(best, time.process_time() - started)
    return best


def as_samples(data: str, chosen: np.ndarray) -> Samples:
    dataset = load_dataset("mnist", data)
    x = (dataset.x[chosen].astype(np.float32) - dataset.mean[:, None, None]) / dataset.std[:, None, None]
    return Samples(torch.from_numpy(x), torch.from_numpy(dataset.y[chosen]))


def trained_models(data: str, network: Network) -> list[Parts]:
    """Models of clients with two labels each, a few steps from a common start."""
    labels = load_dataset("mnist", data).y
    start, models = network.dump(), []
    for i in range(MEMBERS):
        network.load(start)
        mine = np.flatnonzero((labels == i) | (labels == (i + 1) % 10))[:640]
        train(network, as_samples(data, mine), Sgd(0.05, 32), epochs=1, rng=np.random.default_rng(i))
        models.append(network.dump())
    return models


def sampled_without_memory(network: Network, models: list[Parts], samples: Samples) -> np.ndarray:
    """The paper's Algorithm 2: 3|S| random orders, every prefix averaged and tested."""
    rng, values = np.random.default_rng(0), np.zeros(MEMBERS)
    for _ in range(3 * MEMBERS):
        before = 0.0
        order = rng.permutation(MEMBERS)
        for place, member in enumerate(order):
            score = _score_of_average(network, [models[i] for i in order[: place + 1]], samples)
            values[member] += score - before
            before = score
    return values / (3 * MEMBERS)


def game(data: str) -> None:
    network = build_network("lenet5", (1, 28, 28), 10, seed=1)
    models = trained_models(data, network)
    samples = as_samples(data, np.arange(IMAGES))
    rng = np.random.default_rng(0)
    heads = [{"classifier": model["classifier"]} for model in models]
    paper = cpu_seconds(lambda: sampled_without_memory(network, models, samples))
    whole = cpu_seconds(lambda: coalition_values(network, models, samples, rng))
    shared = cpu_seconds(lambda: coalition_values(network, heads, samples, rng))
    print(f"game, the paper's sampling      {paper:8.3f} s")
    print(f"game, whole models              {whole:8.3f} s   ratio {whole / paper:.3f}   (at most 0.6)")
    print(f"game, shared extractor          {shared:8.3f} s   ratio {shared / paper:.4f}  (at most 0.02)")


def peak_kilobytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])


def reset_peak() -> int:
    """Forget the peak so far; what the process has now, in kilobytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kilobytes()


def measure_memory(data: str, task: str, model: str, shared: bool) -> dict[str, float]:
    """Peak of one second exchange, in a process of its own."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    torch.set_num_threads(1)
    values = {"strategy": "pfedsv", "task": task, "model": model, "data-root": data, "num-clients": 10}
    config = checked_config({**values, "pfedsv.shared-extractor": shared})
    with tempfile.TemporaryDirectory() as state:
        node = {"partition-id": 0, "num-partitions": 10, "state-dir": state}
        context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config)
        me = Participant.of(context)
        split = me.data().split  # the data set is loaded now, as it is in every process of a client
        warm = me.validation_samples().x[:2]
        network = me.network()
        network.eval()
        network(warm)
        own = network.dump()
        me.store.keep(1, own)
        model_bytes = sum(value.nbytes for value in own.values())
        size = int(np.prod(me.spec.input_shape)) * 4
        data_bytes = size * (len(split.train) + len(split.validation) + len(split.test))
        parts = ("classifier",) if shared else tuple(own)
        del own, warm
        before = reset_peak()
        message = second_message(network, parts, shared)
        del network
        personalize(me, PersonalizeOrder.from_record(message.content.config_records["order"]), message.content)
        after = peak_kilobytes()
    return {"peak": (after - before) * 1024, "model": model_bytes, "data": data_bytes}


def second_message(network: Network, parts: tuple[str, ...], shared: bool) -> Message:
    names = tuple(f"{i:016x}" for i in range(K))
    rng = np.random.default_rng(1)
    rows: Parts = {}
    for part, value in network.dump(parts).items():
        rows[part] = np.empty((K, value.size), value.dtype)
        for i in range(K):
            rows[part][i] = value + (rng.standard_normal(value.size, np.float32) * 0.001).astype(value.dtype)
    packed = pack(rows)
    order = PersonalizeOrder(1, K, 0.2, parts, names, names, (1,) * K, (), (), keep_models=False, evaluate=True)
    rest = pack({part: value for part, value in network.dump().items() if part not in parts}) if shared else None
    records = content(order, rest, **{OTHERS: packed})
    assert shared == (MODEL in records.array_records)
    return Message(records, dst_node_id=1, message_type="train.personalize", group_id="1")


def memory(data: str) -> None:
    for task, model, shared in CASES:
        command = [sys.executable, __file__, "--data", data, "--memory", task, model, str(int(shared))]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        ratio = told["peak"] / (told["model"] + told["data"])
        mode = "shared extractor" if shared else "whole models"
        print(
            f"memory, {model} on {task}, {mode}: {told['peak'] / 1e6:.0f} MB, model {told['model'] / 1e6:.1f} MB, "
            f"data {told['data'] / 1e6:.1f} MB   ratio {ratio:.2f}   (below 3)"
        )


def traffic() -> None:
    sizes = sizes_of("resnet34", (3, 32, 32))
    whole = sum(sizes.values())
    down = whole - sizes["classifier"] + K * sizes["classifier"]
    ratio = (down + whole) / (2 * whole)
    print(f"bytes, resnet34, shared extractor, k = {K}: {4 * (down + whole) / 1e6:.2f} MB per client and round", end="")
    print(f", FedAvg {8 * whole / 1e6:.2f} MB   ratio {ratio:.4f}   (at most 1.1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of the data sets")
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        task, model, shared = arguments.memory
        print(json.dumps(measure_memory(arguments.data, task, model, bool(int(shared)))))
        return
    game(arguments.data)
    memory(arguments.data)
    traffic()


if __name__ == "__main__":
    main()
