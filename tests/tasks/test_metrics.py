"""Metrics against scikit-learn's, intervals and the word for a gain against what is known of them."""

import warnings

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import stdtrit
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from coterie.tasks.metrics import Answers, gain_over, intervals, pseudo_values, verdict

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # scikit-learn is too slow to shrink with


@st.composite
def judged(draw, least_labels=2, most_labels=4):
    """Outputs with many ties, labels of which some may be missing, and whole-number weights."""
    labels, number = draw(st.integers(least_labels, most_labels)), draw(st.integers(2, 25))
    outputs = draw(arrays(np.float32, (number, labels), elements=st.integers(-3, 3)))
    truth = draw(arrays(np.int64, number, elements=st.integers(0, labels - 1)))
    weights = draw(arrays(np.float64, number, elements=st.integers(0, 3)))
    return outputs, truth, weights


def defined(value: float) -> float | None:
    return None if np.isnan(value) else pytest.approx(value, abs=1e-9)


@settings(max_examples=30, deadline=None, phases=QUICK)
@given(judged(most_labels=2))
def test_of_two_labels_as_scikit_learn(case):
    outputs, truth, weights = case
    mine = Answers.of(outputs, truth)
    p, score = (
        1 / (1 + np.exp(np.float64(outputs[:, 0] - outputs[:, 1]))),
        mine.said[:, 1],
    )  # which has ties as they are
    said = (outputs[:, 1] > outputs[:, 0]).astype(int)
    told = {"y_true": truth, "sample_weight": weights}

    def value(name: str) -> float | None:
        return defined(mine.metric(name, weights[None])[0])

    positive, total = weights[truth == 1].sum(), weights.sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if 0 < positive < total:
            assert value("auroc") == sk.roc_auc_score(y_score=score, **told)
        else:
            assert value("auroc") is None
        if positive:
            assert value("auprc") == sk.average_precision_score(y_score=score, **told)
            assert value("sensitivity") == sk.recall_score(y_pred=said, **told)
            assert value("f1") == sk.f1_score(y_pred=said, **told)
        else:
            assert value("auprc") is None and value("sensitivity") is None
        if positive < total:
            assert value("specificity") == sk.recall_score(y_pred=said, pos_label=0, **told)
        if total:
            assert value("accuracy") == sk.accuracy_score(y_pred=said, **told)
            assert value("balanced-accuracy") == sk.balanced_accuracy_score(y_pred=said, **told)
            assert value("brier") == sk.brier_score_loss(y_proba=p, labels=[0, 1], **told)
            assert value("loss") == sk.log_loss(y_pred=p, labels=[0, 1], **told)
    assert mine.confusion().tolist() == sk.confusion_matrix(truth, said, labels=[0, 1]).tolist()


@settings(max_examples=30, deadline=None, phases=QUICK)
@given(judged(least_labels=3))
def test_of_more_labels_as_scikit_learn(case):
    outputs, truth, _ = case
    labels = outputs.shape[1]
    p = np.exp(outputs.astype(float)) / np.exp(outputs.astype(float)).sum(axis=1, keepdims=True)
    said, there, mine = outputs.argmax(axis=1), np.unique(truth), Answers.of(outputs, truth)
    if len(there) > 1:
        each = [(truth == k, mine.said[:, k]) for k in there]
        assert mine.value("auroc") == pytest.approx(np.mean([sk.roc_auc_score(*one) for one in each]))
        assert mine.value("auprc") == pytest.approx(np.mean([sk.average_precision_score(*one) for one in each]))
    else:
        assert np.isnan(mine.value("auroc"))
    f1 = sk.f1_score(truth, said, labels=there, average="macro", zero_division=0)
    assert mine.value("f1") == pytest.approx(f1)
    assert mine.value("brier") == pytest.approx(sk.brier_score_loss(truth, p, labels=range(labels)))
    assert mine.confusion().tolist() == sk.confusion_matrix(truth, said, labels=range(labels)).tolist()
    assert "sensitivity" not in mine.names
    hits, sure = said == truth, p.max(axis=1)
    shares, means = calibration_curve(hits, sure, n_bins=10)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, 11)[1:-1], sure), minlength=10)
    expected = np.average(abs(shares - means), weights=counts[counts > 0])
    assert mine.value("calibration-error") == pytest.approx(expected, abs=1e-9)


@settings(max_examples=25, deadline=None, phases=QUICK)
@given(arrays(np.float64, (8, 2), elements=st.integers(-5, 5)), arrays(np.float64, 8, elements=st.integers(0, 3)))
def test_of_values_as_scikit_learn(numbers, weights):
    said, truth = numbers.T
    mine = Answers.of(said[:, None], truth)
    assert mine.names == ("r2", "mae", "loss")
    if not weights.any():
        return
    told = {"y_true": truth, "y_pred": said, "sample_weight": weights}
    assert mine.metric("mae", weights[None])[0] == pytest.approx(sk.mean_absolute_error(**told))
    assert mine.metric("loss", weights[None])[0] == pytest.approx(sk.mean_squared_error(**told))
    varied = len(np.unique(truth[weights > 0])) > 1
    assert defined(mine.metric("r2", weights[None])[0]) == (sk.r2_score(**told) if varied else None)


