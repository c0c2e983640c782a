"""Coterie's own method with clients that come late, are lost, come back, tell nothing, have too little, or train privately."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from coterie.tasks.datasets import load_dataset
from coterie.trial import Played, TamperedGrid, Trial
from coterie.wire.arrays import unpack
from coterie.wire.messages import HELLO, MODEL, ORDER

TOLD = "query.prototypes"


@pytest.fixture
def trial(tmp_path) -> Trial:
    return Trial("coterie", {"test-fraction": 0.5}, tmp_path)


def own_data(place: Path, *, turned: bool = False, samples: int = 400) -> str:
    digits = load_dataset("digits", "")
    x = np.asarray(digits.x)[:samples]
    file = place / f"own-{turned}-{samples}.npz"
    np.savez(file, x=np.rot90(x, 2, axes=(2, 3)) if turned else x, y=np.asarray(digits.y)[:samples])
    return str(file)


def unnumbered(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
    if asked.metadata.message_type == HELLO:
        answer.content.config_records[ORDER]["num_partitions"] = 0  # so that three may begin without the fourth
    return answer


def told(played: Played, client: str) -> list[str]:
    """The rounds in which a client was asked for its prototypes."""
    return [
        asked.metadata.group_id
        for name, asked in played.grid.sent
        if name == client and asked.metadata.message_type == TOLD
    ]


def sent_model(played: Played, client: str, server_round: int) -> dict[str, np.ndarray]:
    (asked,) = [
        asked
        for name, asked in played.grid.sent
        if (name, asked.metadata.message_type.split(".")[0], asked.metadata.group_id)
        == (client, "train", str(server_round))
    ]
    return unpack(asked.content.array_records[MODEL])


@pytest.mark.parametrize("turned", [False, True])
def test_who_comes_late_joins_its_kind_or_begins_alone_with_the_nearest_model(trial, turned):
    played = trial.play(
        tamper=unnumbered,
        nodes=4,
        away=["3"],
        after=lambda played, _: played.grid.away.clear(),
        num_clients=3,
        num_server_rounds=4,
        data={"3": own_data(trial.home, turned=True)} if turned else {},
    )
    first, second, third, last = (event["groups"] for event in played.events)  # who is back is met after round 2
    assert first == second == {"0": ["0", "1", "2"]}
    assert third == last == ({"0": ["0", "1", "2"], "1": ["3"]} if turned else {"0": ["0", "1", "2", "3"]})
    assert played.events[2]["alone"] == (["3"] if turned else [])
    assert "kinds" not in played.events[3]  # told when groups change
    mine, nearest = sent_model(played, "3", 3), sent_model(played, "0", 3)
    assert all(np.array_equal(mine[part], nearest[part]) for part in mine)
    apart = sent_model(played, "3", 4)["extractor"], sent_model(played, "0", 4)["extractor"]
    assert np.array_equal(*apart) == (not turned)


def test_who_was_away_comes_back_to_its_group_and_is_not_asked_again(trial):
    def leave_and_come_back(played: Played, number: int) -> None:
        played.grid.away = {"3"} if number == 1 else set()

    data = {"3": own_data(trial.home, turned=True), "2": own_data(trial.home, turned=True, samples=300)}
    played = trial.play(after=leave_and_come_back, data=data, num_server_rounds=4)
    assert ["3" in event["train"] for event in played.events] == [True, True, False, True]
    assert all(event["groups"] == {"0": ["0", "1"], "1": ["2", "3"]} for event in played.events)
    assert told(played, "3") == ["1"]
    mine, mate = sent_model(played, "3", 4), sent_model(played, "2", 4)
    assert all(np.array_equal(mine[part], mate[part]) for part in mine)


def test_who_told_nothing_is_asked_again_and_finds_its_group(trial):
    def swallow(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message | None:
        first = asked.metadata.group_id == "1" and asked.metadata.message_type == TOLD
        return None if name == "3" and first else answer

    played = trial.play(tamper=swallow, round_timeout=0.05, num_server_rounds=5)
    assert played.events[0]["groups"] == {"0": ["0", "1", "2"]}
    assert played.events[0]["unknown"] == ["3"]
    assert played.events[-1]["groups"] == {"0": ["0", "1", "2", "3"]}
    assert len(told(played, "3")) == 2


def test_groups_are_formed_when_the_first_can_be_compared(trial):
    """Nobody tells anything in round 1: all train one model. Then there are two kinds."""

    def swallow(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message | None:
        return None if asked.metadata.group_id == "1" and asked.metadata.message_type == TOLD else answer

    data = {"2": own_data(trial.home, turned=True), "3": own_data(trial.home, turned=True, samples=300)}
    played = trial.play(tamper=swallow, data=data, round_timeout=0.05, num_server_rounds=5)
    assert played.events[0]["groups"] == {}
    assert set(played.events[0]["evaluate"]) == set("0123")
    assert played.events[-1]["groups"] == {"0": ["0", "1"], "1": ["2", "3"]}


@pytest.mark.parametrize("threshold", [3.0, 0.0])
def test_who_has_too_few_samples_is_said_to_train_with_the_largest_group(trial, threshold):
    few = own_data(trial.home, samples=4)
    played = trial.play(data={"3": few}, num_server_rounds=2, **{"coterie.threshold": threshold})
    played.must_have_tested(list("0123"))
    groups = played.method.findings()[0]
    if threshold:
        assert groups.values == [["0", "1", "2"]] and groups.facts["unknown"] == ["3"]
        assert groups.facts["in-words"].endswith("with the largest group, because their samples tell too little: 3")
        assert played.events[0]["unknown"] == ["3"]
    else:  # everybody alone
        assert sorted(groups.values) == [["0"], ["1"], ["2"], ["3"]] and groups.facts["unknown"] == []
        assert sorted(groups.facts["clients"]) == ["0", "1", "2"]


def test_private_training_inside_groups(trial):
    """DP-SGD with little noise: kinds are found, and each group's model is the mean of what its own members sent."""
    data = {str(i): own_data(trial.home, turned=i > 1, samples=400 - i) for i in range(4)}
    private = {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 0.005, "coterie.mean": "mean"}
    network = trial.home / "plain.py"  # BatchNorm mixes the samples of a batch
    network.write_text(
        "from torch import nn\n"
        "def build(input_shape, num_outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, num_outputs)\n"
    )
    played = trial.play(data=data, num_server_rounds=2, model=str(network), **private)
    assert played.events[0]["groups"] == {"0": ["0", "1"], "1": ["2", "3"]}
    uploaded = {
        name: unpack(answer.content.array_records[MODEL])["extractor"]
        for (name, asked), (_, answer) in zip(played.grid.sent, played.grid.answered, strict=True)
        if asked.metadata.message_type == "train" and asked.metadata.group_id == "1"
    }
    samples = {name: one["num-samples"] for name, one in played.events[0]["train"].items()}
    for one, other in (("0", "1"), ("2", "3")):
        mean = (samples[one] * uploaded[one] + samples[other] * uploaded[other]) / (samples[one] + samples[other])
        np.testing.assert_allclose(sent_model(played, one, 2)["extractor"], mean, atol=1e-6)
    assert all(event["epsilon"] > 0 for event in played.events[-1]["train"].values())
