"""One round, as a method sees it: train, ask for more, tell. What is the same for all methods is done here.

    updates = round.train(orders)                     sampled, sent, checked; repeated until there is a quorum
    answers, failed = round.ask(clients, orders, check)    a further exchange with some of them
    round.tell(weights=...)                           into the event line

`orders` says what each of these clients is sent. Clients that do not answer, or not well, are left out by name.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from flwr.app import Message

from coterie.strategies.federation import Federation, name_order
from coterie.strategies.federation import exactly as exactly
from coterie.wire.checks import Update
from coterie.wire.errors import Absent, NoQuorum, Refused
from coterie.wire.messages import Sent, size_in_bytes

if TYPE_CHECKING:
    from coterie.strategies.method import Method

log = logging.getLogger(__name__)

SOMETIMES = {
    f"{kind}.{name}" for kind in ("global", "personal") for name in ("auroc", "auprc", "f1")
}  # not all have them
WAVE_BYTES = 512 * 2**20  # of models in flight
Orders = Callable[[list[str]], Iterable[Sent]]  # what these clients are sent, one after the other
Metrics = dict[str, float]
T = TypeVar("T")


class Round:
    def __init__(self, method: "Method", number: int, timeout: float) -> None:
        self.method, self.number, self.timeout = method, number, timeout
        self.config = method.config
        self.federation: Federation = method.federation
        self.event: dict[str, Any] = {"round": number, "left-out": {}}
        self.left_out: dict[str, Refused] = {}  # of the training, and why
        self.missed: set[str] = set()  # whoever was left out in any try of it
        self.tested: dict[str, Metrics] = {}  # clients that need no further test in this round
        self.not_tested: dict[str, Refused] = {}
        self.is_last = number == method.num_rounds
        self.evaluates = self.is_last or number % self.config.evaluate_every == 0
        self.federation.pauses.round = number

    def tell(self, **facts: Any) -> None:
        """Into the event line."""
        self.event |= {name.replace("_", "-"): value for name, value in facts.items()}

    def train(self, orders: Orders, check: Callable[[str, Message], Update] | None = None) -> dict[str, Update]:
        """The good answers of the clients that the method samples, by name, in a stable order; at least a quorum."""
        for _ in range(self.config.round_retries + 1):
            asked = self.method.sample(self.number)
            sent: dict[str, Sent] = {}

            def noted(clients: list[str], sent: dict[str, Sent] = sent) -> Iterable[Sent]:
                sent.update(zip(clients, orders(clients), strict=True))
                return sent.values()

            done = self._exchange(asked, noted, check or self.method.check_update, "train")
            done.refuse(self.method.bounds.too_long(sent, done.good))
            self.left_out = done.failed
            self.missed |= set(done.failed)
            self.event["left-out"] = in_words(done.failed)
            for name, error in done.failed.items():
                log.warning("round %d: client %s is left out: %s", self.number, name, error)
            needed = self.federation.needed(len(asked))
            if len(done.good) >= needed:
                updates = done.good
                self.method.bounds.remember()
                self.tell(train={name: {"num-samples": u.num_samples, **u.metrics} for name, u in updates.items()})
                self.tell(bytes_up=done.bytes_up, bytes_down=done.bytes_down)
                return updates
            self.federation.come_back()
        reasons = "; ".join(f"{name}: {error}" for name, error in list(self.left_out.items())[:3])
        reasons = reasons if asked else "Nobody who could train is connected; start the clients again"
        raise NoQuorum(
            f"round {self.number}: {len(asked) - len(self.left_out)} of {len(asked)} clients answered well and quorum = "
            f"{self.config.quorum:g} needs {needed}, in {self.config.round_retries + 1} tries. {reasons}",
            self.left_out,
        )

    def ask(
        self, clients: Sequence[str], orders: Orders, check: Callable[[str, Message], T], *, size: int = 0
    ) -> tuple[dict[str, T], dict[str, Refused]]:
        """Another exchange with these clients: the good answers, and why the others gave none. Messages are of about
        `size` bytes each: as many of them are under way at once as fit into memory."""
        done = self._in_waves(clients, orders, check, size)
        for key, more in (("bytes-down", done.bytes_down), ("bytes-up", done.bytes_up)):
            counted = self.event.setdefault(key, {})
            counted |= {name: counted.get(name, 0) + number for name, number in more.items()}
        return done.good, done.failed

    def test(self) -> None:
        """All clients that were not tested in this round yet. After the last round somebody must be: without any test a run
        has no result, so it is tried again, and then the round does not count."""
        for _ in range(self.config.round_retries + 1 if self.is_last else 1):
            self._test()
            if self.event["evaluate"] or not self.is_last:
                self.federation.welcome()
                return
            self.federation.come_back()
        reasons = "; ".join(f"{name}: {error}" for name, error in list(self.not_tested.items())[:3])
        raise NoQuorum(
            f"round {self.number}: no client could be tested. {reasons or 'Nobody is connected'}", self.not_tested
        )

    def _test(self) -> None:
        method = self.method
        connected = self.federation.connected  # who comes while others are tested has its turn in the next round
        testable = connected if self.is_last else self.federation.clients  # at last, nobody is passed over
        clients = [name for name in testable if name not in self.tested]
        size = sum(part.nbytes for part in method.layout.parts.values())
        done = self._in_waves(clients, lambda wave: method.test_orders(self, wave), method.check_test, size)
        pauses = self.federation.pauses
        asleep = [name for name in connected if name not in {*testable, *self.tested}]
        done.failed |= {name: Absent(pauses.in_words(name)) for name in asleep}
        for name, error in done.failed.items():
            log.warning("round %d: client %s could not be tested: %s", self.number, name, error)
        self.not_tested = done.failed
        together = self.tested | done.good
        metrics = {name: together[name] for name in sorted(together, key=name_order)}
        self.tell(evaluate=metrics, mean=mean_metrics(metrics), not_tested=in_words(done.failed))

    def _in_waves(
        self, clients: Sequence[str], orders: Orders, check: Callable[[str, Message], T], size: int
    ) -> "Exchanged[T]":
        done: Exchanged[T] = Exchanged()
        step = max(8, WAVE_BYTES // max(size, 1))
        for start in range(0, len(clients), step):
            wave = list(clients[start : start + step])
            done |= self._exchange(wave, orders, check, "", start, len(clients))
        return done

    def _exchange(
        self,
        clients: list[str],
        orders: Orders,
        check: Callable[[str, Message], T],
        phase: str,
        start: int = 0,
        total: int = 0,
    ) -> "Exchanged[T]":
        """Send, wait, check. `start` of `total` clients had their turn before."""
        if not clients:
            return Exchanged()
        sent = dict(zip(clients, orders(clients), strict=True))
        kinds = {one.order.kind for one in sent.values()}
        phase = phase or "".join(kinds).rpartition(".")[2]

        def tell(answered: int, asked: int) -> None:
            for observer in self.method.observers:
                observer.progress(self.number, phase, start + answered, total or asked)

        done: Exchanged[T] = Exchanged()
        replies, done.bytes_down = self.federation.exchange(
            sent, self.number, self.timeout, tell, self.method.largest_answer
        )
        for name in sent:
            try:
                if name not in done.bytes_down:
                    raise Absent("it is not connected any more")
                if name not in replies:
                    raise Absent(f"no answer within {self.timeout:g} seconds")
                done.good[name] = check(name, replies[name])
                done.bytes_up[name] = size_in_bytes(replies[name].content)
            except Refused as error:
                done.failed[name] = error
            except Exception as error:  # a stranger's numbers found a way through the checks: it harms nobody else
                log.exception("round %d: the answer of client %s cannot be checked", self.number, name)
                done.failed[name] = Refused(f"its answer cannot be checked ({type(error).__name__}: {error})")
        return done


@dataclass
class Exchanged(Generic[T]):
    """What came of an exchange; by client, in a stable order."""

    good: dict[str, T] = field(default_factory=dict)
    failed: dict[str, Refused] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)

    def refuse(self, why: Mapping[str, Refused]) -> None:
        """Take these out of the good answers."""
        self.good = {name: answer for name, answer in self.good.items() if name not in why}
        self.failed = {**self.failed, **why}

    def __or__(self, other: "Exchanged[T]") -> "Exchanged[T]":
        return Exchanged(
            self.good | other.good,
            self.failed | other.failed,
            self.bytes_down | other.bytes_down,
            self.bytes_up | other.bytes_up,
        )


def in_words(failed: Mapping[str, Refused]) -> dict[str, str]:
    return {name: str(error) for name, error in failed.items()}


def by_name(clients: Iterable[str], values: np.ndarray) -> dict[str, float]:
    return dict(zip(clients, values.tolist(), strict=True))


def mean_metrics(metrics: Mapping[str, Metrics]) -> Metrics:
    """Every metric as unweighted mean over clients (the papers' mean test accuracy) and, `-weighted`, by test samples. One that
    is not defined for all, as AUROC with one label, is that of those who have it."""
    tested = [values for values in metrics.values() if values["num-samples"]]
    names = [
        name
        for name in dict.fromkeys(name for values in tested for name in values)
        if name in SOMETIMES or ("." in name and all(name in values for values in tested))
    ]
    result: Metrics = {}
    for name in names:
        known = [client for client in tested if name in client]
        weights, values = [client["num-samples"] for client in known], [client[name] for client in known]
        result[name] = float(np.mean(values))
        result[f"{name}-weighted"] = float(np.average(values, weights=weights))
    return result
