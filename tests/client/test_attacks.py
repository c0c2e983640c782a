"""Every attack does what it says, on the chosen clients only."""

import json

import numpy as np
import pytest
import torch

from coterie.client.attacks import Attack
from coterie.tasks.training import Samples
from coterie.wire.arrays import unpack
from coterie.wire.attack import KINDS, AttackSettings, bad_clients
from coterie.wire.errors import ConfigError
from coterie.wire.messages import MODEL

START = {
    "extractor": np.linspace(-1, 1, 50, dtype=np.float32),
    "classifier": np.ones(10, np.float32),
    "buffers": np.ones(4, np.float32),
    "counters": np.array([7]),
}
TRAINED = {
    "extractor": START["extractor"] + np.float32(0.1),
    "classifier": START["classifier"] * np.float32(1.5),
    "buffers": START["buffers"] * np.float32(0.5),
    "counters": np.array([9]),
}


def attack(kind: str, client: str = "3", **more) -> Attack:
    return Attack(AttackSettings(kind=kind, fraction=0.3, **more), 1, client, 10)


def samples(n: int = 200) -> Samples:
    return Samples(torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 10)


def vector(parts) -> np.ndarray:
    return np.concatenate([parts["extractor"], parts["classifier"]]).astype(float)


def update(kind: str, server_round: int = 1, client: str = "3", **more) -> np.ndarray:
    sent = attack(kind, client, **more).on_update(START, TRAINED, server_round)
    assert set(sent) == set(TRAINED) and all(sent[part].dtype == TRAINED[part].dtype for part in sent)
    return vector(sent) - vector(START)


HONEST = vector(TRAINED) - vector(START)


def test_closed_set_flips_labels_to_the_next():
    spoiled = attack("closed-set").on_samples(samples())
    assert torch.equal(spoiled.y, (samples().y + 1) % 10) and torch.equal(spoiled.x, samples().x)
    half = attack("closed-set", strength=0.5).on_samples(samples())
    assert int((half.y != samples().y).sum()) == 100


def test_open_set_gives_inputs_of_no_class_the_same_labels():
    spoiled = attack("open-set").on_samples(samples())
    assert torch.equal(spoiled.y, samples().y) and not torch.equal(spoiled.x, samples().x)
    torch.testing.assert_close(spoiled.x.flatten(1).sort().values, samples().x.flatten(1).sort().values)


def test_data_noise_is_standard_normal():
    noise = attack("data-noise", strength=2.0).on_samples(samples(2000)).x - samples(2000).x
    assert abs(float(noise.mean())) < 0.05 and float(noise.std()) == pytest.approx(2.0, rel=0.03)


def test_open_set_takes_images_of_another_set_for_a_share_of_the_samples():
    asked = []

    def foreign(number, rng):
        asked.append(number)
        return torch.full((number, 1, 4, 4), 9.0)

    half = Attack(AttackSettings(kind="open-set", strength=0.5), 1, "3", 10, foreign).on_samples(samples())
    replaced = (half.x == 9.0).flatten(1).all(dim=1)
    assert asked == [100] and int(replaced.sum()) == 100 and torch.equal(half.y, samples().y)
    assert torch.equal(half.x[~replaced], samples().x[~replaced])


def test_gradient_poison_multiplies_each_number():
    ratio = update("gradient-poison") / HONEST
    assert ratio.min() >= 0.5 - 1e-3 and ratio.max() <= 1.5 + 1e-3 and ratio.std() > 0.2
    assert (update("gradient-poison", strength=20.0) / HONEST).min() < -4


def test_random_gradient_is_as_long_and_points_elsewhere():
    sent = update("random-gradient", strength=3.0)
    assert np.linalg.norm(sent) == pytest.approx(3 * np.linalg.norm(HONEST), rel=1e-3)
    assert abs(sent @ HONEST) < 0.5 * np.linalg.norm(sent) * np.linalg.norm(HONEST)
    assert not np.allclose(sent, update("random-gradient", server_round=2, strength=3.0))
    assert not np.allclose(sent, update("random-gradient", client="4", strength=3.0))


def test_sign_flip():
    np.testing.assert_allclose(update("sign-flip", strength=2.0), -2 * HONEST, atol=1e-5)


def test_colluding_clients_send_the_same():
    np.testing.assert_allclose(update("collude"), update("collude", client="5"), atol=1e-6)
    assert not np.allclose(update("collude"), update("collude", server_round=2))
    assert np.linalg.norm(update("collude")) == pytest.approx(0.1 * np.linalg.norm(vector(START)), rel=1e-3)


