"""What a pFedOCF server asks of its clients, and how their answers are checked."""

from dataclasses import dataclass

import numpy as np
from flwr.app import Message

from coterie.wire.checks import check_evaluation, metrics_of, on_the_simplex, records_of, vector_of
from coterie.wire.messages import Order


@dataclass(frozen=True)
class CoalitionOrder(Order):
    """Train the own model, and the `rows` models of the client's coalitions that came along.

    The own model is what the client kept in round `continues` or later, else what was sent; at first the initial one. With
    `upload_own` it is sent back, before the others. With `estimate` it is found by least squares instead.
    """

    kind = "train.coalitions"
    rows: int
    upload_own: bool
    estimate: bool = False
    continues: int = 0


@dataclass(frozen=True)
class ErrorsOrder(Order):
    """What losses have the `rows` models that came along on the client's validation samples? With `own`, first its own."""

    kind = "query.errors"
    rows: int
    own: bool = False


@dataclass(frozen=True)
class MixOrder(Order):
    """Mix the `rows` models that came along with the own one, and test the result.

    Without `mixed` the last of them is the personal model, or the own one where none came.
    """

    kind = "evaluate.mix"
    rows: int
    mixed: bool = True


def groups_of(validation_samples: int) -> int:
    """In how many groups a client tells its losses: enough to see how uncertain their mean is."""
    return min(validation_samples, 100)


def check_errors(reply: Message, number: int, groups: int) -> np.ndarray:
    """The losses of the `number` models that a client was asked about, (number, groups)."""
    _, vectors = metrics_of(records_of(reply))
    return vector_of(vectors, "errors", number * groups).reshape(number, groups)


def check_mixture(reply: Message, kinds: tuple[str, ...], number: int) -> tuple[dict[str, float], np.ndarray]:
    """The metrics of a client's mixture of `number` models, and its weights."""
    _, vectors = metrics_of(records_of(reply))
    weights = vector_of(vectors, "mixing", number)
    on_the_simplex("mixing", weights)
    return check_evaluation(reply, kinds), weights
