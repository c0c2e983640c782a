"""check_method catches what it is for: for each law a method that breaks it, and nothing else wrong with it."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest

from coterie.client.training import train
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.findings import Finding
from coterie.strategies.method import MethodSettings, answers, setting
from coterie.testing import LAWS, check_method
from coterie.wire.checks import Update, check_done
from coterie.wire.errors import ConfigError, Refused, RunFailed
from coterie.wire.messages import METRICS, MODEL, Order, Sent, TrainOrder, reply

DITTO = Path(__file__).parents[2] / "docs" / "how-to" / "ditto.py"


@dataclass(frozen=True)
class ToyOrder(TrainOrder):
    kind = "train.toy"


@dataclass(frozen=True)
class Question(Order):
    kind = "query.toy"


class Toy(FedAvg):
    """FedAvg with a client half of its own."""

    name = "toy"

    def train_order(self, number):
        return ToyOrder(**asdict(super().train_order(number)))

    @staticmethod
    @answers(ToyOrder)
    def train(me, order, records):
        return train(me, order, records)


class NotANumber(Toy):
    def aggregate(self, round, updates):
        super().aggregate(round, updates)
        round.tell(spread=float("nan"))


class ArrayInFindings(Toy):
    def findings(self):
        return [Finding("worth", "scores", {"0": 1.0}, facts={"all": np.zeros(3)})]


class NanInFindings(Toy):
    def findings(self):
        return [Finding("worth", "scores", {"0": float("inf")})]


class SomeUntested(Toy):
    def check_test(self, client, reply):
        if client == "1":
            raise Refused("do not like it")
        return super().check_test(client, reply)


class Counting(Toy):
    """Its clients remember in their process, not in their store."""

    calls = 0

    @staticmethod
    @answers(ToyOrder)
    def train(me, order, records):
        Counting.calls += 1
        answer = train(me, order, records)
        answer[METRICS]["num-samples"] += Counting.calls * 100
        return answer


class Forgetful(Toy):
    """What the server needs is not in `saved`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rounds = 0

    def aggregate(self, round, updates):
        super().aggregate(round, updates)
        self.rounds += 1
        self.model["classifier"] = self.model["classifier"] * np.float32(1 + self.rounds)