def test_huge_and_nan():
    sent = attack("huge").on_update(START, TRAINED, 1)
    np.testing.assert_allclose(vector(sent) - vector(START), 1e6 * HONEST, rtol=1e-3)
    assert (sent["buffers"] > 1e5).all()  # a variance must not be negative, or it would be refused at once
    assert np.isnan(update("nan")).all()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_same_seed_does_the_same_harm(kind):
    one, two = (attack(kind).on_samples(samples()) for _ in range(2))
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)
    np.testing.assert_array_equal(update(kind), update(kind))


def test_who_is_bad():
    names = [str(i) for i in range(10)]
    chosen = bad_clients(AttackSettings(kind="nan", fraction=0.3), names, 1)
    assert len(chosen) == 3 and chosen == bad_clients(AttackSettings(kind="nan", fraction=0.3), names, 1)
    assert bad_clients(AttackSettings(kind="nan", clients="2, 5"), names, 1) == {"2", "5"}
    assert bad_clients(AttackSettings(clients="2"), names, 1) == set()
    for settings, words in (
        ({"clients": ",".join(str(i) for i in range(11))}, "11 bad clients of 10"),
        ({"clients": "12"}, "there is no client '12'"),
        ({}, "nobody does it"),
    ):
        with pytest.raises(ConfigError, match=words):
            bad_clients(AttackSettings(kind="nan", **settings), names, 1)


def uploads(run) -> dict[str, dict[str, np.ndarray]]:
    return {
        name: unpack(answer.content.array_records[MODEL])
        for name, answer in run.grid.answered
        if answer.metadata.message_type == "train" and answer.metadata.group_id == "1"
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS[1:] if kind not in ("nan", "stale")])
def test_in_a_run_only_the_chosen_do_it(federate, kind):
    settings = {"model": "mlp", "num-server-rounds": 1, "strategy": "fedavg"}
    clean = uploads(federate(**settings))
    spoiled = uploads(federate(**settings, **{"attack.kind": kind, "attack.clients": "1,3"}))
    changed = {n for n in clean if any(not np.array_equal(clean[n][p], spoiled[n][p]) for p in clean[n])}
    assert changed == {"1", "3"}


def test_a_stale_client_always_starts_from_the_beginning(federate):
    settings = {"model": "mlp", "num-server-rounds": 3, "strategy": "fedavg", "partition": "iid"}
    run = federate(**settings, **{"attack.kind": "stale", "attack.clients": "0"})
    losses = [[event["train"][name]["loss"] for event in run.events] for name in ("0", "1")]
    assert losses[0][2] > 0.9 * losses[0][0] and losses[1][2] < 0.9 * losses[1][0]


def test_nan_is_refused_and_the_others_go_on(federate):
    run = federate(strategy="fedavg", model="mlp", **{"attack.kind": "nan", "attack.fraction": 0.25})
    assert all(len(event["left-out"]) == 1 and len(event["train"]) == 3 for event in run.events)


def test_by_node_configuration(federate, monkeypatch):
    """As in a deployment: one client is started with attack='sign-flip'; the run itself knows nothing of it."""
    TamperedGrid = federate.__globals__["TamperedGrid"]

    class Grid(TamperedGrid):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            list(self.contexts.values())[2].node_config["attack"] = "sign-flip"

    settings = {"model": "mlp", "num-server-rounds": 1, "strategy": "afedsv"}
    clean = uploads(federate(**settings))
    monkeypatch.setitem(federate.__globals__, "TamperedGrid", Grid)
    run = federate(**settings)
    spoiled = uploads(run)
    changed = {n for n in clean if any(not np.array_equal(clean[n][p], spoiled[n][p]) for p in clean[n])}
    assert changed == {"2"}
    assert "recall" not in json.loads((run.path / "findings.json").read_text())["suspects"]["facts"]


def test_an_unknown_attack_in_a_node_configuration_is_named(federate, monkeypatch):
    from coterie.client.participant import Participant

    run = federate(strategy="fedavg", model="linear", num_server_rounds=1)
    context = next(iter(run.grid.contexts.values()))
    context.node_config["attack"] = "signflip"
    with pytest.raises(ConfigError, match="did you mean 'sign-flip'"):
        Participant.of(context).attack()


@pytest.mark.parametrize("kind", ["closed-set", "sign-flip", "stale"])
def test_bad_clients_that_share_nothing_train_all_the_same(federate, kind):
    run = federate(strategy="local", model="mlp", **{"attack.kind": kind, "attack.clients": "1"})
    assert all(event["left-out"] == {} and set(event["train"]) == set("0123") for event in run.events)
    initial = federate(strategy="local", model="mlp", num_server_rounds=1, learning_rate=1e-12).state("1")
    assert not np.allclose(run.state("1")["extractor"], initial["extractor"], atol=1e-3)
