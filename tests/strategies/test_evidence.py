"""Who does harm: scores by hand, and models that really learned from right and wrong labels."""

import json

import numpy as np
import pytest
import torch
from scipy.special import logit, softmax
from scipy.stats import sem
from sklearn.datasets import load_digits

from strategies.evidence import Evidence, label_evidence
from tasks.beliefs import Beliefs, beliefs
from tasks.models import build_network
from tasks.training import Samples, Sgd, train


def test_scores_are_deviations_below_the_median_with_the_benefit_of_doubt():
    evidence = Evidence()
    assert evidence.judgement(1.0) == {}
    for _ in range(4):  # median 3, median distance 1
        evidence.learn(["10", "a", "2", "b", "c"], np.array([3.0, 2.0, -1e9, 4.0, 5.0]), None)
    found = evidence.judgement(1.0)
    assert found["suspects"] == ["2"] and found["by"] == {"2": "worth"} and found["score-below"] == -1.0
    assert found["scores"]["a"] == pytest.approx(-1 / 1.4826 + 2 / 2) and found["scores"]["2"] == -5 + 1
    evidence.learn([], None, None, ["10"])
    assert evidence.judgement(1.0)["scores"]["10"] == pytest.approx((4 * 0 - 5) / 5 + 2 / 5**0.5)
    assert evidence.judgement(0.0)["suspects"] == ["2", "10"]
    equal = Evidence()
    equal.learn(["0", "1", "2"], np.array([0.1 + 0.2, 0.3, 0.3]), None)
    assert set(equal.judgement(0.0)["scores"].values()) == {2.0}


def test_the_lower_score_counts_and_evidence_survives_a_restart():
    evidence = Evidence()
    for labels in ([4.0, -9.0], [3.0, -3.0]):  # -9 counts as -5
        evidence.learn(["0", "1"], np.array([0.0, 0.0]), np.array(labels))
    again = Evidence()
    again.load_state_dict(json.loads(json.dumps(evidence.state_dict())))
    found = again.judgement(1.0)
    assert found == evidence.judgement(1.0)
    assert found["scores"] == {"0": pytest.approx(2 / 2**0.5), "1": pytest.approx(-4 + 2 / 2**0.5)}
    assert found["suspects"] == ["1"] and found["by"] == {"1": "labels"}


def beliefs_of(mean, calls, error=0.1):
    mean = np.array(mean, float)
    return Beliefs(mean, np.full(mean.shape, error), np.array(calls, float))


def test_label_evidence_by_hand():
    before = beliefs_of(np.zeros((3, 3)), [0.3, 0.3, 0.4])
    # It answers label 0 more often by .3 and label 1 by .1. Of label 0 it is surest for class 1 (-1 against -3), of
    # label 1 for its own (-1; -2 for class 0). Label 2 does not count.
    after = beliefs_of([[-3, -2, 0], [-1, -1, 0], [-9, -9, -50]], [0.6, 0.4, 0.0])
    expected = (0.25 + 0.75 * -2 + 0.25 * 1) / np.sqrt((0.75**2 + 0.25**2) * (0.1**2 + 0.1**2))
    assert label_evidence(before, after) == pytest.approx(expected)
    assert label_evidence(after, after) == pytest.approx(
        (0.25 + (-2 + 1 - 50) / 3) / np.sqrt(3 / 9 * 0.02)
    )  # no label gained: all count alike
    assert label_evidence(beliefs_of([[0.0]], [1.0]), beliefs_of([[0.0]], [1.0])) == 0.0  # nothing to compare with


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
    start, before = network.dump(), beliefs(network, server)
    found = []
    for shift in (0, 1):
        network.load(start)
        samples = Samples(x[1200:][own], (y[1200:][own] + shift) % 10)
        train(network, samples, Sgd(0.1, 32), epochs=10, rng=np.random.default_rng(2))
        found.append(label_evidence(before, beliefs(network, server)))
    assert found[0] > 4 and found[1] < -1


def test_beliefs_are_class_means_of_log_odds_and_finite_for_a_broken_model():
    network = build_network("linear", (4,), 3, seed=1)
    x, y = torch.randn(9, 4), torch.tensor([0, 0, 0, 2, 2, 2, 2, 1, 0])  # one sample of class 1: left out
    found = beliefs(network, Samples(x, y))
    logs = logit(softmax(network(x).detach().numpy().astype(float), axis=1))
    zero, two = logs[[0, 1, 2, 8]], logs[3:7]
    assert found.mean == pytest.approx(np.array([zero.mean(0)[[0, 2]], two.mean(0)[[0, 2]]]), rel=1e-5)
    assert found.error[1] == pytest.approx(sem(two, axis=0)[[0, 2]], rel=1e-5)
    assert found.calls[0] == pytest.approx(((zero.argmax(1) == 0).mean() + (two.argmax(1) == 0).mean()) / 2)
    network.load({part: np.full_like(value, 1e30) for part, value in network.dump().items()})
    broken = beliefs(network, Samples(x * 1e30, y))
    assert np.isfinite(broken.mean).all() and np.isfinite(broken.error).all()


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
