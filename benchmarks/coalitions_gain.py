"""pFedOCF or CE beside training alone and FedAvg: accuracy of personal models on digits, 12 clients, paired by seed.

    python benchmarks/coalitions_gain.py [--method pfedocf] [--seeds 201,202,203] [--cells iid,two-label,rotated] [--model mlp]

iid         every client has a share of all digits
two-label   two labels for each client
rotated     three kinds of four clients, turned by 0, 90 and 180 degrees; 49 samples to train with, 21 to validate, 70 to test

For `ce` all have 20 rounds of 5 epochs, batches of 10 and spo.rays=8. Every line has the accuracies in percent, that of the
method less the better of the two others in points, and its coalitions.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from pfedsv_gain import CELLS as PFEDSV_CELLS
from pfedsv_gain import CLIENTS, SMALL, accuracy, rotated_digits

from coterie.wire.config import Value

CELLS: dict[str, dict[str, Value]] = {
    "iid": {"partition": "iid", "num_clients": CLIENTS, "num_server_rounds": 20},
    "two-label": {"partition": "pathological", "num_clients": CLIENTS, "num_server_rounds": 20},
    "rotated": PFEDSV_CELLS["rotated"],
}
OTHERS = ("local", "fedavg")
MORE: dict[str, dict[str, Value]] = {"pfedocf": {}, "ce": SMALL, "spo": SMALL}
SETTINGS: dict[str, dict[str, Value]] = {"pfedocf": {}, "ce": {"spo.rays": 8}, "spo": {"spo.rays": 8}}


def measure(method: str, cell: str, seeds: list[int], model: str) -> None:
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {**CELLS[cell], **MORE[method], "model": model, "seed": seed}
            given["evaluate_every"] = given["num_server_rounds"]
            if cell == "rotated":
                given["data"] = Path(folder) / "digits.npz"
                rotated_digits(given["data"], seed)
            others = [accuracy(other, {}, given, Path(folder))[0] for other in OTHERS]
            reached, run = accuracy(method, SETTINGS[method], given, Path(folder))
            rows.append([*others, reached, reached - max(others)])
            found = run.findings.get("coalitions")
            sizes = ", ".join(str(len(members)) for members in found.values) if found else "-"
            print(f"{cell}, seed {seed}: {show(method, rows[-1])}   coalitions of {sizes or 'none'}", flush=True)
    errors = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.zeros(4)
    print(f"{cell}: {show(method, np.mean(rows, axis=0))} ± {errors[3]:.2f}")


def show(method: str, row: Any) -> str:
    told = ", ".join(f"{name} {value:.2f}" for name, value in zip((*OTHERS, method), row, strict=False))
    return f"{told}: {row[3]:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="pfedocf", choices=MORE)
    parser.add_argument("--seeds", default="201,202,203")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--model", default="mlp")
    arguments = parser.parse_args()
    for cell in arguments.cells.split(","):
        measure(arguments.method, cell, [int(seed) for seed in arguments.seeds.split(",")], arguments.model)


if __name__ == "__main__":
    main()
