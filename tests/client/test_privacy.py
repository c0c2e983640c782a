"""Differential privacy: the step against one written by hand, epsilon against Opacus, and who is told what."""

import itertools
import json
import logging

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from opacus.accountants import PRVAccountant, RDPAccountant
from torch.nn import functional

from coterie.client.accountant import Accountant
from coterie.client.participant import Participant
from coterie.client.privacy import _dp_sgd, secret_generator, with_noise
from coterie.client.store import FileStore
from coterie.server.app import checked_config
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import method_of
from coterie.tasks.models import build_network, has_batchnorm
from coterie.tasks.training import Samples, Sgd
from coterie.wire.arrays import unpack
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import MODEL

DP = {"privacy.mode": "dp-sgd"}


def samples(n: int = 12, shape: tuple[int, ...] = (1, 8, 8)) -> Samples:
    generator = torch.Generator().manual_seed(3)
    return Samples(torch.randn(n, *shape, generator=generator), torch.randint(10, (n,), generator=generator))


def dp_step(network, data: Samples, *, noise: float, clip: float, rate: float = 1.0, steps: int = 1, **sgd):
    generator = torch.Generator().manual_seed(1)
    parts = ("extractor", "norm", "classifier")
    return _dp_sgd(network, data, Sgd(0.5, len(data), **sgd), parts, steps, rate, noise, clip, generator)


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet5"])
@pytest.mark.parametrize("clip", [0.3, 1000.0])
def test_a_step_without_noise_by_hand(model, clip):
    """The mean of the clipped gradients of single samples, one backward pass each."""
    data = samples()
    network = build_network(model, (1, 8, 8), 10, seed=1, group_norm=True)
    twin = build_network(model, (1, 8, 8), 10, seed=1, group_norm=True)
    total = [torch.zeros_like(parameter) for parameter in twin.parameters()]
    clipped = 0
    for i in range(len(data)):
        loss = functional.cross_entropy(twin(data.x[i : i + 1]), data.y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        length = float(torch.cat([g.flatten() for g in gradients]).norm())
        clipped += length > clip
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient * min(1.0, clip / (length + 1e-6))
    assert clipped == (len(data) if clip < 1 else 0)
    before = network.dump()
    dp_step(network, data, noise=1e-9, clip=clip)
    for parameter, start, sum_ in zip(network.parameters(), twin.parameters(), total, strict=True):
        expected = start.detach() - 0.5 * sum_ / len(data)
        np.testing.assert_allclose(parameter.detach(), expected, rtol=1e-4, atol=1e-6)
    after = network.dump()  # the flat vectors moved with the layers
    assert any(not np.array_equal(before[part], after[part]) for part in before)
    assert not any(hasattr(p, "grad_sample") and p.grad_sample is not None for p in network.parameters())


def test_the_noise_has_the_size_that_was_asked_for():
    data = samples(20)
    network = build_network("mlp", (1, 8, 8), 10, seed=1)
    before = network.dump()
    dp_step(network, data, noise=50.0, clip=0.1)
    moved = np.concatenate([network.dump()[part] - before[part] for part in before])
    assert moved.std() == pytest.approx(0.5 * 50.0 * 0.1 / 20, rel=0.02)


def test_the_pull_of_fedprox_is_added_after_the_noise():
    data = samples()
    one, other = (build_network("linear", (1, 8, 8), 10, seed=1) for _ in range(2))
    dp_step(one, data, noise=1.0, clip=1.0, steps=2)
    dp_step(other, data, noise=1.0, clip=1.0, steps=2, proximal_mu=0.5)
    first = build_network("linear", (1, 8, 8), 10, seed=1)
    dp_step(first, data, noise=1.0, clip=1.0, steps=1)
    start = build_network("linear", (1, 8, 8), 10, seed=1).dump()["classifier"]
    pull = 0.5 * 0.5 * (first.dump()["classifier"] - start)
    np.testing.assert_allclose(one.dump()["classifier"] - other.dump()["classifier"], pull, atol=0.02)
    assert np.abs(pull).max() > 0.02


def test_steps_in_which_nobody_is_drawn():
    data = samples(4)
    network = build_network("lenet5", (1, 8, 8), 10, seed=1, group_norm=True)
    done = dp_step(network, data, noise=1.0, clip=1.0, rate=1e-9, steps=3)
    assert done.steps == 3 and done.loss == 0.0
    assert all(np.isfinite(value).all() for value in network.dump().values())


# --- epsilon ----------------------------------------------------------------------------------------------------------


def long_run(noise: float, rate: float, steps: int, delta: float = 1e-5) -> float:
    accountant = RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(1.0, 0.01, 2000), (1.3, 0.1, 300), (0.8, 0.05, 100), (4.0, 0.3, 500)]
)
def test_epsilon_is_never_below_that_of_the_tighter_accountant(noise, rate, steps):
    """Opacus' PRV accountant is numerically tight (Gopi et al. 2021); ours may say more, and by little."""
    tight = PRVAccountant()
    tight.history = [(noise, rate, steps)]
    ours = Accountant().after(noise, rate, steps).epsilon(1e-5)
    assert 1.0 <= ours / tight.get_epsilon(1e-5, eps_error=0.01) <= 1.2


