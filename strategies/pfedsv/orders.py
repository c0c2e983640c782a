"""What a pFedSV server tells its clients in the second exchange of a round, and what they answer."""

from dataclasses import dataclass, fields

import numpy as np
from flwr.app import ConfigRecord, Message

from coterie.wire.checks import check_evaluation, metrics_of, on_the_simplex, records_of, vector_of
from coterie.wire.errors import Refused
from coterie.wire.messages import ORDER, Order, Record, record_of


@dataclass(frozen=True)
class DeliverOrder(Order):
    """Keep a model of another client, which came along, until the `PersonalizeOrder` that names it."""

    kind = "train.deliver"
    name: str  # its pseudonym
    version: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class PersonalizeOrder(Order):
    """Make the personal model from the own one, trained in this round, and those of others.

    Others are known by pseudonyms that only this client has. `sent` came along, a row each; the models `held` the client
    has from before, in the version named. It may ask for at most `top_k` of the `roster` next time.
    """

    kind = "train.personalize"
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
    game: str = "gain"  # or the paper's


@dataclass(frozen=True)
class Judgement(Record):
    """What a client made of the models of others. In its metrics: `values` of the members, in the paper's game of itself
    before them; `weights` of itself and the members; `relevance` of everybody in `known`; but for the paper's game
    `losses` of its own model and of the mixture, on its validation samples."""

    members: tuple[str, ...]  # whose models were used
    left_out: tuple[str, ...]  # whose were not, and why
    reasons: tuple[str, ...]
    known: tuple[str, ...]
    wishes: tuple[str, ...]  # for the next time, best first

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
                raise ValueError(f"Judgement: {name} must be a list of texts")


@dataclass(frozen=True)
class Personalized:
    """A checked reply to a `PersonalizeOrder`; all others by their pseudonyms."""

    judgement: Judgement
    values: np.ndarray  # of the members, in the paper's game of the client itself before them
    weights: np.ndarray  # of the client itself, then of the members
    losses: np.ndarray  # of the own model and of the mixture; empty in the paper's game
    relevance: dict[str, float]
    tested: dict[str, float]  # empty where no test was asked for


def check_personalized(reply: Message, order: PersonalizeOrder, kinds: tuple[str, ...]) -> Personalized:
    """The judgement in `reply`; it may speak of those in the order only, and wish for at most as many as allowed."""
    _, vectors = metrics_of(records_of(reply))
    try:
        judgement = Judgement.from_record(record_of(reply.content, ORDER, ConfigRecord) or {})
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    wishes = judgement.wishes
    _pseudonyms("wishes", wishes, order.roster)
    if len(wishes) > order.top_k:
        raise Refused(f"wishes: {len(wishes)} models asked for, at most {order.top_k} are allowed")
    _pseudonyms("known", judgement.known, order.roster)
    _pseudonyms("members and left-out", judgement.members + judgement.left_out, order.sent + order.held)
    if len(judgement.reasons) != len(judgement.left_out):
        raise Refused("reasons: one for each model that was left out")
    size, paper = 1 + len(judgement.members), order.game == "paper"
    values, weights = vector_of(vectors, "values", size if paper else size - 1), vector_of(vectors, "weights", size)
    on_the_simplex("weights", weights)
    losses = np.zeros(0) if paper else vector_of(vectors, "losses", 2)
    if not paper and losses[1] > losses[0] and weights[0] < 1:
        raise Refused("weights: the mixture has a higher loss than the own model, and is used")
    relevance = vector_of(vectors, "relevance", len(judgement.known)).tolist()
    tested = check_evaluation(reply, kinds) if order.evaluate else {}
    return Personalized(judgement, values, weights, losses, dict(zip(judgement.known, relevance, strict=True)), tested)


def _pseudonyms(what: str, names: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    permitted = set(allowed)
    unknown = [name for name in names if name not in permitted]
    if unknown:
        raise Refused(f"{what}: unknown pseudonym {str(unknown[0])[:40]!r}")
    if len(set(names)) != len(names):
        raise Refused(f"{what}: a pseudonym is named twice")