def test_the_threshold_moves_what_is_said_of_two_labels():
    truth, p = np.array([0, 0, 1, 1]), np.array([0.1, 0.3, 0.35, 0.9])
    mine = Answers.of(np.log(np.c_[1 - p, p]), truth, threshold=0.2)
    assert (mine.value("sensitivity"), mine.value("specificity")) == (1.0, 0.5)
    assert mine.confusion().tolist() == [[1, 1], [0, 2]]


def test_an_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        truth = np.arange(80) % 2
        outputs = np.c_[np.zeros(80), rng.normal(size=80) + truth]
        told = intervals(Answers.of(outputs, truth), ("auroc",), rng)["auroc"]
        inside += told[1] <= 0.7602 <= told[2]  # P(N(1, 1) > N(0, 1)) = Phi(1 / sqrt 2)
    assert 178 <= inside <= 199


def test_what_is_not_defined_is_left_out_and_what_hardly_is_has_no_interval():
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(6, 2))
    one_label = intervals(Answers.of(outputs, np.zeros(6, int)), ("accuracy", "auroc", "sensitivity"), rng)
    assert set(one_label) == {"accuracy"}
    lone = intervals(Answers.of(outputs[:1], np.ones(1, int)), ("accuracy",), rng)["accuracy"]
    assert lone[1] == lone[2] == lone[0]
    told = intervals(Answers.of(np.c_[outputs, outputs[:, 0]], np.array([0, 0, 0, 0, 0, 1])), ("auroc",), rng)["auroc"]
    assert len(told) == 3  # the one sample is in about 65 % of the resamples


@settings(max_examples=25, deadline=None, phases=QUICK)
@given(judged())
def test_the_mean_of_pseudo_values_is_the_metric_and_hits_are_those_of_the_accuracy(case):
    outputs, truth, _ = case
    mine = Answers.of(outputs, truth)
    assert pseudo_values(mine, "accuracy") == pytest.approx((outputs.argmax(axis=1) == truth).astype(float))
    for name in ("auroc", "balanced-accuracy", "brier", "f1"):
        found = pseudo_values(mine, name)
        if np.isfinite(found).all() and len(found) > 1:
            assert found.mean() == pytest.approx(mine.value(name))


def answers_with(hits: list[int]) -> Answers:
    """Two labels; every sample is of the second, and said to be so or not."""
    return Answers.of(np.array([[0.0, 1.0] if hit else [1.0, 0.0] for hit in hits]), np.ones(len(hits), int))


def test_a_gain_by_hand():
    """16 samples; 7 only the own model has right, 1 only the other: the gain is 6/16. With Agresti and Min's two samples the
    mean is 6/18, the mean square (8 + 1)/18, so the variance 1/2 - 1/9 = 7/18."""
    own, other = answers_with([1] * 7 + [0] + [1] * 8), answers_with([0] * 7 + [1] + [1] * 8)
    found = gain_over(own, other, "accuracy")
    away = stdtrit(15, 0.975) * np.sqrt(7 / 18 / 18)
    assert found is not None and found.gain == pytest.approx(6 / 16)
    assert (found.low, found.high) == (pytest.approx(6 / 18 - away), pytest.approx(6 / 18 + away))
    assert verdict(found.low, found.high) == "gains"
    back = gain_over(other, own, "accuracy")
    assert back is not None and (back.low, back.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    assert verdict(back.low, back.high) == "loses"


@pytest.mark.parametrize(
    ("better", "worse", "same", "word"),
    [
        (3, 0, 0, "cannot tell"),
        (4, 0, 96, "cannot tell"),
        (0, 0, 50, "cannot tell"),
        (0, 12, 60, "loses"),
        (9, 2, 40, "gains"),
    ],
)
def test_a_word_needs_more_than_a_few_samples(better, worse, same, word):
    own = answers_with([1] * better + [0] * worse + [1] * same)
    found = gain_over(own, answers_with([0] * better + [1] * worse + [1] * same), "accuracy")
    assert found is not None and verdict(found.low, found.high) == word


def test_lower_losses_are_gains_and_undefined_metrics_say_nothing():
    truth = np.linspace(0, 1, 30)
    near, far = Answers.of(truth[:, None] + 0.1, truth), Answers.of(truth[:, None] + 0.3, truth)
    for name in ("loss", "mae", "r2"):
        found = gain_over(near, far, name)
        assert found is not None and found.gain > 0 and verdict(found.low, found.high) == "gains"
    assert gain_over(answers_with([1, 0]), answers_with([0, 0]), "auroc") is None
    assert verdict(None, None) == "cannot tell"


@pytest.mark.parametrize("name", ["accuracy", "auroc", "f1"])
def test_equal_models_seldom_get_a_word(name):
    """Two models that are equally good by chance: at most about one in twenty is said to gain or lose."""
    rng, words = np.random.default_rng(7), 0
    for _ in range(200):
        truth = (rng.random(40) < 0.35).astype(int)
        score = rng.normal(size=40) + 1.2 * truth
        own, other = (Answers.of(np.c_[np.zeros(40), score + 0.7 * rng.normal(size=40) - 0.6], truth) for _ in range(2))
        found = gain_over(own, other, name)
        words += found is not None and verdict(found.low, found.high) != "cannot tell"
    assert words <= 17  # of 200; 10 are expected at the most, 17 are two standard deviations more