class Unstorable(Forgetful):
    """It is in `saved`, but does not come back as it was."""

    saved = ("seen",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = {}

    def aggregate(self, round, updates):
        FedAvg.aggregate(self, round, updates)
        self.model["classifier"] = self.model["classifier"] + np.float32(0.01) * np.float32(len(self.seen))
        self.seen[round.number] = 1  # JSON has no numbers for keys: it would be "1"
        self.seen = {key: value for key, value in self.seen.items() if isinstance(key, int)}


class Impatient(Toy):
    """Every try of a round leaves something behind."""

    saved = ("tries",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tries = 0

    def train_order(self, number):
        self.tries += 1
        return super().train_order(number)


class Drifting(Toy):
    """Its clients go on from where the last try ended."""

    @staticmethod
    @answers(ToyOrder)
    def train(me, order, records):
        kept = me.store.own_parts(order.round + 1)
        answer = train(me, order, records)
        me.store.keep(order.round, {"classifier": kept.get("classifier", np.zeros(3, np.float32)) + 1})
        answer[METRICS]["num-samples"] += int(me.store.own_parts(order.round + 1)["classifier"][0])
        return answer


class ByInverse(Toy):
    def aggregate(self, round, updates):
        weights = [1 / np.float64(update.num_samples) for update in updates.values()]
        self.model["classifier"] = sum(
            (weight * update.parts["classifier"] for weight, update in zip(weights, updates.values(), strict=True))
        ).astype(np.float32)


class OnlyTrained(Toy):
    def round(self, round):
        updates = round.train(lambda clients: self.with_shared_parts(self.train_order(round.number), clients))
        self.own = {name: update.parts for name, update in updates.items()}

    def test_orders(self, round, clients):
        return [Sent(self.test_order(round.number), self.own[client]) for client in clients]


class NeedsTwo(Toy):
    def aggregate(self, round, updates):
        super().aggregate(round, updates)
        list(updates)[1]


class NeedsValidation(Toy):
    @staticmethod
    @answers(ToyOrder)
    def train(me, order, records):
        me.validation_samples().y[0]
        return train(me, order, records)


class Closed(Toy):
    def begin(self):
        self.known = set(self.federation.clients)

    def aggregate(self, round, updates):
        super().aggregate(round, updates)
        if not set(updates) <= self.known:
            raise KeyError("who is that?")


class Loyal(Toy):
    """It counts on whoever was there at the beginning."""

    def begin(self):
        self.known = list(self.federation.clients)

    def aggregate(self, round, updates):
        super().aggregate(round, {client: updates[client] for client in self.known})


class Trusting(Toy):
    def check_update(self, client, reply):
        parts = {part: self.model[part] for part in self.uploads()}
        if reply.has_error():
            raise Refused("error")
        from coterie.wire.arrays import unpack

        return Update(parts | unpack(reply.content[MODEL]), 10, {"loss": 1.0}, {}, 0)


class AllOrNothing(Toy):
    def aggregate(self, round, updates):
        super().aggregate(round, updates)
        for client in self.federation.connected:
            updates[client]


class Asking(Toy):
    """It believes what it is told when it asks."""

    saved = ("score",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.score = np.zeros(1)

    def aggregate(self, round, updates):
        super().aggregate(round, updates)

        def told(client, reply):
            check_done(reply)
            return reply.content[METRICS]["score"]

        told, _ = round.ask(list(updates), lambda clients: [Sent(Question(round.number))] * len(clients), told)
        self.score = self.score + sum(told.values())

    @staticmethod
    @answers(Question)
    def answer(me, order, records):
        return reply({"score": 1.0})


BROKEN = [
    ("told", NotANumber, "NaN is no JSON"),
    ("told", ArrayInFindings, "findings: Object of type ndarray is not JSON serializable"),
    ("told", NanInFindings, "findings: Out of range float values"),
    ("told", SomeUntested, r"tested were \['0', '2', '3'\].*do not like it"),
    ("workers", Counting, "result.json: .* differ|arrays: .* differ"),
    ("resumes", Forgetful, "differ"),
    ("resumes", Unstorable, "differ"),
    ("repeated round", Impatient, "state: values differ"),
    ("repeated round", Drifting, "result.json: models differ"),
    ("idle client", ByInverse, "numbers that are not finite|are not finite"),
    ("never sampled", OnlyTrained, "KeyError"),
    ("single client", NeedsTwo, "IndexError: list index out of range"),
    ("no validation data", NeedsValidation, "NoQuorum: round 1: 0 of 4 clients answered well"),
    ("late client", Closed, "KeyError: 'who is that"),
    ("leaving client", Loyal, "KeyError: '0'"),
    ("nan", Trusting, "client 2 is not left out by name"),
    ("nan when asked", Asking, "the server's score has numbers that are not finite"),
    ("silent client", AllOrNothing, "KeyError: '3'"),
]


@pytest.mark.parametrize(("law", "method", "complaint"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_law_is_named(law, method, complaint):
    with pytest.raises(AssertionError, match=f"toy breaks the law '{law}' .*({complaint})"):
        check_method(method, laws=[law])


def test_there_is_a_broken_method_for_every_law():
    assert {law for law, _, _ in BROKEN} == set(LAWS)


def test_the_toy_itself_keeps_them_all():
    check_method(Toy)


def test_ditto_keeps_them_all():
    check_method(DITTO, mu=0.2)


def test_refusing_with_a_reason_is_no_breach():
    class Choosy(Toy):
        def begin(self):
            if len(self.federation.clients) < 2:
                raise RunFailed("num-clients = 1: toy needs two")

    check_method(Choosy, laws=["single client"])


def test_settings_reach_the_method():
    class Picky(Toy):
        class Settings(MethodSettings):
            depth: int = setting(3, "How deep.", ge=1)

        def begin(self):
            assert (self.settings.depth, self.config.model) == (7, "linear")

    check_method(Picky, laws=["never sampled"], depth=7, model="linear")
    with pytest.raises(AssertionError, match="never sampled"):
        check_method(Picky, laws=["never sampled"])
    with pytest.raises(ConfigError, match=r"toy.depth = 0: must be greater"):
        check_method(Picky, laws=["never sampled"], depth=0)


def test_a_law_that_is_not_there():
    with pytest.raises(ConfigError, match="laws = 'nann': unknown, did you mean 'nan'"):
        check_method(Toy, laws=["nann"])
