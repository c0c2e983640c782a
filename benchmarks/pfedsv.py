"""What pFedSV costs a client: CPU seconds of its game, peak memory, bytes per round.

python benchmarks/pfedsv.py --data DIR

game        six LeNet-5 on 2000 MNIST images, against the paper's sampling: 18 random orders, every prefix tested anew;
            by gain the own model and five others
memory      a round of a client with k = 5, training and second exchange, messages pulled and pushed object by object as Flower
            does it; the peak above a process with the libraries and the data set in it, against model plus data
bytes       shared extractor with k = 5, against FedAvg, for ResNet-34
"""

from __future__ import annotations

import argparse
import ctypes
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
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.task_identity import TaskIdentity

from coterie.client import participant
from coterie.client.app import app
from coterie.client.participant import Participant
from coterie.communication import sizes_of
from coterie.server.app import checked_config
from coterie.strategies.pfedsv import ONE_MESSAGE
from coterie.strategies.pfedsv.game import _score_of_average, coalition_values, gains, loss_of
from coterie.strategies.pfedsv.orders import DeliverOrder, PersonalizeOrder
from coterie.tasks.datasets import load_dataset
from coterie.tasks.models import WEIGHTS, Network, build_network
from coterie.tasks.training import Samples, Sgd, train
from coterie.wire.arrays import Parts, pack
from coterie.wire.config import Value
from coterie.wire.messages import Sent, TrainOrder

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
    network.load(models[0])
    own = loss_of(network, samples)
    gain = cpu_seconds(lambda: gains(network, models, samples, own, rng))
    gain_shared = cpu_seconds(lambda: gains(network, heads, samples, own, rng))
    print(f"game, the paper's sampling      {paper:8.3f} s")
    print(f"game, whole models              {whole:8.3f} s   ratio {whole / paper:.3f}   (at most 0.6)")
    print(f"game, shared extractor          {shared:8.3f} s   ratio {shared / paper:.4f}  (at most 0.02)")
    print(f"by gain, whole models           {gain:8.3f} s   ratio {gain / paper:.3f}   (at most 0.6)")
    print(f"by gain, shared extractor       {gain_shared:8.3f} s   ratio {gain_shared / paper:.4f}  (at most 0.02)")


def peak_kilobytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])


def reset_peak() -> int:
    """Forget the peak so far; what the process has now, in kilobytes."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kilobytes()


def a_client(data: str, task: str, model: str, shared: bool, state: str) -> tuple[Context, Participant]:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    values: dict[str, Value] = {
        "strategy": "pfedsv",
        "task": task,
        "model": model,
        "data-root": data,
        "num-clients": 10,
    }
    values["validation-fraction"] = 0.02  # a shorter game; tests have as many samples at a time as any game would have
    config = checked_config({**values, "pfedsv.shared-extractor": shared})
    node = {"partition-id": 0, "num-partitions": 10, "state-dir": state, "data-root": data}
    context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config)
    return context, Participant.of(context)


def write_messages(data: str, task: str, model: str, shared: bool, state: str) -> None:
    """The messages of two rounds as files, one for each of Flower's objects, in directories 0, 1, ..."""
    network = a_client(data, task, model, shared, state)[1].network()
    every = tuple(network.parts)
    parts = ("classifier",) if shared else every
    rest = pack(network.dump(part for part in every if part not in parts)) if shared else None
    large = K * sum(value.nbytes for value in network.views(parts).values()) > ONE_MESSAGE
    others = rows(network, parts, 1 if large else K)
    models = pack({part: value[0] for part, value in others.items()} if large else others)
    names = tuple(f"{i:016x}" for i in range(K))
    told: list[Sent] = []
    for server_round in (1, 2):  # the second starts from files; training is as in the first
        phases = {"phase_parts": ("+".join(WEIGHTS),), "phase_epochs": (2 - server_round,)}
        told.append(Sent(TrainOrder(server_round, every, every, **phases)))
        if large:
            orders = [DeliverOrder(server_round, name, 1, parts) for name in names]
            told += [Sent(order, others=models) for order in orders]
        come, held = ((), names) if large else (names, ())
        ones = (1,) * K
        whom = (parts, names, come, ones[: len(come)], held, ones[: len(held)])
        personal = PersonalizeOrder(server_round, K, 0.2, *whom, keep_models=False, evaluate=True)
        told.append(Sent(personal, rest, None if large else models))
    for number, sent in enumerate(told):
        kind = sent.order.kind
        message = Message(sent.content(), dst_node_id=1, message_type=kind, group_id="1")
        folder = Path(state) / "messages" / str(number)
        folder.mkdir(parents=True)
        for name, found in get_all_nested_objects(message).items():
            (folder / name).write_bytes(found.deflate())
        (folder / "tree").write_bytes(get_object_tree(message).SerializeToString())
        (folder / "kind").write_text(kind)


