"""pFedOCF beside training alone and FedAvg: accuracy of personal models on digits, 12 clients, paired by seed.

    python benchmarks/pfedocf_gain.py [--seeds 201,202,203] [--cells iid,two-label,rotated] [--model auto]

iid         every client has a share of all digits
two-label   two labels for each client
rotated     three kinds of four clients, turned by 0, 90 and 180 degrees; 49 samples to train with, 21 to validate, 70 to test

Every line has the accuracies in percent, that of pFedOCF less the better of the two others in points, and its coalitions.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from pfedsv_gain import CELLS as PFEDSV_CELLS
from pfedsv_gain import CLIENTS, accuracy, rotated_digits

from coterie.wire.config import Value

CELLS: dict[str, dict[str, Value]] = {
    "iid": {"partition": "iid", "num_clients": CLIENTS, "num_server_rounds": 20},
    "two-label": {"partition": "pathological", "num_clients": CLIENTS, "num_server_rounds": 20},
    "rotated": PFEDSV_CELLS["rotated"],
}
METHODS = ("local", "fedavg", "pfedocf")


def measure(cell: str, seeds: list[int], model: str) -> None:
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {**CELLS[cell], "model": model, "seed": seed}
            given["evaluate_every"] = given["num_server_rounds"]
            if cell == "rotated":
                given["data"] = Path(folder) / "digits.npz"
                rotated_digits(given["data"], seed)
            runs = [accuracy(method, {}, given, Path(folder)) for method in METHODS]
            row = [reached for reached, _ in runs]
            rows.append([*row, row[2] - max(row[:2])])
            found = runs[2][1].findings["coalitions"]
            sizes = ", ".join(str(len(members)) for members in found.values)
            print(
                f"{cell}, seed {seed}: {show(rows[-1])}   {found.facts['in-words']} (of {sizes or 'none'})", flush=True
            )
    errors = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.zeros(4)
    print(f"{cell}: {show(np.mean(rows, axis=0))} ± {errors[3]:.2f}")


def show(row: Any) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in zip(METHODS, row, strict=False)) + f": {row[3]:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="201,202,203")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--model", default="auto")
    arguments = parser.parse_args()
    for cell in arguments.cells.split(","):
        measure(cell, [int(seed) for seed in arguments.seeds.split(",")], arguments.model)


if __name__ == "__main__":
    main()
