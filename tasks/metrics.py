"""How good a model is on some samples, by the metrics of scikit-learn, for many weightings of the samples at once.

A weighting says how often each sample counts. All ones are the metric itself; counts of a resample give a bootstrap interval;
ones but for a zero are the metric without one sample, by which the gain of one model over another is judged:

    pseudo-value of sample i:  v_i = m + (n - 1) (mean of all m_(j) - m_(i)),   m_(i) the metric without sample i

Their mean is the metric m. For the accuracy they are 1 for a hit and 0 for a miss, for other metrics what a sample says of it
(the jackknife; Efron and Stein 1981). What is not defined, such as AUROC with one label, is NaN.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

ALWAYS = ("accuracy", "balanced-accuracy", "auroc", "auprc", "f1")
OF_TWO = ("sensitivity", "specificity")  # with two labels, of which the second is the positive one
CALIBRATION = ("brier", "calibration-error", "loss")
OF_VALUES = ("r2", "mae", "loss")
LOWER_IS_BETTER = ("loss", "brier", "calibration-error", "mae")
UNBOUNDED = ("loss", "mae", "r2")
RESAMPLES = 1000
FEWEST_RESAMPLES = 200  # of samples and labels by the thousand
WORK = 200_000  # weights of samples and labels in all resamples, where that leaves enough of them
AT_ONCE = 2_000_000  # weights
CONFIDENCE = 0.95
FEW = 5  # samples of a label below which figures that count labels alike say little
BINS = 10


@dataclass(frozen=True)
class Answers:
    """What a model says of samples: logarithms of probabilities, (n, labels), or values, (n,); and the truth, (n,)."""

    said: np.ndarray
    truth: np.ndarray
    threshold: float = 0.5  # of two labels, the second is said if its probability is above it

    @classmethod
    def of(cls, outputs: np.ndarray, truth: np.ndarray, threshold: float = 0.5) -> "Answers":
        """From a network's outputs, (n, outputs)."""
        outputs = np.asarray(outputs, np.float64)
        if truth.dtype.kind == "f":
            return cls(outputs[:, 0], truth.astype(np.float64))
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        return cls(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), truth, threshold)

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that suit it."""
        if self.said.ndim == 1:
            return OF_VALUES
        return (*ALWAYS, *(OF_TWO if self.said.shape[1] == 2 else ()), *CALIBRATION)

    @property
    def probabilities(self) -> np.ndarray:
        return np.asarray(np.exp(self.said))

    @property
    def hits(self) -> np.ndarray:
        return np.asarray(self.said.argmax(axis=1) == self.truth, np.float64)

    @property
    def labels(self) -> np.ndarray:
        return np.unique(self.truth)

    def counts(self) -> np.ndarray:
        """Samples of each label."""
        return np.bincount(self.truth, minlength=self.said.shape[1])

    def confusion(self) -> np.ndarray:
        """Samples by their label and what is said of them, (labels, labels)."""
        labels = self.said.shape[1]
        said = self._positive() if labels == 2 else self.said.argmax(axis=1)
        return np.bincount(self.truth * labels + said, minlength=labels**2).reshape(labels, labels)

    def _positive(self) -> np.ndarray:
        return np.asarray(self.probabilities[:, 1] > self.threshold, np.int64)

    def metric(self, name: str, weights: np.ndarray | None = None) -> np.ndarray:
        """Of every weighting, (weightings, n)."""
        found = np.ones((1, len(self))) if weights is None else weights
        with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN, as it should be
            return FUNCTIONS[name](self, found)

    def value(self, name: str) -> float:
        return float(self.metric(name)[0])


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights @ values / weights.sum(axis=1))


def _accuracy(a: Answers, w: np.ndarray) -> np.ndarray:
    return _mean(a.hits, w)


def _balanced_accuracy(a: Answers, w: np.ndarray) -> np.ndarray:
    member = (a.truth[:, None] == a.labels).astype(np.float64)  # (n, labels)
    return np.asarray(np.nanmean(w @ (member * a.hits[:, None]) / (w @ member), axis=1))


def _one_against_rest(area: Callable[..., np.ndarray]) -> Callable[[Answers, np.ndarray], np.ndarray]:
    """The mean over the labels that are there, each against all others; of two labels that of the second."""

    def metric(a: Answers, w: np.ndarray) -> np.ndarray:
        labels = [1] if a.said.shape[1] == 2 else a.labels
        return np.asarray(np.nanmean([area(*_found(a.said[:, k], a.truth == k, w)) for k in labels], axis=0))

    return metric


def _found(score: np.ndarray, positive: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the positive and of the other samples with at least each score, highest first, (weightings, scores)."""
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(order) - 1)
    sorted_weights = w[:, order]
    right = np.cumsum(sorted_weights * positive[order], axis=1)[:, ends]
    return right, np.cumsum(sorted_weights, axis=1)[:, ends] - right


