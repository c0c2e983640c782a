"""Who does harm: scores by hand, and models that really learned from right and wrong labels."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix

from strategies.evidence import Evidence, label_evidence
from tasks.answers import Answers, answers
from tasks.models import build_network
from tasks.training import Samples, Sgd, train


def test_scores_are_deviations_below_the_median_with_the_benefit_of_doubt():
    evidence = Evidence()
    assert evidence.judgement(1.0) == {}
    for _ in range(4):  # median 3, median distance 1
        evidence.learn(["10", "a", "2", "b", "c"], np.array([3.0, 2.0, -1e9, 4.0, 5.0]), None)
    found = evidence.judgement(1.0)
    assert found["suspects"] == ["2"] and found["score-below"] == -1.0
    assert found["scores"]["a"] == pytest.approx(-1 / 1.4826 + 2 / 2) and found["scores"]["2"] == -5 + 1
    evidence.learn([], None, None, ["10"])
    assert evidence.judgement(1.0)["scores"]["10"] == pytest.approx((4 * 0 - 5) / 5 + 2 / 5**0.5)
    assert evidence.judgement(0.0)["suspects"] == ["2", "10"]
    equal = Evidence()
    equal.learn(["0", "1", "2"], np.array([0.1 + 0.2, 0.3, 0.3]), None)
    assert set(equal.judgement(0.0)["scores"].values()) == {2.0}


def test_worth_and_labels_are_put_together_and_survive_a_restart():
    evidence = Evidence()
    for labels in ([4.0, -9.0], [-1.0, -3.0]):  # 4 does not count, -9 counts as -5
        evidence.learn(["0", "1"], np.array([0.0, 0.0]), np.array(labels))
    again = Evidence()
    again.load_state_dict(json.loads(json.dumps(evidence.state_dict())))
    found = again.judgement(1.0)
    assert found == evidence.judgement(1.0)
    doubt = 2 / 2**0.5
    assert found["scores"] == {"0": pytest.approx(-0.5 / 2**0.5 + doubt), "1": pytest.approx(-4 / 2**0.5 + doubt)}
    assert found["suspects"] == ["1"]
    alone = Evidence()
    alone.learn(["0", "1"], None, np.array([-4.0, 0.0]))  # one client in the round has no Shapley value
    assert alone.judgement(1.0)["scores"]["0"] == -4 + 2


def test_label_evidence_by_hand():
    before = Answers(np.full((3, 3), 1 / 3), np.array([20, 40, 10]))
    # Label 0 is given more often by .2 on average, label 1 by .1; label 0 most often to class 1, label 1 to its own.
    after = Answers(np.array([[0.5, 0.3, 0.2], [0.9, 0.7, 0.0], [0.2, 0.3, 0.1]]), np.array([20, 40, 10]))
    v0 = 0.25 / 20 + 1 / 1600 + 0.09 / 40 + 1 / 6400
    v1 = 0.21 / 40 + 1 / 6400 + 0.21 / 20 + 1 / 1600
    expected = (2 / 3 * -0.4 + 1 / 3 * 0.4) / np.sqrt(4 / 9 * v0 + 1 / 9 * v1)
    assert label_evidence(before, after) == pytest.approx(expected)
    one = Answers(np.array([[1.0]]), np.array([5]))
    assert label_evidence(one, one) == 0.0  # nothing to compare with


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_label_evidence_has_the_sign_of_the_diagonal(labels, seed):
    """No label gained, so all count alike: above 0 if every label goes most often to its own class, below if to no own."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 50, labels)
    right = rng.uniform(0, 0.4, (labels, labels)) + 0.5 * np.eye(labels)
    assert label_evidence(Answers(right, counts), Answers(right, counts)) > 0
    wrong = np.roll(right, 1, axis=0)
    assert label_evidence(Answers(wrong, counts), Answers(wrong, counts)) < 0


@pytest.mark.parametrize("labels", [(0, 1), (3, 8), tuple(range(10))])
def test_wrong_labels_are_seen_however_few_a_client_has(labels):
    """Networks trained on digits of these classes, with right and with wrong labels, judged on other digits."""
    digits = load_digits()
    x = torch.from_numpy((digits.images[:, None] / 8 - 1).astype(np.float32))
    y = torch.from_numpy(digits.target.astype(np.int64))
    server, everybody = Samples(x[:600], y[:600]), Samples(x[600:1200], y[600:1200])
    own = torch.isin(y[1200:], torch.tensor(labels))
    network = build_network("mlp", (1, 8, 8), 10, seed=1)
    train(network, everybody, Sgd(0.1, 32), epochs=5, rng=np.random.default_rng(1))
    start, before = network.dump(), answers(network, server)
    found = []
    for shift in (0, 1):
        network.load(start)
        samples = Samples(x[1200:][own], (y[1200:][own] + shift) % 10)
        train(network, samples, Sgd(0.1, 32), epochs=10, rng=np.random.default_rng(2))
        found.append(label_evidence(before, answers(network, server)))
    assert found[0] > 4 and found[1] < -1


def test_answers_are_the_confusion_matrix():
    network = build_network("linear", (4,), 3, seed=1)
    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,)) * 2  # classes 0 and 2
    found = answers(network, Samples(x, y))
    given = network(x).argmax(dim=1).numpy()
    expected = confusion_matrix(y.numpy(), given, labels=[0, 1, 2])[[0, 2]][:, [0, 2]]
    assert found.counts.tolist() == np.bincount(y)[[0, 2]].tolist()
    assert found.rates * found.counts[:, None] == pytest.approx(expected)


@pytest.mark.parametrize("bad", [0, 6])
def test_honest_clients_are_seldom_suspects_and_bad_ones_always(bad):
    """Rounds of 10 of 20 clients, whose values differ from client to client and from round to round."""
    alarms = missed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        skill = rng.normal(size=20) - 12 * (np.arange(20) < bad)
        evidence = Evidence()
        for stake in 0.5 ** np.arange(15):
            chosen = rng.permutation(20)[:10]
            evidence.learn([str(i) for i in chosen], stake * (skill[chosen] + rng.standard_t(5, size=10)), None)
        suspects = {int(name) for name in evidence.judgement(1.0)["suspects"]}
        alarms += len(suspects - set(range(bad)))
        missed += len(set(range(bad)) - suspects)
    assert alarms <= 0.02 * 100 * (20 - bad) and missed <= 0.02 * 100 * bad
