"""Ditto, FedBABU, FedRoD, FLTrust, FedDyn, FedAMP, IFCA: rounds of each against the same rounds as plain loops of torch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import coterie
from coterie.client.participant import Participant
from coterie.strategies.server_game import server_samples
from coterie.tasks.models import Network, build_network
from coterie.tasks.training import Samples
from coterie.wire.arrays import unpack
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.messages import METRICS, MODEL, OTHERS
from coterie.wire.randomness import derive_seed, generator

DITTO = Path(__file__).parents[2] / "docs" / "how-to" / "ditto.py"
CLIENTS = ["0", "1", "2", "3"]
COMMON = {"model": "mlp", "partition": "pathological", "learning_rate": 0.1, "batch_size": 64, "test_fraction": 0.5}


def config_of(run) -> RunConfig:
    return RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])


def model_with(run, parts) -> Network:
    network = build_network("mlp", (1, 8, 8), 10, seed=derive_seed(config_of(run).seed, "model"))
    network.load({part: parts[part] for part in network.parts if part in parts})
    return network.train()


def initial(run) -> Network:
    return model_with(run, {})


def samples_of(run, client: str) -> Samples:
    return Participant.of(run.grid.contexts[2 + int(client)]).train_samples()


def answers_of(run, server_round: int, kind: str):
    """Client -> (model parts, metrics) that it sent."""
    found = run.exchanges(server_round, kind)
    return {
        name: (unpack(answer.content.array_records[MODEL]), dict(answer.content.metric_records[METRICS]))
        for name, (_, answer) in found.items()
    }


def batches(samples: Samples, rng: np.random.Generator, size: int = 64):
    order = torch.from_numpy(rng.permutation(len(samples)))
    chosen = list(order.split(size))
    if len(chosen) > 1 and len(chosen[-1]) == 1:  # a lone last sample joins the batch before it
        chosen[-2:] = [torch.cat(chosen[-2:])]
    return [(samples.x[some], samples.y[some]) for some in chosen]


def descend(network: Network, samples: Samples, rng, more=lambda network: 0.0, only=None, rate: float = 0.1) -> None:
    """One epoch of plain SGD on the loss and what `more` adds to it, of all parameters or of those that begin with `only`."""
    chosen = [value for name, value in network.named_parameters() if only is None or name.startswith(only)]
    optimiser = torch.optim.SGD(chosen, lr=rate)
    for x, y in batches(samples, rng):
        optimiser.zero_grad()
        (functional.cross_entropy(network(x), y) + more(network)).backward()
        optimiser.step()


def vector(network: Network) -> torch.Tensor:
    return torch.cat([value.flatten() for value in network.parameters()])


def close(run, network: Network, parts, **tolerance) -> None:
    found, expected = vector(model_with(run, parts)), vector(network)
    np.testing.assert_allclose(found.detach(), expected.detach(), **{"rtol": 1e-3, "atol": 1e-5, **tolerance})


def copied(network: Network) -> Network:
    """With parameters of its own."""
    other = build_network("mlp", (1, 8, 8), 10, seed=0).train()
    other.load_state_dict(network.state_dict())
    return other


def mean(networks: list[Network], weights) -> Network:
    result = copied(networks[0])
    shares = np.array(weights, float) / np.sum(weights)
    with torch.no_grad():
        for name, value in result.named_parameters():
            value.copy_(
                sum(s * dict(n.named_parameters())[name].double() for s, n in zip(shares, networks, strict=True))
            )
    return result


def test_ditto_is_the_one_of_the_how_to(federate):
    ours = federate(strategy="ditto", **COMMON, **{"ditto.mu": 0.7})
    theirs = federate(strategy=str(DITTO), **COMMON, **{"my-ditto.mu": 0.7})
    assert ours.result["models"] == theirs.result["models"]
    assert all(np.array_equal(ours.state("1")[part], value) for part, value in theirs.state("1").items())


def test_one_round_of_fedbabu(federate):
    run = federate(strategy="fedbabu", num_server_rounds=1, **COMMON, **{"fedbabu.epochs": 1})
    trained = []
    for client in CLIENTS:
        network = initial(run)
        descend(network, samples_of(run, client), generator(1, "train", 1, client), only="extractor")
        trained.append(network)
    whole = mean(trained, [len(samples_of(run, client)) for client in CLIENTS])
    close(run, whole, run.model)
    assert np.array_equal(run.model["classifier"], initial(run).dump()["classifier"])
    assert all("classifier" not in parts for parts, _ in answers_of(run, 1, "train").values())
    for client in CLIENTS:
        network = copied(whole)
        descend(network, samples_of(run, client), generator(1, "tune", 1, client))
        for name, value in run.personal(client).items():
            np.testing.assert_allclose(value, network.state_dict()[name].detach(), rtol=1e-3, atol=1e-5)


def test_two_rounds_of_fedrod(federate):
    """The network goes by the balanced softmax; the client's own classifier is trained on features that it does not change."""
    run = federate(strategy="fedrod", **COMMON)
    heads = {client: torch.nn.Linear(initial(run).classifier.in_features, 10) for client in CLIENTS}
    for head in heads.values():
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    current = initial(run)
    for server_round in (1, 2):
        trained = []
        for client in CLIENTS:
            network, head, samples = copied(current), heads[client], samples_of(run, client)
            prior = torch.log(torch.tensor([float((samples.y == c).sum()) for c in range(10)]))
            both = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=0.1)
            for x, y in batches(samples, generator(1, "train", server_round, client)):
                both.zero_grad()
                features = network.extractor(x)
                outputs = network.classifier(features)
                own = functional.cross_entropy(outputs.detach() + head(features.detach()), y)
                (functional.cross_entropy(outputs + prior, y) + own).backward()
                both.step()
            trained.append(network)
        current = mean(trained, [len(samples_of(run, client)) for client in CLIENTS])
    close(run, current, run.model)
    for client in CLIENTS:
        mine = run.personal(client)
        both = current.classifier.weight + heads[client].weight
        np.testing.assert_allclose(mine["classifier.weight"], both.detach(), rtol=1e-3, atol=1e-5)
        told = run.result["models"]
        assert told["personal"]["clients"][client]["loss"] < told["global"]["clients"][client]["loss"]


