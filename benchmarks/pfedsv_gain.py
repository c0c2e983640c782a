"""What pFedSV gains over training alone: accuracy of personal models, paired by seed.

    python benchmarks/pfedsv_gain.py --data DIR [--seeds 11,12,13,14,15] [--cells rotated,...] [--forms gain]

rotated          digits, 12 clients, three kinds of four (turned by 0, 90 and 180 degrees); 49 samples to train with, 21 to
                 validate, 70 to test
dirichlet        digits, 10 clients, Dirichlet 0.1
dirichlet-fashion   the same with 2,100 images of Fashion-MNIST, three tenths of them to validate
dirichlet-few    Fashion-MNIST, 20 clients, Dirichlet 0.1, 48 samples to train with and 12 to validate on average, 20 rounds of
                 3 epochs
pathological     MNIST, 10 clients with two labels each, 20 rounds of 5 epochs, a tenth of the images
pathological-all    the same with all images but a fifth, which are for testing
hundred          MNIST, 100 clients with two labels each, 10 % in a round, 60 rounds, a fifth of the images
fashion-49       Fashion-MNIST, as pathological with 49 samples to train with and 21 to validate
cifar-42         CIFAR-10, as pathological with 42 samples to train with and 18 to validate
cifar-540        ... with 540 and 60
cifar-all        ... with 4,320 and 480

Differences to `local` in points, the mean over seeds and its standard error; how many mixtures were used; how many of the
downloads were of clients that had been downloaded before.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from sklearn.datasets import load_digits

import coterie
from coterie.wire.config import Value

CLIENTS, SAMPLES = 12, 140
SMALL: dict[str, Value] = {"num_server_rounds": 20, "local_epochs": 5, "batch_size": 10, "learning_rate": 0.05}
PAPER: dict[str, Value] = {"num_server_rounds": 20, "local_epochs": 5, "batch_size": 32, "learning_rate": 0.01}
TENTH: dict[str, Value] = {"test_fraction": 0.9}
FEW: dict[str, Value] = {"test_fraction": 0.99, "validation_fraction": 0.3}
CIFAR: dict[str, Value] = {**PAPER, "learning_rate": 0.1, "task": "cifar10", "partition": "pathological"}
CELLS: dict[str, dict[str, Value]] = {
    "rotated": {**SMALL, "task": "own", "test_fraction": 0.5, "validation_fraction": 0.3},
    "dirichlet": {**SMALL, "batch_size": 32, "partition": "dirichlet", "dirichlet_alpha": 0.1},
    "dirichlet-fashion": {
        **SMALL, "batch_size": 32, "partition": "dirichlet", "dirichlet_alpha": 0.1,
        "task": "fashion-mnist", "test_fraction": 0.97, "validation_fraction": 0.3,
    },
    "dirichlet-few": {
        **SMALL, "local_epochs": 3, "partition": "dirichlet", "dirichlet_alpha": 0.1, "num_clients": 20,
        "task": "fashion-mnist", "test_fraction": 0.983, "validation_fraction": 0.2,
    },
    "pathological": {**(PAPER | TENTH), "task": "mnist", "partition": "pathological"},
    "pathological-all": {**PAPER, "task": "mnist", "partition": "pathological"},
    "hundred": {
        **PAPER, "task": "mnist", "partition": "pathological", "num_clients": 100, "fraction_train": 0.1,
        "num_server_rounds": 60, "test_fraction": 0.8,
    },
    "fashion-49": {**(PAPER | FEW), "task": "fashion-mnist", "partition": "pathological"},
    "cifar-42": CIFAR | FEW,
    "cifar-540": CIFAR | TENTH,
    "cifar-all": CIFAR,
}  # fmt: skip


def rotated_digits(path: Path, seed: int) -> None:
    """Every client's share of the digits, those of client i turned by i mod 3 right angles."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.random.default_rng(seed).permutation(len(labels))[: CLIENTS * SAMPLES]
    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    x = images[chosen].reshape(-1, 1, 8, 8).astype(np.float32)
    turned = np.stack([np.rot90(image, kind, axes=(1, 2)) for image, kind in zip(x, owner % 3, strict=True)])
    np.savez(path, x=turned, y=labels[chosen], owner=owner, mean=x.mean(), std=x.std())


def accuracy(
    strategy: str, settings: dict[str, Any], values: dict[str, Any], folder: Path
) -> tuple[float, coterie.Run]:
    run = coterie.run(
        strategy,
        settings=settings,
        run_dir=folder / f"{len(list(folder.iterdir()))}",
        workers=0,
        progress=False,
        **values,
    )
    return 100 * run.result["mean-test-accuracy"]["personal"], run


def used_and_repeated(run: coterie.Run) -> tuple[float, float]:
    """Shares: of the mixtures that were used, of the downloads that were not the first of that client."""
    used, repeats, downloads = [], 0, 0
    known: dict[str, set[str]] = {}
    for event in run.events:
        for client, weights in event["weights"].items():
            used.append(weights[client] < 1)
            others = set(weights) - {client}
            downloads += len(others)
            repeats += len(others & known.setdefault(client, set()))
            known[client] |= others
    return float(np.mean(used)), repeats / max(downloads, 1)


def measure(cell: str, seeds: list[int], data: str, forms: list[str]) -> None:
    differences: dict[str, list[float]] = {name: [] for name in forms}
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in forms}
    alone = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {"data_root": data, **CELLS[cell], "seed": seed}
            given["evaluate_every"] = given["num_server_rounds"]
            if cell == "rotated":
                given["data"] = Path(folder) / "digits.npz"
                rotated_digits(given["data"], seed)
            local, _ = accuracy("local", {}, given, Path(folder))
            alone.append(local)
            for name in forms:
                reached, run = accuracy("pfedsv", {"pfedsv.game": name}, given, Path(folder))
                differences[name].append(reached - local)
                shares[name].append(used_and_repeated(run))
            told = ", ".join(f"{name} {values[-1]:+.2f}" for name, values in differences.items())
            print(f"{cell}, seed {seed}: local {local:.2f}, {told}", flush=True)
    print(f"{cell}: local {np.mean(alone):.2f}")
    for name, values in differences.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        used, repeated = 100 * np.mean(shares[name], axis=0)
        print(
            f"    {name:6} {np.mean(values):+.2f} ± {error:.2f}   mixtures used {used:.0f} %, repeats {repeated:.0f} %"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of the data sets")
    parser.add_argument("--seeds", default="11,12,13,14,15")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--forms", default="gain,paper", help="values of pfedsv.game")
    arguments = parser.parse_args()
    for cell in arguments.cells.split(","):
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        measure(cell, seeds, arguments.data, arguments.forms.split(","))


if __name__ == "__main__":
    main()
