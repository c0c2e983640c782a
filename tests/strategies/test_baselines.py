"""Per-FedAvg, pFedMe, pFedHN, AFL and q-FFL: one round of each against the same round written by hand, limits, bad replies."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Message
from sklearn.datasets import load_digits
from torch.nn import functional

from coterie.client.data import load_client_data
from coterie.server.app import initial_layout
from coterie.strategies.per_fedavg import MetaOrder
from coterie.strategies.pfedme import MoreauOrder
from coterie.strategies.registry import default_config, method_of, parse_config
from coterie.tasks.hypernetwork import Hypernetwork
from coterie.tasks.models import WEIGHTS, Network, build_network
from coterie.tasks.training import Samples, Sgd, evaluate, train
from coterie.wire.arrays import unpack
from coterie.wire.checks import Update
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import METRICS, MODEL, ORDER
from coterie.wire.randomness import derive_seed, generator

CLIENTS = ["0", "1", "2", "3"]
KIND = {"per-fedavg": "train.meta", "pfedme": "train.moreau"}


def config_of(run) -> RunConfig:
    return RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])


def initial(run) -> Network:
    config = config_of(run)
    return build_network(config.model, (1, 8, 8), 10, seed=derive_seed(config.seed, "model"))


def samples_of(run, client: str, which: str = "train") -> Samples:
    data = load_client_data({"partition-id": int(client), "num-partitions": 4}, config_of(run), client)
    indices = getattr(data.split, which)
    digits = load_digits()
    x = (digits.images[indices, None] - data.dataset.mean[0]) / data.dataset.std[0]
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(digits.target[indices].astype(np.int64)))


def uploaded(run, server_round: int = 1) -> dict[str, dict[str, np.ndarray]]:
    kind = KIND.get(json.loads((run.path / "config.json").read_text())["strategy"], "train")
    answers = run.exchanges(server_round, kind)
    return {name: unpack(answer.content.array_records[MODEL]) for name, (_, answer) in answers.items()}


def batches_of(samples: Samples, size: int, rng: np.random.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (samples.x[chosen], samples.y[chosen]) for chosen in torch.from_numpy(rng.permutation(len(samples))).split(size)
    ]


def gradients(network: Network, batch) -> list[torch.Tensor]:
    return list(torch.autograd.grad(functional.cross_entropy(network(batch[0]), batch[1]), list(network.parameters())))


def set_to(network: Network, values) -> None:
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), values, strict=True):
            parameter.copy_(value)


def copied(network: Network) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(network: Network, state: dict[str, torch.Tensor], **tolerance) -> None:
    for name, value in network.state_dict().items():
        if value.dtype.is_floating_point:
            torch.testing.assert_close(
                value.double(), state[name].double(), **{"rtol": 1e-4, "atol": 1e-5, **tolerance}
            )
        else:
            assert abs(int(value) - round(float(state[name]))) <= 0, name


def loaded(run, parts) -> Network:
    network = initial(run)
    network.load({part: parts[part] for part in network.parts if part in parts})
    return network


def mean_of(states: list[dict[str, torch.Tensor]], counts: list[int]) -> dict[str, torch.Tensor]:
    total = sum(counts)
    return {
        name: sum(n / total * state[name].double() for n, state in zip(counts, states, strict=True))
        for name in states[0]
    }


# --- Per-FedAvg -------------------------------------------------------------------------------------------------------


def test_one_round_of_per_fedavg_by_hand(federate):
    run = federate(
        strategy="per-fedavg", num_server_rounds=1, batch_size=50, learning_rate=0.1, **{"per-fedavg.alpha": 0.02}
    )
    states, counts = [], []
    for client in CLIENTS:
        samples, network = samples_of(run, client), initial(run).train()
        every = batches_of(samples, 50, generator(1, "train", 1, client))
        assert len(every) == 7  # an odd number: the last step ends with the first batch
        for i in (0, 2, 4, 6):
            before = copied(network)
            slope = gradients(network, every[i])
            set_to(network, [w - 0.02 * g for w, g in zip(before, slope, strict=True)])
            slope = gradients(network, every[(i + 1) % 7])
            set_to(network, [w - 0.1 * g for w, g in zip(before, slope, strict=True)])
        states.append({name: value.clone() for name, value in network.state_dict().items()})
        counts.append(len(samples))
    same(loaded(run, run.model), mean_of(states, counts))
    assert [event["train"][client]["steps"] for event in run.events for client in CLIENTS] == [4] * 4
    for client in CLIENTS:  # the personal model is the global one, tuned by steps of length alpha
        network = loaded(run, run.model)
        train(network, samples_of(run, client), Sgd(0.02, 50), epochs=1, rng=generator(1, "tune", 1, client))
        same(network, {name: torch.from_numpy(np.array(v)) for name, v in run.personal(client).items()})
        expected = evaluate(network, samples_of(run, client, "test"))
        assert run.result["models"]["personal"]["clients"][client] == pytest.approx(expected, rel=1e-4)
    assert run.result["models"]["personal"] != run.result["models"]["global"]


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 0.05), (0.3, 0.3)])
def test_alpha_is_the_learning_rate_by_default(alpha, expected, federate):
    run = federate(strategy="per-fedavg", model="linear", num_server_rounds=1, **{"per-fedavg.alpha": alpha})
    for asked, _ in run.exchanges(1, "train.meta").values():
        assert MetaOrder.from_record(asked.content.config_records[ORDER]).alpha == expected


# --- pFedMe -----------------------------------------------------------------------------------------------------------


def moreau_by_hand(run, client: str, *, pull: float, inner: int, rate: float, eta: float, size: int):
    """(w_i, theta_i) after an epoch, with the formulas as they stand in the paper."""
    samples, network = samples_of(run, client), initial(run).train()
    w, theta = copied(network), []
    for batch in batches_of(samples, size, generator(1, "train", 1, client)):
        theta = [value.clone() for value in w]
        for _ in range(inner):
            set_to(network, theta)
            slope = gradients(network, batch)
            theta = [
                (t - rate * g + rate * pull * v) / (1 + rate * pull) for t, g, v in zip(theta, slope, w, strict=True)
            ]
        w = [v - eta * pull * (v - t) for v, t in zip(w, theta, strict=True)]
    set_to(network, w)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    set_to(network, theta)
    return state, network, len(samples)


@pytest.mark.parametrize("beta", [1.0, 1.7])
def test_one_round_of_pfedme_by_hand(beta, federate):
    given = {"pfedme.pull": 5.0, "pfedme.inner-steps": 3, "pfedme.inner-rate": 0.1, "pfedme.beta": beta}
    run = federate(strategy="pfedme", num_server_rounds=1, batch_size=50, learning_rate=0.06, **given)
    hand = {c: moreau_by_hand(run, c, pull=5.0, inner=3, rate=0.1, eta=0.06, size=50) for c in CLIENTS}
    mean = mean_of([state for state, _, _ in hand.values()], [n for _, _, n in hand.values()])
    start = initial(run)
    weights = {name for name, _ in start.named_parameters()}
    for name, value in start.state_dict().items():
        if name in weights:
            mean[name] = (1 - beta) * value.double() + beta * mean[name]
    same(loaded(run, run.model), mean, atol=1e-4)
    assert (run.model["buffers"][start.variances()] >= 0).all()
    for client, (_, theta, _) in hand.items():
        state = {name: torch.from_numpy(np.array(value)) for name, value in run.personal(client).items()}
        same(theta, state, atol=1e-4)
        same(loaded(run, run.state(client)), state, rtol=0, atol=0)  # it is what the client keeps
        expected = evaluate(theta, samples_of(run, client, "test"))
        assert run.result["models"]["personal"]["clients"][client] == pytest.approx(expected, rel=1e-3)


def test_the_personal_model_is_not_sent(federate):
    run = federate(strategy="pfedme", num_server_rounds=1)
    for client, parts in uploaded(run).items():
        for part in WEIGHTS:
            assert not np.allclose(parts[part], run.state(client)[part], atol=1e-4)


def test_a_pull_beyond_measure_makes_pfedme_fedavg(federate):
    given = {"pfedme.pull": 1e7, "pfedme.inner-steps": 1}
    one, two = federate(strategy="fedavg"), federate(strategy="pfedme", **given)
    for part, value in one.model.items():
        np.testing.assert_allclose(two.model[part], value, rtol=1e-2, atol=1e-3)


def test_hardly_any_pull_leaves_the_global_model_where_it_is(federate):
    run = federate(strategy="pfedme", model="mlp", **{"pfedme.pull": 1e-7})
    for part, value in initial(run).dump().items():
        np.testing.assert_allclose(run.model[part], value, atol=1e-5)
    assert not np.allclose(run.state("0")["extractor"], run.model["extractor"], atol=1e-3)


def test_who_never_trained_uses_the_global_model(federate):
    run = federate(strategy="pfedme", fraction_train=0.5, num_server_rounds=1)
    trained = set(run.events[0]["train"])
    assert len(trained) == 2
    for client in CLIENTS:
        own, common = (run.result["models"][kind]["clients"][client] for kind in ("personal", "global"))
        assert (own == common) == (client not in trained)


def test_running_statistics_may_stay_with_pfedmes_clients(federate):
    run = federate(strategy="pfedme", buffers="local")
    assert all(set(parts) == set(WEIGHTS) for parts in uploaded(run, 2).values())
    assert not np.array_equal(run.state("0")["buffers"], run.state("1")["buffers"])
    for asked, _ in run.exchanges(1, "train.moreau").values():
        assert "buffers" in MoreauOrder.from_record(asked.content.config_records[ORDER]).keep


@pytest.mark.parametrize(
    ("key", "value"), [("pfedme.pull", 0.0), ("pfedme.beta", 0.0), ("per-fedavg.alpha", -0.1), ("q-ffl.q", -1.0)]
)
def test_settings_without_a_meaning_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key} = {value}: must be greater than"):
        parse_config({**default_config(), key: value})


# --- pFedHN -----------------------------------------------------------------------------------------------------------


def test_two_rounds_of_pfedhn_by_hand(federate):
    given = {"pfedhn.hidden": 6, "pfedhn.layers": 2, "pfedhn.server-steps": 1, "pfedhn.rate": 0.03}
    run = federate(strategy="pfedhn", model="linear", **given)
    start = initial(run)
    hyper = Hypernetwork(start, 4, hidden=6, layers=2, chunk=16384, seed=derive_seed(1, "hypernetwork"))
    parameters = list(hyper.parameters())
    adam = torch.optim.Adam(parameters, lr=0.03)
    for server_round in (1, 2):
        total = torch.zeros(())
        for i, client in enumerate(CLIENTS):
            theta = hyper(torch.eye(4)[i : i + 1])[0]
            np.testing.assert_allclose(run.sent(server_round)[client]["classifier"], theta.detach(), atol=2e-6)
            network = initial(run)
            network.load({"classifier": theta.detach().numpy()})
            rng = generator(1, "train", server_round, client)
            train(network, samples_of(run, client), Sgd(0.05, 32), epochs=1, rng=rng)
            trained = torch.from_numpy(network.dump()["classifier"])
            total = total + theta @ (theta.detach() - trained) / 4 / hyper.scale**2  # Adam's epsilon sees the scale
        for parameter, gradient in zip(parameters, torch.autograd.grad(total, parameters), strict=True):
            parameter.grad = gradient
        adam.step()
    for i, client in enumerate(CLIENTS):
        theta = hyper(torch.eye(4)[i : i + 1])[0].detach().numpy()
        assert np.abs(theta - start.dump()["classifier"]).max() > 1e-3
        network = initial(run)
        network.load({"classifier": theta})
        mine = np.concatenate([run.personal(client)[f"classifier.{name}"].ravel() for name in ("weight", "bias")])
        np.testing.assert_allclose(mine, theta, atol=2e-5)
        expected = evaluate(network, samples_of(run, client, "test"))["loss"]
        assert run.result["models"]["personal"]["clients"][client]["loss"] == pytest.approx(expected, rel=1e-3)
    assert all(event["phase"] == "hypernetwork" and event["way-left"] > 0 for event in run.events)


def test_clients_of_pfedhn_have_models_of_their_own(federate):
    run = federate(strategy="pfedhn", **{"pfedhn.server-steps": 10})
    first, second = run.sent(1), run.sent(2)
    assert np.array_equal(first["0"]["extractor"], first["1"]["extractor"])  # it starts as the initial model for all
    assert not np.allclose(second["0"]["extractor"], second["1"]["extractor"], atol=1e-5)
    assert set(first["0"]) == set(WEIGHTS)
    network = initial(run)  # the running statistics are those of the client's own samples
    network.load({part: value for part, value in run.sent(2, "evaluate")["3"].items()})
    samples = samples_of(run, "3")
    with torch.no_grad():
        seen = network.extractor[0](samples.x[:512])
    own = run.personal("3")["extractor.1.running_mean"]
    np.testing.assert_allclose(own, seen.mean(dim=(0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_pfedhn_for_one_client_and_for_a_late_one(federate):
    run = federate(strategy="pfedhn", model="mlp", num_clients=1)
    assert list(run.result["models"]["personal"]["clients"]) == ["0"]
    method = made("pfedhn")
    method.roster = ["a", "b"]
    assert method.corner("b").tolist() == [0.0, 1.0] and method.corner("late").tolist() == [0.5, 0.5]


def test_a_hypernetwork_that_diverges_ends_the_run(federate):
    with pytest.raises(RunFailed, match=r"the hypernetwork diverged: lower learning-rate, or pfedhn\.rate = 1e\+30"):
        federate(strategy="pfedhn", model="mlp", **{"pfedhn.rate": 1e30})


# --- AFL and q-FFL ----------------------------------------------------------------------------------------------------


def start_loss(run, client: str, parts=None) -> float:
    network = loaded(run, parts or {}).eval()
    samples = samples_of(run, client)
    with torch.no_grad():
        return float(functional.cross_entropy(network(samples.x), samples.y))


def mixed(run, server_round: int, weights: dict[str, float]) -> dict[str, np.ndarray]:
    models = uploaded(run, server_round)
    return {
        part: sum(weights[client] * models[client][part].astype(float) for client in CLIENTS)
        for part in next(iter(models.values()))
    }


def assert_model(run, expected, parts=None) -> None:
    for part, value in expected.items():
        room = 0.5 if part == "counters" else 1e-6
        np.testing.assert_allclose(run.model[part], value, rtol=1e-4, atol=room)


def test_two_rounds_of_afl_by_hand(federate):
    """Losses are those of the model that was sent; the second round's weights come from the first one's losses."""
    settings = {"strategy": "afl", "partition": "pathological", "afl.step": 0.2}
    one, run = federate(**settings, num_server_rounds=1), federate(**settings)
    assert run.events[0]["weights"] == {client: 0.25 for client in CLIENTS}
    losses = np.array([start_loss(run, client) for client in CLIENTS])
    told = [run.events[0]["train"][client]["start-loss"] for client in CLIENTS]
    np.testing.assert_allclose(told, losses, rtol=1e-4)
    assert_model(one, mixed(one, 1, {client: 0.25 for client in CLIENTS}))
    raised = 0.25 + 0.2 * losses
    raised -= (raised.sum() - 1) / 4  # nobody falls to 0 here, so this is the nearest point of the simplex
    assert (raised > 0).all() and np.ptp(raised) > 0.01
    weights = run.events[1]["weights"]
    np.testing.assert_allclose([weights[client] for client in CLIENTS], raised, rtol=1e-3)
    assert_model(run, mixed(run, 2, weights))
    second = [start_loss(run, client, one.model) for client in CLIENTS]
    np.testing.assert_allclose([run.events[1]["train"][client]["start-loss"] for client in CLIENTS], second, rtol=1e-3)


def same_losses(asked: Message, answer: Message, name: str) -> Message:
    if asked.metadata.message_type == "train":
        answer.content.metric_records[METRICS]["start-loss"] = 2.5
    return answer


def test_equal_losses_leave_the_weights_equal(federate):
    run = federate(tamper=same_losses, strategy="afl", model="linear", num_server_rounds=4, **{"afl.step": 5.0})
    for event in run.events:
        assert event["weights"] == pytest.approx({client: 0.25 for client in CLIENTS})


def test_the_worst_client_takes_all_in_the_end(federate):
    def tamper(asked, answer, name):
        if asked.metadata.message_type == "train":
            answer.content.metric_records[METRICS]["start-loss"] = 1e99 if name == "2" else 0.0
        return answer

    run = federate(tamper=tamper, strategy="afl", model="linear")
    assert run.events[1]["weights"] == {"0": 0.0, "1": 0.0, "2": 1.0, "3": 0.0}
    assert_model(run, {part: value for part, value in uploaded(run, 2)["2"].items()})


def made(strategy: str, **values):
    config, settings = parse_config({**default_config(), "strategy": strategy, "model": "lenet5", **values})
    method = method_of(strategy)(config, settings.get(strategy), initial_layout(config))
    method.model = dict(method.layout.parts)
    return method


class Told:
    """A round that writes down what it is told."""

    number = 1

    def __init__(self) -> None:
        self.event: dict = {}

    def tell(self, **facts) -> None:
        self.event |= facts


def aggregated(method, updates) -> dict:
    round = Told()
    method.aggregate(round, updates)
    return round.event


def update(method, shift: float, loss: float, samples: int = 10) -> Update:
    parts = {
        part: value + np.float32(shift) if value.dtype == np.float32 else value + int(shift)
        for part, value in method.layout.parts.items()
    }
    return Update(parts, samples, {"start-loss": loss}, {}, 0)


@pytest.mark.parametrize("strategy", ["afl", "q-ffl"])
def test_nobody_has_samples(strategy):
    method = made(strategy)
    method.mixture = {"a": 0.5, "b": 0.5}
    told = aggregated(method, {"a": update(method, 1.0, 0.0, 0), "b": update(method, 1.0, 0.0, 0)})
    assert told == {"weights": {}}
    assert all(np.array_equal(value, method.layout.parts[part]) for part, value in method.model.items())


@pytest.mark.parametrize("strategy", ["afl", "q-ffl"])
def test_who_has_no_samples_does_not_count(strategy):
    method = made(strategy, **{"q-ffl.q": 0.0})
    method.mixture = {"a": 0.5, "b": 0.5}
    told = aggregated(method, {"a": update(method, 1.0, 0.0, 0), "b": update(method, 2.0, 1.0)})
    assert told["weights"] == {"b": 1.0}
    np.testing.assert_allclose(method.model["classifier"], method.layout.parts["classifier"] + 2, rtol=1e-6)


def test_some_of_afls_clients_share_what_they_have():
    method = made("afl", **{"afl.step": 0.1})
    method.mixture = {"a": 0.2, "b": 0.2, "c": 0.6}
    told = aggregated(method, {"a": update(method, 1.0, 1.0), "b": update(method, 3.0, 2.0)})
    assert told["weights"] == {"a": 0.5, "b": 0.5}
    assert method.mixture == pytest.approx({"a": 0.4 * 0.45, "b": 0.4 * 0.55, "c": 0.6})
    np.testing.assert_allclose(method.model["buffers"], method.layout.parts["buffers"] + 2, rtol=1e-6)
    told = aggregated(method, {"late": update(method, 5.0, 9.0)})  # nobody here has any weight
    assert told["weights"] == {"late": 1.0} and method.mixture["late"] == 0.0
    again, state = made("afl", **{"afl.step": 0.1}), method.state_dict()
    again.load_state_dict(json.loads(json.dumps(state | {"arrays": {}})) | {"arrays": method.model})
    assert again.mixture == method.mixture
    with pytest.raises(ConfigError, match=r"afl\.step = 0\.01: the state is of a run with 0\.1; go on with the same"):
        made("afl").load_state_dict(state)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_one_round_of_q_ffl_by_hand(q, federate):
    run = federate(strategy="q-ffl", num_server_rounds=1, partition="pathological", **{"q-ffl.q": q})
    w, models = {k: v.astype(float) for k, v in initial(run).dump().items()}, uploaded(run)
    losses = {client: start_loss(run, client) for client in CLIENTS}
    delta = {part: np.zeros_like(value) for part, value in w.items()}
    h, lipschitz = 0.0, 1 / 0.05
    for client in CLIENTS:
        change = {part: lipschitz * (w[part] - models[client][part]) for part in WEIGHTS}
        square = sum(float((value**2).sum()) for value in change.values())
        h += q * losses[client] ** (q - 1) * square + lipschitz * losses[client] ** q
        for part in WEIGHTS:
            delta[part] += losses[client] ** q * change[part]
    assert_model(run, {part: w[part] - delta[part] / h for part in WEIGHTS})
    shares = np.array([losses[client] ** q for client in CLIENTS])
    shares /= shares.sum()
    assert np.ptp(shares) > 0.004
    rest = mixed(run, 1, dict(zip(CLIENTS, shares, strict=True)))
    assert_model(run, {part: rest[part] for part in ("buffers", "counters")})
    assert (run.model["buffers"][initial(run).variances()] >= 0).all()
    assert 0 < sum(run.events[0]["weights"].values()) < 1


EQUAL = {"task": "linear", "partition": "natural", "linear-samples": "50", "input-shape": "4", "linear-groups": 2}


def test_without_q_it_is_fedavg_with_equal_weights(federate):
    """And so is AFL that never moves its weights. All clients have as many samples."""
    runs = [
        federate(strategy="fedavg", **EQUAL, num_server_rounds=3),
        federate(strategy="q-ffl", **EQUAL, num_server_rounds=3, **{"q-ffl.q": 0.0}),
        federate(strategy="afl", **EQUAL, num_server_rounds=3, **{"afl.step": 0.0}),
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.model["classifier"], runs[0].model["classifier"], rtol=1e-5, atol=1e-7)
        assert run.events[-1]["weights"] == pytest.approx({client: 0.25 for client in CLIENTS})
    moved = federate(strategy="afl", **EQUAL, num_server_rounds=3, **{"afl.step": 0.1})
    assert not np.allclose(moved.model["classifier"], runs[0].model["classifier"], atol=1e-4)


def test_the_worst_client_is_better_off(federate):
    """Two clients want one thing, the third another. FedAvg serves the two; AFL makes all losses alike."""
    settings = {**EQUAL, "num-clients": 3, "linear-samples": "600", "test-fraction": 0.5, "num_server_rounds": 30}
    worst, spread = {}, {}
    for strategy, more in (("fedavg", {}), ("q-ffl", {"q-ffl.q": 1.0}), ("afl", {})):
        clients = federate(strategy=strategy, **settings, **more).result["models"]["personal"]["clients"].values()
        losses = [client["loss"] for client in clients]
        worst[strategy], spread[strategy] = max(losses), np.ptp(losses)
    assert worst["afl"] < 0.95 * worst["fedavg"] and worst["q-ffl"] < worst["fedavg"]
    assert spread["afl"] < 0.5 * spread["fedavg"] and spread["q-ffl"] < spread["fedavg"]


def test_losses_of_zero_leave_the_model_where_it_is():
    method = made("q-ffl")
    told = aggregated(method, {"a": update(method, 1.0, 0.0), "b": update(method, 2.0, 0.0)})
    assert told["weights"] == {"a": 0.0, "b": 0.0}
    assert all(np.array_equal(value, method.layout.parts[part]) for part, value in method.model.items())


@pytest.mark.parametrize("strategy", ["afl", "q-ffl"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "start-loss: expected a number that is not negative, got None"),
        (-0.5, "start-loss: expected a number that is not negative, got -0.5"),
        (float("nan"), "start-loss: not a finite number"),
        (1e200, "start-loss: not a finite number"),
        ([1.0], "start-loss: expected a number that is not negative, got None"),
    ],
)
def test_a_loss_that_is_none_is_refused(strategy, value, reason, federate):
    def tamper(asked, answer, name):
        if name == "1" and asked.metadata.message_type == "train":
            metrics = answer.content.metric_records[METRICS]
            del metrics["start-loss"]
            if value is not None:
                metrics["start-loss"] = value
        return answer

    run = federate(tamper=tamper, strategy=strategy, model="linear", num_server_rounds=1)
    assert reason in run.events[0]["left-out"]["1"] and set(run.events[0]["weights"]) == {"0", "2", "3"}


def test_other_methods_do_not_ask_for_it(federate):
    run = federate(strategy="fedavg", model="linear", num_server_rounds=1)
    assert all("start-loss" not in told for told in run.events[0]["train"].values())


# --- all of them ------------------------------------------------------------------------------------------------------

ALL = ["lg-fedavg", "per-fedavg", "pfedme", "pfedhn", "afl", "q-ffl"]


@pytest.mark.parametrize("strategy", ALL)
def test_one_client_alone(strategy, federate):
    run = federate(strategy=strategy, num_clients=1)
    assert all(np.isfinite(value).all() for value in run.model.values())
    assert list(run.result["models"]["personal"]["clients"]) == ["0"]


@pytest.mark.parametrize("strategy", ALL)
def test_bad_clients_spoil_what_they_send(strategy, federate):
    settings = {"strategy": strategy, "model": "mlp", "num_server_rounds": 1}
    attack = {"attack.kind": "sign-flip", "attack.clients": "2"}
    honest, bad = uploaded(federate(**settings)), uploaded(federate(**settings, **attack))
    start = initial(federate(**settings)).dump()
    for client in CLIENTS:
        sign = -1 if client == "2" else 1
        for part, value in honest[client].items():
            np.testing.assert_allclose(bad[client][part] - start[part], sign * (value - start[part]), atol=1e-6)


@pytest.mark.parametrize("strategy", ALL)
def test_a_client_that_sends_nonsense_is_left_out(strategy, federate):
    run = federate(strategy=strategy, **{"attack.kind": "nan", "attack.clients": "2"})
    assert all("not finite" in event["left-out"]["2"] for event in run.events)
    assert run.result["not-tested"] == {} and len(run.result["models"]["personal"]["clients"]) == 4
