"""The messages between server and clients, defined once for both sides.

    query.hello    who are you, how much data have you?       -> Hello
    train          TrainOrder and model parts                 -> model parts, metrics
    train.fomo     TrainOrder and models of others, unnamed   -> model parts, metrics, weights of the others
    train.meta     MetaOrder and model parts                  -> model parts, metrics
    train.moreau   MoreauOrder and model parts                -> model parts, metrics
    train.personalize   PersonalizeOrder and the models asked for, under pseudonyms   -> Judgement, metrics
    train.coalitions    CoalitionOrder and the models of the client's coalitions   -> these models trained, a row each
    train.rays     RaysOrder and models of a hypernetwork     -> their losses and gradients on the client's samples
    query.errors   MixOrder and models of coalitions          -> loss of each on the client's validation samples
    evaluate       EvaluateOrder and model parts              -> metrics
    evaluate.mix   MixOrder and the models of the client's coalitions   -> metrics, weights of the mixture

A model travels as its parts (tasks/models.py), several models as matrices with a row for each; how, is in wire/arrays.py.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, cast

import numpy as np
from coterie.wire.arrays import pack
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

HELLO, TRAIN, TRAIN_FOMO, EVALUATE = "query.hello", "train", "train.fomo", "evaluate"
TRAIN_DELIVER, TRAIN_PERSONALIZE = "train.deliver", "train.personalize"
TRAIN_COALITIONS, QUERY_ERRORS, EVALUATE_MIX = "train.coalitions", "query.errors", "evaluate.mix"
TRAIN_RAYS, TRAIN_META, TRAIN_MOREAU = "train.rays", "train.meta", "train.moreau"
ORDER, MODEL, OTHERS, METRICS = "order", "model", "others", "metrics"


@dataclass(frozen=True)
class _Record:
    """A dataclass that travels as a ConfigRecord; tuples travel as lists."""

    def to_record(self) -> ConfigRecord:
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return ConfigRecord(cast(Any, values))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        names = {field.name for field in fields(cls)}
        if set(record) != names:
            raise ValueError(f"{cls.__name__}: expected the fields {sorted(names)}, got {sorted(record)}")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})


@dataclass(frozen=True)
class Hello(_Record):
    """What a client says of itself. `num_partitions` is 0 where it brings data of its own."""

    name: str
    code: str
    num_partitions: int
    num_train: int
    num_validation: int
    num_test: int

    def __post_init__(self) -> None:
        counts = (self.num_partitions, self.num_train, self.num_validation, self.num_test)
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError("the counts of a hello must be integers, not negative")
        if not (
            isinstance(self.name, str) and 0 < len(self.name) <= 64 and self.name.isprintable() and "/" not in self.name
        ):
            raise ValueError("a client's name must have 1 to 64 printable characters and no '/'")


@dataclass(frozen=True)
class TrainOrder(_Record):
    """Start from the own parts, overwritten by those sent; train; upload and keep the named parts.

    Phase k trains the parts `phase_parts[k]` (joined by '+') for `phase_epochs[k]` epochs. With `continues`, what is
    not sent must be what the client kept in that round; it refuses if it has not. With `start_loss` the metrics tell that
    of the model before training, on the training samples; 0 without any.
    """

    round: int
    phase_parts: tuple[str, ...]
    phase_epochs: tuple[int, ...]
    upload: tuple[str, ...]
    keep: tuple[str, ...] = ()
    proximal_mu: float = 0.0
    continues: int = 0
    start_loss: bool = False


@dataclass(frozen=True)
class MetaOrder(TrainOrder):
    """Train for what the model is after a step of length `alpha` on the client's own samples (Per-FedAvg)."""

    alpha: float = 0.0


@dataclass(frozen=True)
class MoreauOrder(TrainOrder):
    """Train a personal model that is pulled to the one that was sent, and that one towards it (pFedMe).

    The personal model is found by `inner_steps` steps of length `inner_rate` on each batch. It takes the place of the trained
    one among the parts that are kept.
    """

    pull: float = 0.0
    inner_steps: int = 1
    inner_rate: float = 0.0