def test_epsilon_after_twenty_rounds_and_restarts_is_that_of_one_long_run(federate):
    """Between messages nothing is left of a client but its files."""
    settings = {"strategy": "local", "model": "linear", "num-clients": 2, "evaluate-every": 20, "partition": "iid"}
    run = federate(**settings, **DP, **{"num-server-rounds": 20, "privacy.noise-multiplier": 1.3})
    for client, epsilon in run.result["privacy"]["epsilon"].items():
        count = run.events[0]["train"][client]["num-samples"]
        steps = 20 * round(count / 32)
        assert epsilon == pytest.approx(long_run(1.3, 32 / count, steps), rel=1e-12)
        told = [event["train"][client]["epsilon"] for event in run.events]
        assert all(one < two for one, two in itertools.pairwise(told)) and told[-1] == epsilon
    saved = json.loads((run.path / "result.json").read_text())
    assert saved["privacy"]["epsilon"] == run.result["privacy"]["epsilon"] and saved["privacy"]["delta"] == 1e-5


def test_the_history_is_numbers_in_a_file(tmp_path):
    store = FileStore(tmp_path, "a")
    Accountant().after(1.5, 0.1, 7).after(1.5, 0.1, 3).after(2.0, 0.1, 1).save(store)
    again = Accountant.load(FileStore(tmp_path, "a"))
    assert again.history == ((1.5, 0.1, 10), (2.0, 0.1, 1))
    assert (tmp_path / "state" / "privacy" / "a.safetensors").is_file()
    assert Accountant.load(FileStore(tmp_path, "b")).epsilon(1e-5) == 0.0


def test_a_repeated_round_counts_again_unless_its_noise_is_the_same(tmp_path):
    def message(name: str, same_noise_in: int | None, run: str = "1", trainings: int = 1, purpose="training") -> int:
        """Steps that are counted after a client answered a message with trainings of ten steps."""
        store = FileStore(tmp_path, name, run)
        for _ in range(trainings):
            accountant = Accountant.load(store, same_noise_in, purpose).after(1.0, 0.1, 10)
            accountant.save(store, same_noise_in)
        return sum(steps for _, _, steps in accountant.history)

    assert [message("own data", None) for _ in range(3)] == [10, 20, 30]
    told = [message("public", number) for number in (1, 1, 2, 2, 2, 3)]
    assert told == [10, 10, 20, 20, 20, 30]
    assert message("public", 3, run="2") == 40
    assert [message("coalitions", 1, trainings=3) for _ in range(2)] == [30, 30]
    killed = ("table", "table", "prototypes", "training", "prototypes", "prototypes", "training", "training")
    told = [message("two kinds", int(kind != "table"), purpose=kind) for kind in killed]
    assert told == [10, 10, 20, 30, 20, 20, 30, 30]  # as without a kill: 10, 20, 30


