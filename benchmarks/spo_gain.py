"""What SPO gains over training alone on CIFAR-10: ten clients with two labels each, LeNet-5, paired by seed.

    python benchmarks/spo_gain.py --data DIR [--seeds 1001,1002,1003] [--cells few,...] [--others local,fedavg-ft]

few      42 samples to train with, 18 to validate, 20 rounds of 5 epochs
some     420 to train with, 180 to validate, 10 rounds of 5 epochs
all      3,840 to train with, 960 to validate, 10 rounds of 5 epochs

`fedavg-ft` is the model of all, which each client then trains for 10 epochs of its own: one of the models that SPO chooses
among. Accuracies in percent, differences to the first of the others in points, the mean over seeds and its standard error;
how many of the ten clients chose the model that they trained alone.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from pfedsv_gain import accuracy

import coterie
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
SETTINGS: dict[str, dict[str, Value]] = {
    "spo": {"spo.rays": 8, "spo.hidden": 50},
    "fedavg-ft": {"fedavg-ft.epochs": 10},
}


def alone(run: coterie.Run) -> int:
    """How many clients chose the model that nobody else had a part in."""
    found = run.findings["preferences"]
    return sum(int(np.max(row) == 1) for row in found.values)


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
    differences = np.array(rows)[:, 1:] - np.array(rows)[:, :1]
    for i, method in enumerate(methods[1:]):
        error = np.std(differences[:, i], ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.nan
        print(f"{cell}: {method} minus {methods[0]} {differences[:, i].mean():+.2f} ± {error:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of the data sets")
    parser.add_argument("--seeds", default="1001,1002,1003")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--others", default="local,fedavg-ft")
    arguments = parser.parse_args()
    for cell in arguments.cells.split(","):
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        measure(cell, seeds, arguments.data, arguments.others.split(","))


if __name__ == "__main__":
    main()
