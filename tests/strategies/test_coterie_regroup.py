"""Groups are checked while they train: who was put into the wrong one leaves it, nobody else does, and nobody can abuse it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn

from coterie.strategies.coterie.judging import LOSSES, SQUARES, label_losses
from coterie.tasks.datasets import load_dataset
from coterie.tasks.models import Network
from coterie.tasks.training import Samples
from coterie.trial import TamperedGrid, Trial
from coterie.wire.arrays import unpack
from coterie.wire.messages import METRICS, MODEL

LEARN = {"num_clients": 6, "local_epochs": 3, "learning_rate": 0.1, "batch_size": 16, "test_fraction": 0.8}
LEARN |= {"num_server_rounds": 7, "evaluate_every": 7}
TOGETHER = {"coterie.threshold": 1e9}  # everybody in one group, whatever they tell


def turned_digits(place: Path) -> str:
    """120 of them, standing on their heads."""
    digits = load_dataset("digits", "")
    np.savez(place / "turned.npz", x=np.rot90(np.asarray(digits.x)[:120], 2, axes=(2, 3)), y=np.asarray(digits.y)[:120])
    return str(place / "turned.npz")


def test_who_is_of_another_kind_leaves_and_begins_with_the_model_it_leaves(tmp_path):
    trial = Trial("coterie", {}, tmp_path)
    turned = {"5": turned_digits(tmp_path)}
    played = trial.play(data=turned, **LEARN, **TOGETHER)
    (moved,) = [event for event in played.events if "moved" in event]
    assert moved["moved"] == {"5": ["5"]} and moved["round"] == 6  # twice in a row, every third round
    assert moved["groups"] == {"0": list("01234"), "1": ["5"]} and moved["alone"] == ["5"]
    begins = {
        name: unpack(asked.content.array_records[MODEL])["extractor"]
        for name, asked in played.grid.sent
        if asked.metadata.message_type == "train" and asked.metadata.group_id == "7"
    }
    np.testing.assert_array_equal(begins["5"], begins["0"])
    assert played.method.members["5"] != played.method.members["0"]
    apart = played.method.models[played.method.members["5"]]["extractor"], played.method.models["0"]["extractor"]
    assert not np.array_equal(*apart)


def test_without_anybody_to_move_nothing_changes(tmp_path):
    trial = Trial("coterie", {}, tmp_path)
    checked, unchecked = (
        trial.play(num_server_rounds=3, evaluate_every=3, num_clients=6, **{"coterie.regroup": on})
        for on in (True, False)
    )
    assert not any("moved" in event for event in checked.events)
    judged = [
        sum("judged" in asked.metadata.message_type for _, asked in run.grid.sent) for run in (checked, unchecked)
    ]
    assert judged == [6, 0]  # six clients, in round 3
    one, other = checked.outcome(), unchecked.outcome()
    assert one["arrays"] == other["arrays"] and one["personal models"] == other["personal models"]
    assert one["result.json"]["models"] == other["result.json"]["models"]


def test_a_server_that_was_killed_between_two_checks_remembers_the_first(tmp_path):
    trial = Trial("coterie", {**TOGETHER}, tmp_path)
    keys = {"data": {"5": turned_digits(tmp_path)}, **LEARN}
    whole = trial.play(after=lambda played, number: played.keep(number), **keys)
    (moved,) = [event["round"] for event in whole.events if "moved" in event]
    assert whole.snapshots[moved - 2].state["values"]["doubted"]["5"] == 1
    again = trial.play(start=whole.snapshots[moved - 2], **keys)
    assert again.outcome() == whole.outcome()


def test_losses_by_label_by_hand_and_rare_labels_are_not_told():
    head = nn.Linear(1, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    network = Network(nn.Identity(), head)
    samples = Samples(torch.zeros(5, 1), torch.tensor([0, 0, 0, 1, 1]))
    told = label_losses(network, samples, 2)
    np.testing.assert_allclose(told[LOSSES], [3 * np.log(2), 0], rtol=1e-6)
    np.testing.assert_allclose(told[SQUARES], [3 * np.log(2) ** 2, 0], rtol=1e-6)


def test_bad_losses_are_refused_by_name(tmp_path):
    def forge(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        if name == "2" and asked.metadata.message_type == "train.judged":
            answer.content.metric_records[METRICS][LOSSES] = [-1.0] * 10
        if name == "3" and asked.metadata.message_type == "train.judged":
            answer.content.metric_records[METRICS][LOSSES] = [1.0] * 9
        return answer

    played = Trial("coterie", {}, tmp_path).play(tamper=forge)
    assert "must not be negative" in played.events[2]["left-out"]["2"]
    assert "expected 10 numbers" in played.events[2]["left-out"]["3"]


@pytest.mark.parametrize("mode", ["off", "weights", pytest.param("dp-sgd", marks=pytest.mark.slow)])
def test_with_privacy_no_losses_are_told(federate, mode):
    settings = {"num-server-rounds": 3, "model": "mlp", "privacy.mode": mode}
    settings |= {"privacy.noise-multiplier": 2.0, "evaluate-every": 3} if mode != "off" else {}
    run = federate(strategy="coterie", **settings)
    answers = run.exchanges(3, "train.judged")
    assert len(answers) == 4
    for _, answer in answers.values():
        told = answer.content.metric_records[METRICS]
        assert (LOSSES in told) == (SQUARES in told) == (mode == "off")
