"""A reply is data from a stranger: nothing of it is used before it passed these checks."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from coterie.wire.arrays import Parts, Place, places, read
from coterie.wire.errors import Absent, NotFinite, Refused
from coterie.wire.messages import LARGEST_COUNT, MALFORMED, METRICS, MODEL, ORDER, Hello, record_of, size_in_bytes

RAISED = re.compile(r"<class '[\w.]+'>:<'(.*)'>$")  # how Flower reports what a ClientApp raised
LARGEST_METRIC = 1e100  # sums of such numbers are still finite
LARGEST_WEIGHT = 1e15  # squares of such numbers, and sums of them, are still finite in single precision
LONGEST_REASON = 500


@dataclass(frozen=True)
class Layout:
    """What a model of this run looks like: an example of every part, and where its running variances stand."""

    parts: Parts
    variances: np.ndarray
    classifier_shape: tuple[int, int]  # (classes, features): the classifier's weights come first, its biases after them
    group_norm: bool = False  # GroupNorm stands where the model has BatchNorm


@dataclass(frozen=True)
class Update:
    """A checked reply to a training order."""

    parts: Parts
    num_samples: int
    metrics: dict[str, float]
    vectors: dict[str, np.ndarray]
    num_bytes: int


def check_update(reply: Message, layout: Layout, upload: tuple[str, ...]) -> Update:
    """The update in `reply`, whose parts must look like those of `layout`."""
    records = records_of(reply)
    metrics, vectors = metrics_of(records)
    parts = _parts(records, layout, upload)
    return Update(parts, count_of(metrics, "num-samples"), metrics, vectors, size_in_bytes(records))


def check_evaluation(reply: Message, kinds: tuple[str, ...]) -> dict[str, float]:
    """The metrics of an evaluation: `num-samples`, and a finite loss for every kind of model asked for."""
    metrics, _ = metrics_of(records_of(reply))
    count_of(metrics, "num-samples")
    for kind in kinds:
        if f"{kind}.loss" not in metrics and metrics["num-samples"]:
            raise Refused(f"no {kind}.loss in the metrics")
    return metrics


def check_done(reply: Message) -> None:
    """That the client did what it was told."""
    records_of(reply)


def vector_of(vectors: Mapping[str, np.ndarray], name: str, size: int) -> np.ndarray:
    vector = vectors.get(name, np.zeros(0))
    if vector.shape != (size,):
        raise Refused(f"{name}: expected {size} numbers, got {vector.size}")
    return vector


def rows_of(layout: Layout, rows: int) -> Layout:
    """The layout of `rows` models that travel together, a matrix for each part."""
    return replace(layout, parts={name: np.empty((rows, like.size), like.dtype) for name, like in layout.parts.items()})


def on_the_simplex(name: str, weights: np.ndarray) -> None:
    if (weights < 0).any() or abs(weights.sum() - 1) > 1e-6:
        raise Refused(f"{name}: must not be negative, and sum to 1")


def check_hello(reply: Message) -> Hello:
    record = record_of(records_of(reply), ORDER, ConfigRecord)
    if record is None:
        raise Refused("the answer to hello has no record; is this node running Coterie?")
    try:
        return Hello.from_record(record)
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None


def records_of(reply: Message) -> RecordDict:
    if reply.has_error() and reply.error.code == MALFORMED:
        raise Refused(_last_line(reply.error.reason))
    if reply.has_error():
        raise Absent(f"error {reply.error.code}: {_last_line(reply.error.reason)}")
    return reply.content


def _last_line(reason: str | None) -> str:
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    last = lines[-1][-LONGEST_REASON:]
    raised = RAISED.search(last)
    return raised[1] if raised else last


def _parts(records: RecordDict, layout: Layout, names: tuple[str, ...]) -> Parts:
    model = record_of(records, MODEL, ArrayRecord)
    if model is None:
        if not names:
            return {}
        raise Refused(f"no record {MODEL!r}")
    parts = checked_parts(model, {name: layout.parts[name] for name in names})
    if "buffers" in parts and (parts["buffers"][..., layout.variances] < 0).any():
        raise Refused("buffers: a running variance is negative")
    return parts


def checked_parts(model: ArrayRecord, layout: Parts) -> Parts:
    """The parts in `model`, which must be those of `layout`, alike in dtype and shape, and finite; so far from what can be
    counted with that no sum of them is in danger."""
    parts = readable_parts(model, layout)
    for name, value in parts.items():
        if not np.isfinite(value).all():
            raise NotFinite(f"{name}: {int((~np.isfinite(value)).sum())} of {value.size} numbers are not finite")
        if value.size and not -LARGEST_WEIGHT <= value.min() <= value.max() <= LARGEST_WEIGHT:
            raise NotFinite(
                f"{name}: numbers up to {float(abs(value).max()):.3g}; they must not exceed {LARGEST_WEIGHT:g}"
            )
    return parts


def readable_parts(model: ArrayRecord, layout: Parts) -> Parts:
    """The parts in `model`, which must be those of `layout`, alike in dtype and shape; their numbers may be anything."""
    found = part_places(model)
    if set(found) != set(layout):
        raise Refused(f"expected the parts {sorted(layout)}, got {sorted(found)}")
    return {name: _readable(name, found[name], like) for name, like in layout.items()}


def part_places(model: ArrayRecord) -> dict[str, Place]:
    try:
        return places(model)
    except ValueError as error:
        raise Refused(f"the names of the parts cannot be read ({error})") from None


def _readable(name: str, place: Place, like: np.ndarray) -> np.ndarray:
    array, start, stop, width = place
    got = (*array.shape[:-1], stop - start)
    if array.dtype != str(like.dtype) or got != like.shape or array.shape[-1:] != (width,):
        raise Refused(
            f"{name}: expected {like.dtype} {like.shape}, got {array.dtype} {got} in an array {tuple(array.shape)}"
        )
    size = width * math.prod(like.shape[:-1]) * like.itemsize
    if len(array.data) > size + 1024:  # 1024: more than any header of numpy's format
        raise Refused(f"{name}: {len(array.data)} bytes for an array of {size}")
    try:
        value = read(array)
    except Exception as error:  # numpy's reader stumbles over a stranger's bytes in many ways, MemoryError among them
        raise Refused(f"{name}: cannot be read ({_last_line(str(error))})") from None
    if not isinstance(value, np.ndarray):
        raise Refused(f"{name}: an archive, not an array")
    if value.dtype != like.dtype or value.shape != tuple(
        array.shape
    ):  # the header inside may differ from the one outside
        raise Refused(f"{name}: expected {like.dtype} {tuple(array.shape)}, got {value.dtype} {value.shape}")
    part: np.ndarray = value[..., start:stop]
    return part


def metrics_of(records: RecordDict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    metrics = record_of(records, METRICS, MetricRecord)
    if metrics is None:
        raise Refused(f"no record {METRICS!r}")
    scalars: dict[str, float] = {}
    vectors: dict[str, np.ndarray] = {}
    for name, value in metrics.items():
        if isinstance(value, list):
            vectors[name] = np.asarray(value, dtype=np.float64)
            usable = bool((abs(vectors[name]) <= LARGEST_METRIC).all())
        else:
            scalars[name] = value
            usable = abs(value) <= LARGEST_METRIC  # NaN is not
        if not usable:
            raise NotFinite(f"{name}: not a finite number up to {LARGEST_METRIC:g}")
    return scalars, vectors


def count_of(metrics: Mapping[str, float], name: str) -> int:
    value = metrics.get(name)
    if not isinstance(value, int) or not 0 <= value <= LARGEST_COUNT:
        raise Refused(f"{name}: expected a whole number from 0 to {LARGEST_COUNT}, got {value!r}")
    return value