@dataclass(frozen=True)
class DeliverOrder(_Record):
    """Keep a model of another client, which came along, until the `PersonalizeOrder` that names it (pFedSV)."""

    round: int
    name: str  # its pseudonym
    version: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class PersonalizeOrder(_Record):
    """Make the personal model from the own one, trained in this round, and those of others (pFedSV).

    Others are known by pseudonyms that only this client has. `sent` came along, a row each; the models `held` the client
    has from before, in the version named. It may ask for at most `top_k` of the `roster` next time.
    """

    round: int
    top_k: int
    alpha: float
    parts: tuple[str, ...]  # what the models of others consist of
    roster: tuple[str, ...]
    sent: tuple[str, ...]
    sent_versions: tuple[int, ...]
    held: tuple[str, ...]
    held_versions: tuple[int, ...]
    keep_models: bool  # whether some may be wanted again in the same version
    evaluate: bool


@dataclass(frozen=True)
class Judgement(_Record):
    """What a client made of the models of others. In its metrics: `values` and `weights` of itself and the members, in
    this order, and `relevance` of everybody in `known`."""

    members: tuple[str, ...]  # whose models were used
    left_out: tuple[str, ...]  # whose were not, and why
    reasons: tuple[str, ...]
    known: tuple[str, ...]
    wishes: tuple[str, ...]  # for the next time, best first

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
                raise ValueError(f"Judgement: {name} must be a list of texts")


@dataclass(frozen=True)
class CoalitionOrder(_Record):
    """Train the own model, and the `rows` models of the client's coalitions that came along (pFedOCF).

    The own model is what the client kept in round `continues` or later, else what was sent; at first the initial one. With
    `upload_own` it is sent back, before the others. With `estimate` it is found by least squares instead.
    """

    round: int
    epochs: int
    rows: int
    upload_own: bool
    estimate: bool = False
    continues: int = 0


@dataclass(frozen=True)
class MixOrder(_Record):
    """Judge the `rows` models that came along, or mix them with the own one and test the result (pFedOCF).

    Without `mixed` the last of them is the personal model, or the own one where none came.
    """

    round: int
    rows: int
    mixed: bool = True


@dataclass(frozen=True)
class RaysOrder(_Record):
    """Losses and gradients of the `rows` models that came along (SPO, CE).

    With `steps` above 0 on training samples, at most `samples` of them in each of so many steps of gradient descent, `step`
    long: the reply has the sum of each model's gradients on its way, a row each. With 0 on validation samples: the gradient
    of the best model only.
    """

    round: int
    rows: int
    steps: int
    step: float
    samples: int


@dataclass(frozen=True)
class EvaluateOrder(_Record):
    """Test the named kinds of model: `global` (the parts sent) and `personal` (those, completed by the own parts, then
    fine-tuned for `fine_tune_epochs`, at `fine_tune_rate` or, if that is 0, `learning-rate`). With `own` it is the own parts,
    completed by those sent. The personal model is written to the client's own directory. With `measure` the running
    statistics are those of the client's own training samples: the model sent comes without any."""

    round: int
    kinds: tuple[str, ...]
    fine_tune_epochs: int = 0
    measure: bool = False
    fine_tune_rate: float = 0.0
    own: bool = False


@functools.lru_cache(maxsize=8)
def _order_record(order: _Record) -> ConfigRecord:
    """One record for all clients that get the same order."""
    return order.to_record()


def content(order: _Record, parts: ArrayRecord | None = None, **more: ArrayRecord) -> RecordDict:
    records: dict[str, Any] = {ORDER: _order_record(order), **more}
    if parts is not None:
        records[MODEL] = parts
    return RecordDict(records)


def reply(
    metrics: Mapping[str, Any], parts: Mapping[str, np.ndarray] | None = None, record: _Record | None = None
) -> RecordDict:
    records: dict[str, Any] = {METRICS: MetricRecord(cast(Any, dict(metrics)))}
    if record is not None:
        records[ORDER] = record.to_record()
    if parts is not None:
        records[MODEL] = pack(parts)
    return RecordDict(records)


def size_in_bytes(records: RecordDict) -> int:
    """Bytes of all arrays in a message, as they travel."""
    return sum(len(array.data) for record in records.array_records.values() for array in record.values())