def test_a_target_is_met_and_used_up(federate):
    settings = {"strategy": "local", "model": "linear", "num-clients": 2, "evaluate-every": 5, "partition": "iid"}
    run = federate(**settings, **DP, **{"num-server-rounds": 5, "privacy.target-epsilon": 3.0})
    for epsilon in run.result["privacy"]["epsilon"].values():
        assert 2.9 <= epsilon <= 3.0


def test_the_noise_for_a_target():
    fresh = Accountant()
    noise = fresh.noise_for(2.0, 0.1, 200, 1e-5)
    assert 1.96 <= long_run(noise, 0.1, 200) <= 2.0
    assert long_run(noise * 0.98, 0.1, 200) > 2.0
    later = fresh.after(noise, 0.1, 100)
    assert later.noise_for(2.0, 0.1, 100, 1e-5) == noise  # on course: the same noise
    assert later.noise_for(2.0, 0.1, 20, 1e-5) < noise  # rounds were missed: there is privacy left to spend


def test_a_target_that_cannot_be_met(federate):
    with pytest.raises(RunFailed, match=r"privacy.target-epsilon = 0.01: cannot be met with delta = 1e-05, 0 spent"):
        federate(strategy="pfedsv", model="linear", **DP, **{"privacy.target-epsilon": 0.01, "round-retries": 0})
    with pytest.raises(ConfigError, match="raise it, or take fewer rounds"):
        Accountant().after(0.5, 0.5, 500).noise_for(1.0, 0.1, 1, 1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"privacy.mode": "dpsgd"}, "privacy.mode = 'dpsgd': must be 'off', 'dp-sgd' or 'weights'"),
        ({"privacy.noise-multiplier": 0.0}, "privacy.noise-multiplier = 0.0: must be greater than 0"),
        ({"privacy.max-grad-norm": -1.0}, "privacy.max-grad-norm = -1.0: must be greater than 0"),
        ({"privacy.delta": 1.0}, "privacy.delta = 1.0: must be less than 1"),
        ({"privacy.target-epsilon": -1.0}, "privacy.target-epsilon = -1.0: must be greater than or equal to 0"),
        ({"privacy.noise": 1.0}, "privacy.noise: there is no such key"),
    ],
    ids=str,
)
def test_wrong_settings(values, expected):
    with pytest.raises(ConfigError) as caught:
        checked_config(values)
    assert str(caught.value).startswith(expected)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "mode"), [(name, m) for name in METHODS for m in method_of(name).private])
def test_every_method_trains_with_privacy(strategy, mode, federate):
    run = federate(strategy=strategy, model="lenet5", **{"privacy.mode": mode, "num-server-rounds": 2})
    assert run.result["privacy"]["mode"] == mode
    assert all(event["left-out"] == {} for event in run.events)
    for event in run.events:
        for told in event["train"].values():
            assert ("epsilon" in told) == (mode == "dp-sgd")
    assert run.result["privacy"]["guarantee"] == ("(epsilon, delta)" if mode == "dp-sgd" else "none")


REFUSED = [(name, m) for name in METHODS for m in ("dp-sgd", "weights") if m not in method_of(name).private]


@pytest.mark.parametrize(("strategy", "mode"), REFUSED)
def test_the_others_refuse_by_name_and_say_why(strategy, mode):
    with pytest.raises(ConfigError) as caught:
        checked_config({"strategy": strategy, "privacy.mode": mode})
    text = str(caught.value)
    assert text.startswith(
        f"privacy.mode = '{mode}': strategy '{strategy}' {method_of(strategy).not_private}; use privacy.mode="
    )
    assert method_of(strategy).not_private and ("'weights' or 'off'" in text) == bool(method_of(strategy).private)


def test_who_refuses():
    assert {name for name, mode in REFUSED if mode == "weights"} == {"spo", "ce"}
    without = {"spo", "ce", "per-fedavg", "pfedme", "afl", "q-ffl", "fedrod", "feddyn", "fedamp", "ifca"}
    assert {name for name, mode in REFUSED if mode == "dp-sgd"} == without


