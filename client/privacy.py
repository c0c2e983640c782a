"""Training whose result tells little about any single sample.

`dp-sgd` (Abadi et al. 2016, arXiv:1607.00133) by Opacus: every step draws each sample with probability q, clips each sample's
gradient to length C, adds Gaussian noise of standard deviation sigma C to their sum, and divides by the expected batch:

    g = (sum_i clip(g_i, C) + N(0, sigma^2 C^2)) / (q n)

`weights` adds a Gaussian vector of expected length sigma C to what is uploaded, as papers do. Nothing is clipped there, so there
is no guarantee.

Who knows the noise can take it off again, and everybody in a run knows its seed. So a client with data of its own draws noise and
batches from the system's randomness; only where the data are a public set, dealt out by the same seed, are runs repeatable.

No loss on training samples leaves the client: nothing would hide what it tells of them.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch

from coterie.client.accountant import Accountant
from coterie.client.owner import LARGEST_DELTA, check_epsilon
from coterie.client.participant import Participant
from coterie.tasks.models import STATISTICS, WEIGHTS, Network
from coterie.tasks.training import Samples, Sgd, Trained, sample_loss
from coterie.wire.arrays import Parts
from coterie.wire.errors import ConfigError
from coterie.wire.randomness import derive_seed

Phase = tuple[tuple[str, ...], int]  # parts, epochs


def train_privately(
    me: Participant,
    network: Network,
    samples: Samples,
    sgd: Sgd,
    phases: Sequence[Phase],
    server_round: int,
    model: int = 0,
) -> tuple[Trained, float]:
    """DP-SGD in place of local training, of one of the models of this round; also epsilon after it."""
    privacy = me.privacy
    same_noise_in = server_round if me.data().num_partitions else None
    accountant = Accountant.load(me.store, same_noise_in)
    if not len(samples):
        return Trained(0.0, 0), accountant.epsilon(privacy.delta)
    _check_valid(network, me.config.model)
    rate = min(1.0, sgd.batch_size / len(samples))
    per_epoch = max(1, round(1 / rate))
    steps = per_epoch * sum(epochs for _, epochs in phases)
    noise = privacy.noise_multiplier
    if privacy.target_epsilon:
        rounds_left = me.config.num_server_rounds - server_round + 1
        noise = accountant.noise_for(privacy.target_epsilon, rate, rounds_left * steps, privacy.delta)
    accountant = accountant.after(noise, rate, steps)
    check_epsilon(me.context.node_config, accountant.epsilon(min(privacy.delta, LARGEST_DELTA)))
    accountant.save(me.store, same_noise_in)
    generator = secret_generator(me, _purpose(model), server_round)
    done = Trained(0.0, 0)
    for parts, epochs in phases:
        done = _dp_sgd(network, samples, sgd, parts, epochs * per_epoch, rate, noise, privacy.max_grad_norm, generator)
    return Trained(done.loss, steps), accountant.epsilon(privacy.delta)


def _dp_sgd(
    network: Network,
    samples: Samples,
    sgd: Sgd,
    parts: Sequence[str],
    steps: int,
    rate: float,
    noise: float,
    max_grad_norm: float,
    generator: torch.Generator,
) -> Trained:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    for part in WEIGHTS:
        for parameter in network.parameters_of(part):
            parameter.requires_grad_(part in parts)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained] if sgd.proximal_mu else []
    network.train()
    module = GradSampleModule(network)
    plain = torch.optim.SGD(trained, sgd.learning_rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    optimizer = DPOptimizer(
        plain,
        noise_multiplier=noise,
        max_grad_norm=max_grad_norm,
        expected_batch_size=rate * len(samples),
        generator=generator,
    )
    total, seen = 0.0, 0
    device = samples.y.device
    for _ in range(steps):
        optimizer.zero_grad()
        chosen = torch.rand(len(samples), generator=generator, device=device) < rate
        if chosen.any():
            x, y = samples.x[chosen], samples.y[chosen]
            loss = sample_loss(module(x), y)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Full backward hook")  # inputs need no gradient here
                loss.backward()  # type: ignore[no-untyped-call]
            total, seen = total + float(loss.detach()) * len(y), seen + len(y)
        else:  # a step of noise alone: that nobody was drawn must not show
            for parameter in trained:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
        optimizer.pre_step()
        for parameter, origin in zip(trained, start, strict=False):
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach() - origin, alpha=sgd.proximal_mu)  # tells nothing about samples
        plain.step()
    optimizer.zero_grad()
    module.to_standard_module()
    for parameter in trained:
        parameter.grad = None
    return Trained(total / seen if seen else 0.0, steps)


def _check_valid(network: Network, model: str) -> None:
    from opacus.validators import ModuleValidator

    network.train()
    errors = ModuleValidator.validate(network, strict=False)
    if errors:
        raise ConfigError(
            f"model = {model!r}: privacy.mode = 'dp-sgd' cannot train it ({errors[0]}); choose another model"
        )


def with_noise(me: Participant, parts: Parts, server_round: int, model: int = 0) -> Parts:
    """Noise on the weights, not on counts and running statistics: a Gaussian vector of expected length sigma C."""
    size = sum(value.size for part, value in parts.items() if part not in STATISTICS)
    spread = me.privacy.noise_multiplier * me.privacy.max_grad_norm / np.sqrt(max(size, 1))
    generator = secret_generator(me, _purpose(model), server_round, device="cpu")
    noisy = dict(parts)
    for part, value in parts.items():
        if part not in STATISTICS:
            noise = torch.randn(value.shape, generator=generator).numpy()
            noisy[part] = (value + spread * noise).astype(value.dtype)
    return noisy


def _purpose(model: int) -> str:
    """Each model of a round has noise of its own: the difference of two with the same noise would have none."""
    return f"privacy {model}" if model else "privacy"


def secret_generator(me: Participant, purpose: str, server_round: int, device: str = "") -> torch.Generator:
    """Randomness that only this client knows; repeatable where its data are a public set."""
    generator = torch.Generator(device=device or me.device)
    if me.data().num_partitions:
        generator.manual_seed(derive_seed(me.config.seed, purpose, server_round, me.drawn_as))
    else:
        generator.seed()
    return generator
