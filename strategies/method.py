"""The base of all methods: what a method is called, what it may be told, what it keeps, and the loop over its rounds.

A method says in `round` what happens in a round (strategies/rounds.py), in `test_orders` what each client needs to make and
test its model. Orders that only its own clients understand are answered by functions of the same class, marked with
`answers`: they run on the client. The loop does the rest, the same for all: wait for all clients, sample them by seed,
repeat or end a round without quorum, test all clients, tell the observers.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from pydantic import Field

from coterie.client.participant import Participant
from coterie.strategies.bounds import Bounds
from coterie.strategies.federation import Federation
from coterie.strategies.findings import Finding
from coterie.strategies.observer import Observer, Waiting
from coterie.strategies.pauses import Pauses
from coterie.strategies.rounds import Metrics, Round
from coterie.strategies.states import pack_state, restore
from coterie.wire.arrays import Parts, pack, unpack
from coterie.wire.checks import Layout, Update, check_evaluation, check_update
from coterie.wire.config import RunConfig, Settings
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.fingerprint import fingerprint_with
from coterie.wire.messages import Order, Sent
from coterie.wire.randomness import generator

log = logging.getLogger(__name__)

METRIC_BYTES = 4 * 2**20
Answer = Callable[[Participant, Any, RecordDict], RecordDict]
F = TypeVar("F", bound=Answer)


class MethodSettings(Settings):
    """A method's own keys, under its name."""


def setting(default: Any, description: str, **bounds: Any) -> Any:
    """A key with its default and its help text; bounds as in pydantic: ge=0, gt=0, le=1, lt=1."""
    return Field(default, description=description, **bounds)


def answers(order: type[Order]) -> Callable[[F], F]:
    """Marks what a client does when it gets this order: a static method, which runs on the client."""

    def mark(function: F) -> F:
        function.__dict__["order"] = order
        return function

    return mark