def _roc_area(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    steps = np.diff(wrong, axis=1, prepend=0.0)
    heights = right - np.diff(right, axis=1, prepend=0.0) / 2
    return np.asarray((steps * heights).sum(axis=1) / (right[:, -1] * wrong[:, -1]))


def _average_precision(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    found = np.diff(right, axis=1, prepend=0.0)
    precision = np.divide(right, right + wrong, out=np.zeros_like(right), where=right + wrong > 0)
    return np.asarray((found * precision).sum(axis=1) / right[:, -1])


def _f1(a: Answers, w: np.ndarray) -> np.ndarray:
    if a.said.shape[1] == 2:
        labels, said = np.array([1]), a._positive()
    else:
        labels, said = a.labels, a.said.argmax(axis=1)
    is_label, is_said = a.truth[:, None] == labels, said[:, None] == labels  # (n, labels)
    both = w @ (is_label & is_said)
    return np.asarray(np.nanmean(2 * both / (w @ is_label + w @ is_said), axis=1))


def _recall(label: int) -> Callable[[Answers, np.ndarray], np.ndarray]:
    def metric(a: Answers, w: np.ndarray) -> np.ndarray:
        member = a.truth == label
        return np.asarray(w @ (member & (a._positive() == label)) / (w @ member))

    return metric


def _brier(a: Answers, w: np.ndarray) -> np.ndarray:
    """Squared distance of the probabilities from the truth; of two labels, of one of them."""
    away = a.probabilities - (a.truth[:, None] == np.arange(a.said.shape[1]))
    return _mean((away**2).sum(axis=1) / (2 if a.said.shape[1] == 2 else 1), w)


def _calibration_error(a: Answers, w: np.ndarray) -> np.ndarray:
    """How far the probability of the label that is said is from the share of hits: in ten bins, by their samples."""
    sure = a.probabilities.max(axis=1)
    member = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure)[:, None] == np.arange(BINS)
    return np.asarray(abs(w @ (member * (a.hits - sure)[:, None])).sum(axis=1) / w.sum(axis=1))


def _loss(a: Answers, w: np.ndarray) -> np.ndarray:
    if a.said.ndim == 1:
        return _mean((a.said - a.truth) ** 2, w)
    return _mean(-a.said[np.arange(len(a)), a.truth], w)


def _r2(a: Answers, w: np.ndarray) -> np.ndarray:
    spread = _mean(a.truth**2, w) - _mean(a.truth, w) ** 2
    if len(a.labels) == 1:
        spread = np.zeros(len(w))
    return np.asarray(np.where(spread > 0, 1 - _loss(a, w) / spread, np.nan))


def _mae(a: Answers, w: np.ndarray) -> np.ndarray:
    return _mean(abs(a.said - a.truth), w)


FUNCTIONS: dict[str, Callable[[Answers, np.ndarray], np.ndarray]] = {
    "accuracy": _accuracy,
    "balanced-accuracy": _balanced_accuracy,
    "auroc": _one_against_rest(_roc_area),
    "auprc": _one_against_rest(_average_precision),
    "f1": _f1,
    "sensitivity": _recall(1),
    "specificity": _recall(0),
    "brier": _brier,
    "calibration-error": _calibration_error,
    "loss": _loss,
    "r2": _r2,
    "mae": _mae,
}


def intervals(answers: Answers, names: Sequence[str], rng: np.random.Generator) -> dict[str, list[float]]:
    """Each metric that is defined, with the ends of its bootstrap interval: [value, low, high]. Resamples without it, for want
    of a label, do not count; where they are more than half, there is the value alone."""
    values = {name: answers.value(name) for name in names}
    defined = {name: value for name, value in values.items() if np.isfinite(value)}
    found: dict[str, list[np.ndarray]] = {name: [] for name in defined}
    number = int(np.clip(WORK // max(answers.said.size, 1), FEWEST_RESAMPLES, RESAMPLES))
    for rows in _portions(number, len(answers)):
        drawn = rng.integers(len(answers), size=(len(rows), len(answers)))
        places = drawn + len(answers) * np.arange(len(rows))[:, None]
        weights = np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
        for name in defined:
            found[name].append(answers.metric(name, weights))
    ends = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))
    told: dict[str, list[float]] = {}
    for name, value in defined.items():
        drawn_values = np.concatenate(found[name])
        usable = drawn_values[np.isfinite(drawn_values)]
        told[name] = [value, *(np.percentile(usable, ends).tolist() if 2 * len(usable) > number else [])]
    return told


def pseudo_values(answers: Answers, name: str) -> np.ndarray:
    """What each sample says of the metric, (n,); the mean is the metric. NaN where it is not defined without the sample."""
    number, value = len(answers), answers.value(name)
    without = []
    for rows in _portions(number, number):
        weights = np.ones((len(rows), number))
        weights[np.arange(len(rows)), rows] = 0.0
        without.append(answers.metric(name, weights))
    left = np.concatenate(without)
    defined = left[np.isfinite(left)]
    return value + (number - 1) * ((defined.mean() if len(defined) else np.nan) - left)


@dataclass(frozen=True)
class Gain:
    """How much better than another model; the ends are None where the samples do not say."""

    gain: float
    low: float | None = None
    high: float | None = None


def gain_over(own: Answers, other: Answers, name: str) -> Gain | None:
    """How much better `own` is, with a paired interval; None where the metric is not defined.

    The interval is that of a mean of differences of pseudo-values, of Student's t, with half a sample each added for two that
    say nothing, one with the largest difference seen, and one with that against it (for hits: Agresti and Min 2005)."""
    sign = -1.0 if name in LOWER_IS_BETTER else 1.0
    gain = sign * (own.value(name) - other.value(name))
    if not np.isfinite(gain):
        return None
    differences = sign * (pseudo_values(own, name) - pseudo_values(other, name)) if len(own) > 1 else np.array([np.nan])
    if not np.isfinite(differences).all():
        return Gain(gain)
    number = len(differences) + 2
    centre = differences.sum() / number
    most = np.inf if name in UNBOUNDED else 1.0
    largest = abs(differences).max() or float(name not in UNBOUNDED)  # where no sample differs, one that would
    squares = ((differences**2).sum() + largest**2) / number
    error = np.sqrt(max(squares - centre**2, 0.0) / number)
    from scipy.special import stdtrit  # not before: it takes a while

    away = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2)) * error
    return Gain(gain, float(max(centre - away, -most)), float(min(centre + away, most)))


def verdict(low: float | None, high: float | None) -> str:
    """In a plain word, by the interval of the gain."""
    if low is not None and low > 0:
        return "gains"
    return "loses" if high is not None and high < 0 else "cannot tell"


def _portions(rows: int, columns: int) -> Iterator[np.ndarray]:
    step = max(1, AT_ONCE // max(columns, 1))
    for start in range(0, rows, step):
        yield np.arange(start, min(start + step, rows))