def rows(network: Network, parts: tuple[str, ...], number: int) -> Parts:
    """Models near the network's."""
    rng = np.random.default_rng(1)
    found = {}
    for part, value in network.views(parts).items():
        noise = rng.standard_normal((number, value.size), np.float32) * np.float32(0.001)
        found[part] = (value + noise).astype(value.dtype)
    return found


def measure_memory(data: str, task: str, model: str, shared: bool, state: str) -> dict[str, float]:
    """The peak of each kind of message, in a process that has answered nothing before."""
    context, me = a_client(data, task, model, shared, state)
    split = me.data().split
    network = me.network()
    train(network, Samples(me.train_samples().x[:2], me.train_samples().y[:2]), me.sgd(), epochs=1, rng=me.rng("x", 1))
    model_bytes = sum(part.nbytes for part in network.parts.values())
    data_bytes = int(np.prod(me.spec.input_shape)) * 4 * sum(map(len, (split.train, split.validation, split.test)))
    del network
    participant._initial_network.cache_clear()
    before = reset_peak()
    peaks = {"model": float(model_bytes), "data": float(data_bytes)}
    for folder in sorted((Path(state) / "messages").iterdir(), key=lambda path: int(path.name)):
        reset_peak()
        answer(folder, context)
        kind = (folder / "kind").read_text()
        print(kind, peak_kilobytes() - before, file=sys.stderr, flush=True)
        peaks[kind] = max(peaks.get(kind, 0.0), (peak_kilobytes() - before) * 1024.0)
    return peaks


def answer(folder: Path, context: Context) -> None:
    """As flwr.supernode.runtime.run_clientapp does it, with files in the place of the network."""
    tree = ObjectTree.FromString((folder / "tree").read_bytes())
    message = pull_and_inflate_object_from_tree(
        tree, lambda name: (folder / name).read_bytes(), lambda name: None, return_type=Message
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    reply = app(message, context)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        objects = get_all_nested_objects(reply)
        push_objects(objects, lambda name, found: None, object_ids_to_push=set(objects))


def memory(data: str) -> None:
    for task, model, shared in CASES:
        with tempfile.TemporaryDirectory() as state:
            case = ["--data", data, "--case", task, model, str(int(shared)), state]
            subprocess.run([sys.executable, __file__, *case, "--step", "write"], check=True, capture_output=True)
            measured = subprocess.run(
                [sys.executable, __file__, *case, "--step", "measure"], check=True, capture_output=True, text=True
            )
        told = json.loads(measured.stdout.splitlines()[-1])
        size, samples = told.pop("model"), told.pop("data")
        mode = "shared extractor" if shared else "whole models"
        print(f"memory, {model} on {task}, {mode}: model {size / 1e6:.1f} MB, data {samples / 1e6:.1f} MB")
        for kind, peak in told.items():
            print(f"    {kind:18} {peak / 1e6:6.0f} MB   ratio {peak / (size + samples):.2f}   (below 3)", flush=True)


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
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.case:
        task, model, shared, state = arguments.case
        step = {"write": write_messages, "measure": measure_memory}[arguments.step]
        print(json.dumps(step(arguments.data, task, model, bool(int(shared)), state)))
        return
    game(arguments.data)
    memory(arguments.data)
    traffic()


if __name__ == "__main__":
    main()