def test_who_never_trained_with_fedrod_has_the_global_model(federate):
    run = federate(strategy="fedrod", fraction_train=0.25, num_server_rounds=1, **COMMON)
    (trained,) = run.events[0]["train"]
    for client, told in run.events[0]["evaluate"].items():
        assert (told["global.loss"] == told["personal.loss"]) is (client != trained)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_one_round_of_fltrust(rate, federate):
    run = federate(
        strategy="fltrust",
        num_server_rounds=1,
        **COMMON,
        **{"attack.kind": "sign-flip", "attack.clients": "2", "fltrust.rate": rate},
    )
    root = initial(run)
    start = vector(root).detach().double()
    descend(root, server_samples(config_of(run), "cpu"), generator(1, "root", 1))
    g0 = vector(root).detach().double() - start
    ways = {
        c: vector(model_with(run, parts)).detach().double() - start
        for c, (parts, _) in answers_of(run, 1, "train").items()
    }
    trust = {c: max(0.0, float(functional.cosine_similarity(way, g0, dim=0))) for c, way in ways.items()}
    assert trust["2"] == 0 and min(trust[c] for c in "013") > 0.01
    total = sum(trust.values())
    g = sum(trust[c] / total * g0.norm() / way.norm() * way for c, way in ways.items())
    expected = start + rate * g
    assert float(g.norm()) <= float(g0.norm()) * (1 + 1e-9)
    np.testing.assert_allclose(vector(model_with(run, run.model)).detach(), expected, rtol=1e-3, atol=1e-5)
    assert run.events[0]["weights"] == pytest.approx({c: value / total for c, value in trust.items()}, rel=1e-3)


def test_if_fltrust_trusts_nobody_the_model_stays(federate):
    everybody = {"attack.kind": "sign-flip", "attack.fraction": 1.0}
    run = federate(strategy="fltrust", num_server_rounds=1, **COMMON, **everybody)
    assert set(run.events[0]["weights"].values()) == {0.0}
    close(run, initial(run), run.model, rtol=0, atol=0)


def test_two_rounds_of_feddyn(federate):
    run = federate(strategy="feddyn", fraction_train=0.75, **COMMON, **{"feddyn.alpha": 0.3})
    size = len(vector(initial(run)))
    tilts, drift, current = {client: torch.zeros(size) for client in CLIENTS}, torch.zeros(size), initial(run)
    for server_round in (1, 2):
        start = vector(current).detach()
        ends = []
        asked = [c for c in CLIENTS if c in run.events[server_round - 1]["train"]]
        assert len(asked) == 3
        for client in asked:
            network, tilt = copied(current), tilts[client]

            def more(network, start=start, tilt=tilt):
                w = vector(network)
                return 0.15 * ((w - start) ** 2).sum() - tilt @ w

            descend(network, samples_of(run, client), generator(1, "train", server_round, client), more)
            ends.append(vector(network).detach())
            tilts[client] = tilt - 0.3 * (ends[-1] - start)
        drift = drift - 0.3 / 4 * sum(end - start for end in ends)  # of four clients, three trained
        torch.nn.utils.vector_to_parameters(sum(ends) / 3 - drift / 0.3, current.parameters())
    close(run, current, run.model)
    assert {run.events[1]["train"].keys() == run.events[0]["train"].keys()} == {
        False
    }  # somebody's tilt was used, somebody's not


