"""What SPO gains over training alone on CIFAR-10: ten clients with two labels each, LeNet-5, paired by seed.

    python benchmarks/spo_gain.py --data DIR [--seeds 1001,1002,1003] [--cells few,...] [--others local,fedavg-ft]
                                  [--oracle]

few      42 samples to train with, 18 to validate, 20 rounds of 5 epochs
some     420 to train with, 180 to validate, 10 rounds of 5 epochs
all      3,840 to train with, 960 to validate, 10 rounds of 5 epochs

`fedavg-ft` is the model of all, which each client then trains for 10 epochs of its own: one of the models that SPO chooses
among. Accuracies in percent, differences to the first of the others in points, the mean over seeds and its standard error;
how many of the ten clients chose the model that they trained alone.

--oracle: what samples are worth at most. No messages, no averages: each client trains with the samples themselves, and stops
where the *test* samples are best, which no method may do. `alone` has the own samples; `sharers` all clients' samples of the own
labels; `all+sharers` starts from a model that was trained with everybody's samples, and goes on with those of the own labels.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from pfedsv_gain import accuracy

import coterie
from coterie.client.data import ClientData, load_client_data
from coterie.simulate import prepare
from coterie.strategies.registry import parse_config
from coterie.tasks.models import Network
from coterie.tasks.resolve import network_of
from coterie.tasks.training import Samples, Sgd, evaluate, train
from coterie.wire.config import Value

USUAL: dict[str, Value] = {
    "task": "cifar10", "partition": "pathological", "num_clients": 10, "model": "lenet5", "local_epochs": 5,
    "batch_size": 32, "learning_rate": 0.05, "num_server_rounds": 10,
}  # fmt: skip
CELLS: dict[str, dict[str, Value]] = {
    "few": {**USUAL, "test_fraction": 0.99, "validation_fraction": 0.3, "num_server_rounds": 20},
    "some": {**USUAL, "test_fraction": 0.9, "validation_fraction": 0.3},
    "all": {**USUAL, "validation_fraction": 0.2},
}
ORACLE = {"few": (60, 5), "some": (30, 5), "all": (12, 2)}  # epochs, and of how many clients
SETTINGS: dict[str, dict[str, Value]] = {
    "spo": {"spo.rays": 8, "spo.hidden": 50},
    "fedavg-ft": {"fedavg-ft.epochs": 10},
}


def alone(run: coterie.Run) -> int:
    """How many clients chose the model that nobody else had a part in."""
    found = run.findings["preferences"]
    return sum(int(np.max(row) == 1) for row in found.values)


def oracle(given: dict[str, Any], epochs: int, most: int) -> dict[str, float]:
    """The mean over clients of the best test accuracy on the way, in percent."""
    config, _ = parse_config(
        prepare({name.replace("_", "-"): value for name, value in given.items()} | {"strategy": "local"})
    )
    number = config.num_clients
    clients = [load_client_data({"partition-id": i, "num-partitions": number}, config, str(i)) for i in range(number)]
    everybody = joined([own(client, "train") for client in clients])
    sgd = Sgd(config.learning_rate, config.batch_size)
    rng = np.random.default_rng(config.seed)
    shared = network_of(config)
    train(shared, everybody, sgd, epochs=epochs // 4, rng=rng)
    common = shared.dump()
    reached: dict[str, list[float]] = {"alone": [], "sharers": [], "all+sharers": []}
    for client in clients[:most]:
        mine, test = own(client, "train"), own(client, "test")
        same = torch.isin(everybody.y, mine.y.unique())
        sharers = Samples(everybody.x[same], everybody.y[same])
        for name, samples in (("alone", mine), ("sharers", sharers), ("all+sharers", sharers)):
            network = network_of(config)
            if name == "all+sharers":
                network.load(common)
            reached[name].append(best_on_the_way(network, samples, test, sgd, epochs, rng))
    return {name: 100 * float(np.mean(values)) for name, values in reached.items()}


def best_on_the_way(
    network: Network, samples: Samples, test: Samples, sgd: Sgd, epochs: int, rng: np.random.Generator, looks: int = 10
) -> float:
    found = [evaluate(network, test)["accuracy"]]
    for _ in range(looks):
        train(network, samples, sgd, epochs=max(1, epochs // looks), rng=rng)
        found.append(evaluate(network, test)["accuracy"])
    return max(found)


def own(client: ClientData, which: str) -> Samples:
    """Of the test samples about 500."""
    indices = getattr(client.split, which)
    return client.samples(indices[:: max(1, len(indices) // 500)] if which == "test" else indices, "cpu")


def joined(samples: list[Samples]) -> Samples:
    return Samples(torch.cat([one.x for one in samples]), torch.cat([one.y for one in samples]))


def measure_oracle(cell: str, seeds: list[int], data: str) -> None:
    rows = []
    for seed in seeds:
        found = oracle({"data_root": data, **CELLS[cell], "seed": seed}, *ORACLE[cell])
        rows.append(list(found.values()))
        print(f"{cell}, seed {seed}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
    show_differences(cell, list(found), rows)


def measure(cell: str, seeds: list[int], data: str, others: list[str]) -> None:
    rows = []
    methods = [*others, "spo"]
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {"data_root": data, **CELLS[cell], "seed": seed}
            given["evaluate_every"] = given["num_server_rounds"]
            runs = [accuracy(method, SETTINGS.get(method, {}), given, Path(folder)) for method in methods]
            rows.append([reached for reached, _ in runs])
            told = ", ".join(f"{method} {reached:.2f}" for method, reached in zip(methods, rows[-1], strict=True))
            print(f"{cell}, seed {seed}: {told}; {alone(runs[-1][1])} of 10 alone", flush=True)
    show_differences(cell, methods, rows)


def show_differences(cell: str, names: list[str], rows: list[list[float]]) -> None:
    """To the first of them, paired by seed."""
    differences = np.array(rows)[:, 1:] - np.array(rows)[:, :1]
    for name, values in zip(names[1:], differences.T, strict=True):
        error = np.std(values, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.nan
        print(f"{cell}: {name} minus {names[0]} {values.mean():+.2f} ± {error:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of the data sets")
    parser.add_argument("--seeds", default="1001,1002,1003")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--others", default="local,fedavg-ft")
    parser.add_argument("--oracle", action="store_true", help="what samples are worth at most, in place of the methods")
    arguments = parser.parse_args()
    for cell in arguments.cells.split(","):
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        if arguments.oracle:
            measure_oracle(cell, seeds, arguments.data)
        else:
            measure(cell, seeds, arguments.data, arguments.others.split(","))


if __name__ == "__main__":
    main()
