"""Real federated games: ten clients with two Fashion-MNIST labels each, and the utility of all 1024 coalitions.

The clients train a small network together by FedAvg. In a round the players are the clients, a coalition's model is
the uniform average of its members' models, and its utility is the accuracy (or minus the loss) of that model on a
validation set of the server. The empty coalition is the model that the round began with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CLIENTS, SAMPLES, VALIDATION, HIDDEN = 10, 600, 1000, 32
ROUNDS = (1, 3, 10)  # a young, a growing and a settled model


def load(data: Path) -> dict[str, NDArray[np.generic]]:
    """Fashion-MNIST from DIR/fashion-mnist.npz with x_train, y_train, x_test and y_test."""
    path = data / "fashion-mnist.npz"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: give --data a directory that holds fashion-mnist.npz")
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def two_label_clients(labels: NDArray[np.generic], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Indices of each client's samples: every label is dealt to two clients, every client holds two labels."""
    pairs = np.stack([rng.permutation(10), rng.permutation(10)])
    while (pairs[0] == pairs[1]).any():
        pairs[1] = rng.permutation(10)
    half = SAMPLES // 2
    pools = {label: rng.permutation(np.flatnonzero(labels == label)) for label in range(10)}
    return [np.concatenate([pools[a][:half], pools[b][half : 2 * half]]) for a, b in pairs.T]


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(784, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))


def train(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> None:
    """Two local epochs of SGD, batches of 32."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for _ in range(2):
        for batch in torch.randperm(len(x), generator=generator).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()


def coalition_utilities(
    start: torch.Tensor, models: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> dict[str, FloatArray]:
    """Accuracy and minus loss of every coalition's average, by bit mask."""
    model = network()
    accuracy, negative_loss = np.empty(1 << CLIENTS), np.empty(1 << CLIENTS)
    for mask in range(1 << CLIENTS):
        members = [i for i in range(CLIENTS) if mask >> i & 1]
        torch.nn.utils.vector_to_parameters(models[members].mean(0) if members else start, model.parameters())
        with torch.no_grad():
            logits = model(x)
        accuracy[mask] = (logits.argmax(1) == y).double().mean().item()
        negative_loss[mask] = -torch.nn.functional.cross_entropy(logits, y).item()
    return {"accuracy": accuracy, "loss": negative_loss}


def play(data: Path, seed: int) -> dict[str, FloatArray]:
    """The utility tables of one federation, named by seed, round and metric."""
    arrays = load(data)
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(arrays["x_train"].reshape(-1, 784).astype(np.float32) / 255)
    labels = torch.from_numpy(arrays["y_train"].astype(np.int64))
    clients = two_label_clients(arrays["y_train"], rng)
    chosen = torch.from_numpy(rng.choice(len(arrays["x_test"]), VALIDATION, replace=False))
    x = torch.from_numpy(arrays["x_test"].reshape(-1, 784).astype(np.float32) / 255)[chosen]
    y = torch.from_numpy(arrays["y_test"].astype(np.int64))[chosen]

    tables = {}
    model = network()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    for number in range(1, max(ROUNDS) + 1):
        uploads = []
        for indices in clients:
            torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
            train(model, images[indices], labels[indices], generator)
            uploads.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
        models = torch.stack(uploads)  # (clients, parameters)
        if number in ROUNDS:
            for metric, table in coalition_utilities(start, models, x, y).items():
                tables[f"seed {seed} round {number} {metric}"] = table
        start = models.mean(0)
    return tables


def cached_games(data: Path, out: Path, seeds: int) -> dict[str, FloatArray]:
    """All tables, from the cache in `out` if it is there."""
    games: dict[str, FloatArray] = {}
    for seed in range(seeds):
        cache = out / f"federated-games-{seed}.npz"
        if not cache.is_file():
            out.mkdir(parents=True, exist_ok=True)
            np.savez(cache, allow_pickle=False, **play(data, seed))
        with np.load(cache) as archive:
            games.update({name: archive[name] for name in archive.files})
    return games
