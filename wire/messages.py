"""The messages between server and clients: an order, with models beside it, and the reply.

    query.hello    who are you, how much data have you?   -> Hello; may come with the schema of a table
    query.describe what is your table like?               -> Description
    train          TrainOrder and model parts             -> model parts, metrics
    evaluate       EvaluateOrder and model parts          -> metrics
    evaluate.figures  JudgeOrder, after the last round    -> all metrics with intervals, and the gain over training alone

These every client answers (client/app.py). A method that needs more of its clients has orders of its own, in its own file
(strategies/), each with a message type of its own.

A model travels as its parts (tasks/models.py), several models as matrices with a row for each; how, is in wire/arrays.py.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.wire.arrays import Parts, pack

HELLO, DESCRIBE, TRAIN, EVALUATE = "query.hello", "query.describe", "train", "evaluate"
FIGURES = "evaluate.figures"
ORDER, MODEL, OTHERS, METRICS = "order", "model", "others", "metrics"
MALFORMED = 1000  # Flower's codes of errors end below; this one stands in place of an answer that cannot be unpacked
NAME = re.compile(r"[^\W_][\w .@+-]{0,63}(?<![ .])")  # it becomes the name of a file, and stands in a web page
NAME_RULE = "a client's name has 1 to 64 letters, digits and ' . _ - + @', and begins with a letter or digit"
LARGEST_COUNT = 10**9


@dataclass(frozen=True)
class Record:
    """A dataclass that travels as a ConfigRecord; tuples travel as lists."""

    def to_record(self) -> ConfigRecord:
        told = {
            field.name: getattr(self, field.name) for field in fields(self)
        }  # asdict would copy each text of a list
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}
        return ConfigRecord(cast(Any, values))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        names = {field.name for field in fields(cls)}
        if set(record) != names:
            got = str(sorted(record))[:200]
            raise ValueError(f"{cls.__name__}: expected the fields {sorted(names)}, got {got}")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})


@dataclass(frozen=True)
class Hello(Record):
    """What a client says of itself. `num_partitions` is 0 where it brings data of its own."""

    name: str
    code: str
    num_partitions: int
    num_train: int
    num_validation: int
    num_test: int

    def __post_init__(self) -> None:
        counts = (self.num_partitions, self.num_train, self.num_validation, self.num_test)
        if not all(isinstance(count, int) and 0 <= count <= LARGEST_COUNT for count in counts):
            raise ValueError(f"the counts of a hello must be integers from 0 to {LARGEST_COUNT}")
        if not (isinstance(self.name, str) and NAME.fullmatch(self.name)):
            raise ValueError(f"{str(self.name)[:80]!r}: {NAME_RULE}")
        if not (isinstance(self.code, str) and len(self.code) <= 128):
            raise ValueError("the code of a hello must be a fingerprint")


@dataclass(frozen=True)
class Order(Record):
    """What a client is told to do. `kind` is the type of the message: train, evaluate or query, and `.` a word of its own."""

    kind: ClassVar[str]
    round: int


@dataclass(frozen=True)
class TrainOrder(Order):
    """Start from the own parts, overwritten by those sent; train; upload and keep the named parts.

    Phase k trains the parts `phase_parts[k]` (joined by '+') for `phase_epochs[k]` epochs; without phases all weights are
    trained for the run's `local-epochs`. With `continues`, what is
    not sent must be what the client kept in that round; it refuses if it has not. With `start_loss` the metrics tell that
    of the model before training, on the training samples; 0 without any.
    """

    kind = TRAIN
    upload: tuple[str, ...]
    keep: tuple[str, ...] = ()
    phase_parts: tuple[str, ...] = ()
    phase_epochs: tuple[int, ...] = ()
    proximal_mu: float = 0.0
    continues: int = 0
    start_loss: bool = False


@dataclass(frozen=True)
class EvaluateOrder(Order):
    """Test the named kinds of model: `global` (the parts sent) and `personal` (those, completed by the own parts, then
    fine-tuned for `fine_tune_epochs`, at `fine_tune_rate` or, if that is 0, `learning-rate`). With `own` it is the own parts,
    completed by those sent. The personal model is written to the client's own directory. With `measure` the running
    statistics are those of the client's own training samples: the model sent comes without any."""

    kind = EVALUATE
    kinds: tuple[str, ...]
    fine_tune_epochs: int = 0
    measure: bool = False
    fine_tune_rate: float = 0.0
    own: bool = False


@dataclass(frozen=True)
class JudgeOrder(Order):
    """Judge the personal model on the test samples. With `alone`, first train that many rounds alone, for `seconds` at a time,
    and say what is gained in `metric`. The answer has for each metric [value] or [value, low, high], `label-counts`,
    `confusion` row by row, `local`, `own`, and `gain` as [value, low, high]; or, not done yet, `rounds-alone`."""

    kind = FIGURES
    metric: str
    alone: int
    seconds: float


@dataclass(frozen=True)
class DescribeOrder(Order):
    """Tell what your table is like."""

    kind = DESCRIBE


@dataclass(frozen=True)
class Description(Record):
    """What a client tells of its table: `facts` of tasks/facts.py, as JSON."""

    round: int
    facts: str


@dataclass(frozen=True)
class Sent:
    """What a client is sent: an order, the parts of one model, and models of others, a row each."""

    order: Order
    model: Parts | ArrayRecord | None = None
    others: Parts | ArrayRecord | None = None

    def content(self) -> RecordDict:
        records: dict[str, Any] = {ORDER: _order_record(self.order)}
        for name, parts in ((OTHERS, self.others), (MODEL, self.model)):
            if parts is not None:
                records[name] = parts if isinstance(parts, ArrayRecord) else pack(parts)
        return RecordDict(records)


@functools.lru_cache(maxsize=8)
def _order_record(order: Order) -> ConfigRecord:
    """One record for all clients that get the same order."""
    return order.to_record()


def reply(
    metrics: Mapping[str, Any], parts: Mapping[str, np.ndarray] | None = None, record: Record | None = None
) -> RecordDict:
    records: dict[str, Any] = {METRICS: MetricRecord(cast(Any, dict(metrics)))}
    if record is not None:
        records[ORDER] = record.to_record()
    if parts is not None:
        records[MODEL] = pack(parts)
    return RecordDict(records)


R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


def record_of(records: RecordDict, name: str, kind: type[R]) -> R | None:
    """The record of this name, if it is there and of this kind. Flower's own views check and set all records again each time."""
    record = records.get(name)
    return record if isinstance(record, kind) else None


def size_in_bytes(records: RecordDict) -> int:
    """Bytes of all arrays in a message, as they travel."""
    arrays = [record for record in records.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in arrays for array in record.values())