@pytest.mark.parametrize("buffers", ["average", "drop"])
def test_batchnorm_becomes_groupnorm_on_both_sides_and_the_run_says_so(federate, caplog, buffers):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        run = federate(strategy="fedavg", model="lenet5", **DP, buffers=buffers)
    assert "GroupNorm takes its place" in caplog.text
    assert set(run.model) == {"extractor", "norm", "classifier"}
    tensors = run.personal("0")
    assert not any("running" in name for name in tensors)
    caplog.clear()
    federate(strategy="fedavg", model="mlp", **DP)
    assert "GroupNorm" not in caplog.text


def test_groupnorm_has_the_numbers_of_batchnorm():
    network = build_network("resnet18", (3, 32, 32), 10, seed=1, group_norm=True)
    plain = build_network("resnet18", (3, 32, 32), 10, seed=1)
    assert not has_batchnorm(network) and has_batchnorm(plain)
    assert network.parts["norm"].shape == plain.parts["norm"].shape and "buffers" not in network.parts
    np.testing.assert_array_equal(network.dump()["extractor"], plain.dump()["extractor"])
    assert torch.isfinite(network(torch.randn(2, 3, 32, 32))).all()


def test_noisy_weights_travel_and_clean_ones_stay(federate):
    settings = {"strategy": "pfedsv", "model": "mlp", "num-server-rounds": 1, "pfedsv.top-k": 1}
    run = federate(**settings, **{"privacy.mode": "weights", "privacy.noise-multiplier": 3.0})
    clean = federate(**settings)

    def sent_up(one):
        pairs = zip(one.grid.sent, one.grid.answered, strict=True)
        return {
            name: unpack(answered.content.array_records[MODEL])
            for (name, asked), (_, answered) in pairs
            if asked.metadata.message_type == "train"
        }

    noisy, plain = sent_up(run), sent_up(clean)
    for client in noisy:
        noise = np.concatenate([noisy[client][part] - plain[client][part] for part in noisy[client]])
        assert np.linalg.norm(noise) == pytest.approx(3.0, rel=0.03)


def test_two_models_of_a_round_have_different_noise(federate):
    """pFedOCF's clients upload their own model and one of all: their difference is not to be free of noise."""
    settings = {"strategy": "pfedocf", "model": "linear", "num-server-rounds": 1, "partition": "iid"}
    noise = {"privacy.noise-multiplier": 3.0, "privacy.max-grad-norm": 1.0}

    def differences(mode):
        run = federate(**settings, **noise, **{"privacy.mode": mode})
        sent = [answer.content.array_records[MODEL] for _, answer in run.grid.answered if answer.content.array_records]
        return np.stack([unpack(one)["classifier"][0] - unpack(one)["classifier"][1] for one in sent])

    plain, noisy, private = (differences(mode) for mode in ("off", "weights", "dp-sgd"))
    assert len(plain) > 1 and not plain.any()  # in the first round both begin alike
    lengths = np.linalg.norm(noisy, axis=1)
    assert lengths == pytest.approx(np.full(len(plain), 3.0 * np.sqrt(2)), rel=0.1)
    assert (np.linalg.norm(private, axis=1) > 0).all()


def participant(run_config, node_config) -> Participant:
    context = Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config=run_config)
    return Participant.of(context)


def test_the_noise_of_a_client_with_its_own_data_cannot_be_known(tmp_path):
    """Everybody has the seed: what is drawn from it hides nothing."""
    np.savez(
        tmp_path / "own.npz", x=np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32), y=np.arange(20) % 2
    )
    config = checked_config({"task": "own", "classes": "2", "input-shape": "3", "privacy.mode": "weights"})
    own = participant(config, {"data": str(tmp_path / "own.npz"), "client-name": "a"})
    parts = {"classifier": np.zeros(8, np.float32)}
    assert not np.array_equal(with_noise(own, parts, 1)["classifier"], with_noise(own, parts, 1)["classifier"])
    public = participant(checked_config({"privacy.mode": "weights"}), {"partition-id": 0, "num-partitions": 4})
    np.testing.assert_array_equal(
        with_noise(public, parts, 1)["classifier"], with_noise(public, parts, 1)["classifier"]
    )
    assert secret_generator(own, "x", 1).initial_seed() != secret_generator(own, "x", 1).initial_seed()