class Method(Strategy):
    name: ClassVar[str]
    version: ClassVar[int] = 1
    Settings: ClassVar[type[Settings]] = MethodSettings
    section: ClassVar[str | None] = None  # where its settings stand; None: under its name
    needs_server_data: ClassVar[bool] = False
    private: ClassVar[tuple[str, ...]] = ()  # the values of privacy.mode that it can do
    not_private: ClassVar[str] = "does not say that it can train privately"  # why it cannot do the others
    # Attributes that a restarted server needs, beside those of its base classes.
    saved: ClassVar[tuple[str, ...]] = ("bounds", "pauses", "patience_is_over")
    kinds: tuple[str, ...] = ("global", "personal")  # the kinds of model that are tested

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Whether it still trains privately what its base does, a class from outside has to say anew."""
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith("coterie.") and "private" not in vars(cls):
            cls.private = ()

    def __init__(self, config: RunConfig, settings: Any, layout: Layout, observers: Sequence[Observer] = ()) -> None:
        self.config = config
        self.settings = settings
        self.layout = layout
        self.observers = observers
        self.federation: Federation  # set by start()
        self.greeting: Mapping[str, str] = {}  # what every client is told with hello
        self.refused: Mapping[str, str] = {}  # clients that must not take part, and why
        self.model: Parts = {}  # the global model, set by start()
        self.bounds = Bounds(math.log(layout.classifier_shape[0]))
        self.pauses = Pauses()
        self.patience_is_over = False
        self.last_round = 0
        self.num_rounds = config.num_server_rounds

    # What a method says.

    @abstractmethod
    def round(self, round: Round) -> None:
        """One round, from training to the new models."""

    @abstractmethod
    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        """What these clients need to make and test their models."""

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Refuse a task that the method cannot do, before anything is begun."""

    def begin(self) -> None:
        """All clients are there and nothing was sent yet: refuse settings that do not suit them. Who needs fewer rounds than
        were asked for lowers `num_rounds`."""

    def uploads(self) -> tuple[str, ...]:
        """The parts that a client sends back after training."""
        return tuple(self.layout.parts)

    def check_update(self, client: str, reply: Message) -> Update:
        """The client's answer to its training order, or `Refused`."""
        return check_update(reply, self.layout, self.uploads())

    def check_test(self, client: str, reply: Message) -> Metrics:
        """The client's answer to its test order, or `Refused`."""
        return check_evaluation(reply, self.kinds)

    def largest_answer(self, sent: int) -> int:
        """How many bytes an answer to an order with models of so many bytes may have: as many, one more model, and metrics."""
        return sent + sum(part.nbytes for part in self.layout.parts.values()) + METRIC_BYTES

    def tested(self, round: Round) -> None:
        """All clients were tested: what the event line should tell of it."""

    def trainers(self) -> list[str]:
        """Who may be asked to train: all that are connected."""
        return self.federation.clients

    def sample(self, server_round: int) -> list[str]:
        """The clients that train in this round: a seeded share of those who can."""
        clients = self.trainers()
        rng = generator(self.config.seed, "sample", server_round)
        return [clients[i] for i in sorted(rng.permutation(len(clients))[: self.share_of(clients)])]

    def share_of(self, clients: Sequence[str]) -> int:
        """How many of these train in a round."""
        return min(len(clients), max(1, round(self.config.fraction_train * len(clients))))

    def findings(self) -> list[Finding]:
        """What the method found out about clients, after the last round."""
        return []

    @classmethod
    def handlers(cls) -> dict[str, tuple[type[Order], Answer]]:
        """What its clients do with which message: type of message -> order, function."""
        functions = [getattr(cls, name) for name in dir(cls) if hasattr(getattr(cls, name), "order")]
        return {function.order.kind: (function.order, function) for function in functions}

    # What it keeps.

    def state_dict(self) -> dict[str, Any]:
        """All that a restarted server needs: `arrays` of numpy, `values` that fit into JSON."""
        arrays = dict(self.model)
        values = {name: pack_state(name, getattr(self, name), arrays) for name in self._all_saved()}
        tag = {"method": self.name, "version": self.version, "settings": self.settings.as_config()}
        return {**tag, "round": self.last_round, "arrays": arrays, "values": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["method"], state["version"]) != (self.name, self.version):
            raise ConfigError(
                f"a state of {state['method']}, version {state['version']}, "
                f"cannot be loaded into {self.name}, version {self.version}"
            )
        mine = self.settings.as_config()
        if differing := [key for key in mine if state["settings"].get(key) != mine[key]]:
            key = differing[0]
            raise ConfigError(
                f"{self.section or self.name}.{key} = {mine[key]!r}: the state is of a run with {state['settings'].get(key)!r}; "
                "go on with the same settings"
            )
        self.last_round = state["round"]
        self.model = {name: np.array(state["arrays"][name]) for name in self.layout.parts}
        for name in self._all_saved():
            restore(self, name, state["values"][name], state["arrays"])

    def _all_saved(self) -> list[str]:
        return [name for base in reversed(type(self).__mro__) for name in vars(base).get("saved", ())]

    # The loop.

    def summary(self) -> None:
        log.info("%s on %s, %d rounds", self.name, self.config.task, self.num_rounds)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds after `last_round` (0, or that of the loaded state) up to `num_rounds`."""
        result = Result()
        self.num_rounds = num_rounds
        if not self.model:
            self.model = unpack(initial_arrays)
        self.summary()
        self.federation = Federation(
            grid,
            code=fingerprint_with(type(self)),
            join_timeout=self.config.join_timeout,
            quorum=self.config.quorum,
            greeting=self.greeting,
            pauses=self.pauses,
            barred=self.refused,
        )
        self.federation.on_wait = self._tell_waiting
        self.federation.gather(self.config.num_clients, begun=self.last_round > 0)
        if not any(hello.num_test for hello in self.federation.hellos.values()):
            raise RunFailed(
                "no client has a sample to test with: take fewer clients, more data, or a larger test-fraction"
            )
        self.begin()
        for observer in self.observers:
            observer.started(self.federation.hellos)
        for server_round in range(self.last_round + 1, self.num_rounds + 1):
            if self.patience_is_over:
                log.info("no client had a better round for %d rounds; the run ends", self.config.patience)
                break
            event = self._whole_round(Round(self, server_round, timeout))
            losses = [told.get("loss", 0.0) for told in event["train"].values()]
            result.train_metrics_clientapp[server_round] = MetricRecord({"train.loss": float(np.mean(losses))})
            if "mean" in event:
                result.evaluate_metrics_clientapp[server_round] = MetricRecord({**event["mean"]})
            if evaluate_fn and (central := evaluate_fn(server_round, pack(self.model))) is not None:
                result.evaluate_metrics_serverapp[server_round] = central
        result.arrays = pack(self.model)
        return result

    def _tell_waiting(self, waiting: Waiting) -> None:
        for observer in self.observers:
            observer.waiting(waiting)

    def _whole_round(self, round: Round) -> dict[str, Any]:
        started = time.monotonic()
        if self.bounds.good is None:
            self.bounds.begin(self.state_dict())
        self.round(round)
        round.tell(seconds=_since(started))
        if round.evaluates:
            started = time.monotonic()
            round.test()
            if why := self.bounds.ruined(self.kinds, round.event["evaluate"], round.not_tested):
                self._go_back(round, why)
            self.bounds.good = None
            self.tested(round)
            since = [told.get("rounds-since-best", 0) for told in round.event["evaluate"].values()]
            patience = self.config.patience
            self.patience_is_over = bool(patience and since) and not round.not_tested and min(since) >= patience
            round.tell(evaluate_seconds=_since(started))
        self.last_round = round.number
        if refused := self.federation.refused_by_name():
            round.tell(not_admitted=refused)
        for observer in self.observers:
            observer.round_ended(round.event, self.state_dict())
        return round.event

    def _go_back(self, round: Round, why: str) -> None:
        """As a restarted server would: a new object with the state of the last good test. Then test that."""
        good = self.bounds.good
        assert good is not None
        log.warning("round %d ruined the models and is rolled back to round %d: %s", round.number, good["round"], why)
        fresh = type(self)(self.config, self.settings, self.layout, self.observers)
        fresh.federation, fresh.num_rounds = self.federation, self.num_rounds
        fresh.load_state_dict(good)
        fresh.pauses = self.pauses
        fresh.begin()
        vars(self).clear()
        vars(self).update(vars(fresh))
        round.tell(rolled_back={"to-round": good["round"], "why": why})
        round.tested = {}
        round.test()

    def _by_start(self, *_: Any, **__: Any) -> NoReturn:
        """Flower's own loop would call these four; a Coterie method has whole rounds instead."""
        raise TypeError(f"{self.name} runs its rounds by itself: call start()")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _by_start


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
