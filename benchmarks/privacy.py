"""What an uploaded model tells about the samples it was trained on, with and without differential privacy.

    python benchmarks/privacy.py --data DIR [--quick]

Membership inference (Yeom et al. 2018): the attacker has the model that a client uploaded and guesses that samples with a low
loss were trained on. The figure is the area under the ROC curve over the client's training samples and as many others of the
same labels: 0.5 is a coin, 1 is certainty.

Inversion of the update: the attacker knows the model before and after one step on one sample.

closed form  (Phong et al. 2017) divides the change of the first linear layer's weights by that of its bias, row by row: that is
             the sample itself. The figure is the correlation of the best row with the sample.
by descent   (Zhu et al. 2019, Geiping et al. 2020) for any network, here LeNet-5: reads the label from the change of the last
             bias, then looks for the image x whose gradient g(x) points where the update u does, and that is smooth:

                 minimise  1 - cos(g(x), u) + 0.1 TV(x)      by 300 steps of Adam on the signs of the derivatives

             The figures are the correlation of x with the sample, and the peak signal-to-noise ratio in decibels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coterie.client.accountant import Accountant
from coterie.client.privacy import _dp_sgd
from coterie.tasks.datasets import load_dataset
from coterie.tasks.models import Network, build_network
from coterie.tasks.training import Samples, Sgd, outputs, sample_loss, train

SAMPLES, EPOCHS, BATCH = 200, 60, 20
LABELS = (0, 6)  # T-shirts and shirts: hard to tell apart, easy to learn by heart
SETTINGS: dict[str, float | None] = {
    "no privacy": None,
    "dp-sgd, sigma 0.5": 0.5,
    "dp-sgd, sigma 1": 1.0,
    "dp-sgd, sigma 2": 2.0,
}
WEIGHTS = ("extractor", "norm", "classifier")


def two_labels(data: str, task: str, seed: int) -> tuple[Samples, Samples, Samples]:
    """Members, as many others, and samples to test accuracy with; all of two labels."""
    dataset = load_dataset(task, data)
    found = np.random.default_rng(seed).permutation(np.flatnonzero(np.isin(dataset.y, LABELS)))
    x = (dataset.x[found].astype(np.float32) - dataset.mean[:, None, None]) / dataset.std[:, None, None]
    all_of = Samples(torch.from_numpy(x), torch.from_numpy(dataset.y[found]))

    def cut(start: int, stop: int) -> Samples:
        return Samples(all_of.x[start:stop], all_of.y[start:stop])

    return cut(0, SAMPLES), cut(SAMPLES, 2 * SAMPLES), cut(2 * SAMPLES, 2 * SAMPLES + 1000)


def trained(members: Samples, noise: float | None, seed: int, epochs: int) -> tuple[Network, float]:
    """A model as a client would upload it, and epsilon."""
    network = build_network("mlp", tuple(members.x.shape[1:]), 10, seed=seed)
    sgd = Sgd(0.1, BATCH)
    if noise is None:
        train(network, members, sgd, epochs=epochs, rng=np.random.default_rng(seed))
        return network, float("inf")
    rate = BATCH / len(members)
    steps = epochs * len(members) // BATCH
    generator = torch.Generator().manual_seed(seed)
    _dp_sgd(network, members, sgd, WEIGHTS, steps, rate, noise, 1.0, generator)
    return network, Accountant().after(noise, rate, steps).epsilon(1e-5)


def membership(network: Network, members: Samples, others: Samples) -> float:
    """Area under the ROC curve of "a low loss means a member"."""
    inside = sample_loss(outputs(network, members.x), members.y, "none").numpy()
    outside = sample_loss(outputs(network, others.x), others.y, "none").numpy()
    wins = (inside[:, None] < outside[None, :]).mean() + 0.5 * (inside[:, None] == outside[None, :]).mean()
    return float(wins)


def one_step(network: Network, sample: Samples, noise: float | None, seed: int) -> list[torch.Tensor]:
    """What a step on this sample alone takes off the parameters, which are as before afterwards."""
    before = [parameter.detach().clone() for parameter in network.parameters()]
    if noise is None:
        train(network, sample, Sgd(0.1, 1), epochs=1, rng=np.random.default_rng(seed))
    else:
        _dp_sgd(network, sample, Sgd(0.1, 1), WEIGHTS, 1, 1.0, noise, 1.0, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        update = [old - new for old, new in zip(before, network.parameters(), strict=True)]
        for parameter, old in zip(network.parameters(), before, strict=True):
            parameter.copy_(old)
    return update


def inversion(sample: Samples, noise: float | None, seed: int) -> float:
    """Correlation of the sample with its best reconstruction in closed form."""
    change, scale, *_ = one_step(build_network("mlp", tuple(sample.x.shape[1:]), 10, seed=seed), sample, noise, seed)
    rows = (change / torch.where(scale == 0, 1.0, scale)[:, None]).numpy()
    rows = rows[np.argsort(-np.abs(scale.numpy()))[:20]]  # the attacker trusts the largest changes
    truth = sample.x.flatten().numpy()
    found = [abs(np.corrcoef(row, truth)[0, 1]) for row in rows if row.std() > 0]
    return float(max(found, default=0.0))


def inversion_by_descent(
    sample: Samples, noise: float | None, seed: int, *, steps: int = 300, smooth: float = 0.1
) -> tuple[float, float]:
    """Correlation of the sample with its reconstruction, and peak signal-to-noise ratio."""
    network = build_network("lenet5", tuple(sample.x.shape[1:]), 10, seed=seed, group_norm=True)
    update = one_step(network, sample, noise, seed)
    label = update[-1].argmin()[None]  # only the true label's output is pushed up
    target = torch.cat([change.flatten() for change in update])
    low, high = float(sample.x.min()), float(sample.x.max())  # black and white
    guess = torch.randn(sample.x.shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    adam = torch.optim.Adam([guess], lr=0.1)
    slower = torch.optim.lr_scheduler.MultiStepLR(adam, [steps * 6 // 10, steps * 85 // 100], gamma=0.2)
    weights = list(network.parameters())
    network.eval()
    for _ in range(steps):
        loss = sample_loss(network(guess), label)
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights, create_graph=True)])
        apart = 1 - torch.cosine_similarity(gradient, target, dim=0)
        guess.grad = torch.autograd.grad(apart + smooth * variation(guess), guess)[0].sign()
        adam.step()
        slower.step()
        with torch.no_grad():
            guess.clamp_(low, high)
    found, truth = guess.detach().flatten().numpy(), sample.x.flatten().numpy()
    error = float(((found - truth) ** 2).mean())
    return float(np.corrcoef(found, truth)[0, 1]), 10 * float(np.log10((high - low) ** 2 / error))


def variation(image: torch.Tensor) -> torch.Tensor:
    """Mean difference of neighbours, across and down."""
    return image.diff(dim=-1).abs().mean() + image.diff(dim=-2).abs().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="directory of the data sets")
    parser.add_argument("--task", default="fashion-mnist", help="an image data set")
    parser.add_argument("--quick", action="store_true", help="one seed in place of five")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1) if arguments.quick else range(5)
    print(f"{arguments.task}, labels {LABELS}, {SAMPLES} samples, {EPOCHS} epochs, mlp; mean over {len(seeds)} seeds")
    print(f"{'':20}{'epsilon':>10}{'accuracy':>10}{'membership AUC':>16}{'closed form':>13}{'descent':>9}{'PSNR':>7}")
    for name, noise in SETTINGS.items():
        figures = []
        for seed in seeds:
            members, others, rest = two_labels(arguments.data, arguments.task, seed)
            network, epsilon = trained(members, noise, seed, EPOCHS)
            accuracy = float((outputs(network, rest.x).argmax(1) == rest.y).float().mean())
            single = Samples(members.x[:1], members.y[:1])
            auc, closed = membership(network, members, others), inversion(single, noise, seed)
            figures.append((epsilon, accuracy, auc, closed, *inversion_by_descent(single, noise, seed)))
        epsilon, accuracy, auc, closed, descent, psnr = np.mean(figures, axis=0)
        print(f"{name:20}{epsilon:10.2f}{accuracy:10.3f}{auc:16.3f}{closed:13.3f}{descent:9.3f}{psnr:7.1f}", flush=True)


if __name__ == "__main__":
    main()