def test_two_rounds_of_fedamp(federate):
    given = {"fedamp.pull": 0.5, "fedamp.sigma": 3.0, "fedamp.own": 0.4}
    run = federate(strategy="fedamp", **COMMON, **given)
    first = {}
    for client in CLIENTS:  # from the initial model, which is all that there is to be drawn to
        network, start = initial(run), vector(initial(run)).detach()
        pull = lambda network, start=start: 0.25 * ((vector(network) - start) ** 2).sum()  # noqa: E731
        descend(network, samples_of(run, client), generator(1, "train", 1, client), pull)
        close(run, network, answers_of(run, 1, "train.drawn")[client][0], atol=1e-5)
        first[client] = network
    flat = torch.stack([vector(first[client]).detach().double() for client in CLIENTS])
    for i, client in enumerate(CLIENTS):
        others = [j for j in range(4) if j != i]
        like = torch.tensor([float(functional.cosine_similarity(flat[i], flat[j], dim=0)) for j in others])
        shares = 0.6 * torch.softmax(3.0 * like, dim=0)
        towards = 0.4 * flat[i] + sum(share * flat[j] for share, j in zip(shares.double(), others, strict=True))
        sent = model_with(run, run.sent(2, "train.drawn")[client])
        np.testing.assert_allclose(vector(sent).detach(), towards, rtol=1e-3, atol=1e-5)
        to = towards.float()
        pull = lambda network, to=to: 0.25 * ((vector(network) - to) ** 2).sum()  # noqa: E731
        network = copied(first[client])
        descend(network, samples_of(run, client), generator(1, "train", 2, client), pull)
        close(run, network, run.state(client), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            run.personal(client)["classifier.bias"], network.classifier.bias.detach(), rtol=1e-3, atol=1e-5
        )


def test_two_rounds_of_ifca(federate):
    run = federate(strategy="ifca", **COMMON, **{"ifca.clusters": 3})
    asked = run.exchanges(1, "train.choose")["0"][0].content.array_records[OTHERS]
    rows = unpack(asked)
    models = [model_with(run, {part: value[j] for part, value in rows.items()}) for j in range(3)]
    assert np.array_equal(models[0].dump()["extractor"], initial(run).dump()["extractor"])
    assert not np.allclose(models[1].dump()["extractor"], models[2].dump()["extractor"])
    for server_round in (1, 2):
        choices: dict[int, list] = {}
        for client in CLIENTS:
            samples = samples_of(run, client)
            with torch.no_grad():
                losses = [float(functional.cross_entropy(model(samples.x), samples.y)) for model in models]
            best = int(np.argmin(losses))
            assert run.events[server_round - 1]["chosen"][client] == best
            network = copied(models[best])
            descend(network, samples, generator(1, "train", server_round, client))
            choices.setdefault(best, []).append((network, len(samples)))
        for j, trained in choices.items():
            models[j] = mean([network for network, _ in trained], [count for _, count in trained])
    for client in CLIENTS:
        samples = samples_of(run, client)
        with torch.no_grad():
            best = min(models, key=lambda model: float(functional.cross_entropy(model(samples.x), samples.y)))
        for name, value in run.personal(client).items():
            np.testing.assert_allclose(value, best.state_dict()[name].detach(), rtol=1e-3, atol=1e-5)


def test_ifca_finds_clients_whose_labels_mean_the_same(tmp_path):
    """Labels are renamed in one half of the clients; no model suits both."""
    run = coterie.run(
        "ifca",
        run_dir=tmp_path / "a",
        workers=0,
        progress=False,
        settings={"shift": "permute-labels", "shift-groups": 2},
        **{
            "num_clients": 6,
            "partition": "iid",
            "model": "mlp",
            "num_server_rounds": 6,
            "local_epochs": 3,
            "baseline": "none",
        },
    )
    groups = sorted(sorted(group) for group in run.findings["coalitions"].values)
    assert groups == [["0", "2", "4"], ["1", "3", "5"]]


def test_a_choice_that_is_none_is_refused(federate):
    def tamper(asked, answered, client):
        if client == "1" and asked.metadata.message_type == "train.choose":
            answered.content.metric_records[METRICS]["chosen"] = 7
        return answered

    run = federate(tamper, strategy="ifca", num_server_rounds=1, **COMMON)
    assert run.events[0]["left-out"] == {"1": "chosen: expected a number below 2, got 7"}
