"""The base of all methods: a Flower strategy that owns the round loop.

A method says what each client is told (`train_content`, `evaluate_content`) and what becomes of the answers (`aggregate`).
The base does the rest, the same for all: wait for all clients, sample them by seed, send, check every reply, repeat or end a
round without quorum, evaluate all clients, tell the observers.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, ClassVar, TypeVar

import numpy as np
from coterie.strategies.federation import Federation, Progress, name_order
from coterie.strategies.observer import Observer
from coterie.wire.arrays import Parts, pack, unpack
from coterie.wire.checks import Layout, Update, check_evaluation, check_update
from coterie.wire.config import RunConfig, Settings
from coterie.wire.errors import Refused, RunFailed
from coterie.wire.fingerprint import fingerprint
from coterie.wire.messages import EVALUATE, TRAIN
from coterie.wire.randomness import generator
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

WAVE_BYTES = 512 * 2**20  # of models in flight while clients are tested
Metrics = dict[str, float]
T = TypeVar("T")


class NoSettings(Settings):
    """For a method without keys of its own."""


class Method(Strategy):
    name: ClassVar[str]
    version: ClassVar[int] = 1
    settings_class: ClassVar[type[Settings]] = NoSettings
    section: ClassVar[str | None] = None  # where its settings stand; None: under its name
    needs_server_data: ClassVar[bool] = False
    private: ClassVar[tuple[str, ...]] = ("dp-sgd", "weights")  # the values of privacy.mode that it can do
    not_private: ClassVar[str] = ""  # why it cannot do the others
    train_type: ClassVar[str] = TRAIN
    evaluate_type: str = EVALUATE
    kinds: tuple[str, ...] = ("global", "personal")  # the kinds of model that are tested

    def __init__(self, config: RunConfig, settings: Any, layout: Layout, observers: Sequence[Observer] = ()) -> None:
        self.config = config
        self.settings = settings
        self.layout = layout
        self.observers = observers
        self.model: Parts = {}  # the global model, set by start()
        self.last_round = 0
        self.num_rounds = config.num_server_rounds
        self.tested: dict[str, Metrics] = {}
        self._packed: dict[tuple[str, ...], ArrayRecord] = {}

    # What a method defines.

    @abstractmethod
    def uploads(self) -> tuple[str, ...]:
        """The parts that a client sends back after training."""

    @abstractmethod
    def train_content(self, client: str, server_round: int) -> RecordDict:
        """What this client is told to do in this round."""

    @abstractmethod
    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        """Use the checked updates, at least one; returns what the event line should tell beside the metrics."""

    @abstractmethod
    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        """What this client needs to make and test its models."""

    def prepare(self, server_round: int, clients: list[str]) -> None:
        """Before the messages to these clients are made: what is better done for all of them at once."""

    def begin(self) -> None:
        """All clients are there and nothing was sent yet: refuse settings that do not suit them. Who needs fewer rounds than
        were asked for lowers `num_rounds`."""

    def after_train(self, server_round: int, clients: list[str], timeout: float) -> None:
        """A second exchange of the round with the clients whose updates were used. What it finds out about their models
        on the test samples it puts into `self.tested`: these clients are not tested again in this round."""

    def check_update(self, client: str, reply: Message) -> Update:
        """The client's answer to its training order, or `Refused`."""
        return check_update(reply, self.layout, self.uploads())

    def check_test(self, client: str, reply: Message) -> Metrics:
        """The client's answer to its evaluation order, or `Refused`."""
        return check_evaluation(reply, self.kinds)

    def matrices(self) -> dict[str, tuple[list[str], np.ndarray]]:
        """What the method found out about pairs of clients: name -> (clients, a value for each pair)."""
        return {}

    def benefits(self) -> dict[str, Any]:
        """Who is helped by whom: `collaborators` of each client, and, where the method formed some, `coalitions`."""
        return {}

    def grouping(self) -> dict[str, Any]:
        """Who should train together: `coalitions` (name -> members), `mixing` (client -> model -> share), and `vectors`, where
        each client stands; {} for a method without coalitions."""
        return {}

    def judgement(self) -> dict[str, Any]:
        """Whom the method found out to do harm: `suspects`, and what they were judged by; {} for a method that judges nobody."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that a restarted server needs: `arrays` of numpy, `values` that fit into JSON."""
        about = {"method": self.name, "version": self.version, "round": self.last_round}
        return {**about, "arrays": dict(self.model), "values": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["method"], state["version"]) != (self.name, self.version):
            raise ValueError(
                f"a state of {state['method']}, version {state['version']}, "
                f"cannot be loaded into {self.name}, version {self.version}"
            )
        self.last_round = state["round"]
        self.model = {name: np.asarray(state["arrays"][name]) for name in self.layout.parts}

    # Flower's interface, written once for all methods.

    def summary(self) -> None:
        log(INFO, "%s on %s, %d rounds", self.name, self.config.task, self.config.num_server_rounds)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        return self._messages(self.train_type, self.sample(server_round), self.train_content, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and use the good ones; (None, None) without quorum, and then nothing is changed."""
        replies = list(replies)
        updates, refused = self._sort_out(replies, self.check_update)
        self.event["left-out"] |= refused
        if len(updates) < self.needed:
            return None, None
        self.event["train"] = {name: {"num-samples": u.num_samples, **u.metrics} for name, u in updates.items()}
        self.event["bytes-up"] = {name: u.num_bytes for name, u in updates.items()}
        self.event |= self.aggregate(server_round, updates)
        self._packed.clear()
        loss = float(np.mean([u.metrics.get("loss", 0.0) for u in updates.values()]))
        return self.packed(self.uploads()), MetricRecord({"train.loss": loss})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        return self._messages(self.evaluate_type, self.federation.clients, self.evaluate_content, server_round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        answered, refused = self._sort_out(replies, self.check_test)
        metrics = {name: (self.tested | answered)[name] for name in sorted(self.tested | answered, key=name_order)}
        mean = mean_metrics(metrics)
        self.event |= {"evaluate": metrics, "mean": mean, "not-tested": self.event.get("not-tested", {}) | refused}
        return MetricRecord({**mean})

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
        self.federation = Federation(grid, code=fingerprint(), join_timeout=self.config.join_timeout)
        self.federation.gather(self.config.num_clients)
        if not any(hello.num_test for hello in self.federation.hellos.values()):
            raise RunFailed(
                "no client has a sample to test with: take fewer clients, more data, or a larger test-fraction"
            )
        self.begin()
        for observer in self.observers:
            observer.started(self.federation.hellos)
        for server_round in range(self.last_round + 1, self.num_rounds + 1):
            self.event: dict[str, Any] = {"round": server_round, "left-out": {}}
            self.tested = {}
            result.arrays, metrics = self._train(server_round, train_config or ConfigRecord(), timeout)
            result.train_metrics_clientapp[server_round] = metrics
            if self.evaluates(server_round):
                metrics = self._evaluate(server_round, evaluate_config or ConfigRecord(), timeout)
                result.evaluate_metrics_clientapp[server_round] = metrics
            if evaluate_fn and (central := evaluate_fn(server_round, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = central
            self.last_round = server_round
            for observer in self.observers:
                observer.round_ended(self.event, self.state_dict())
        return result

    # Parts of a round.

    def evaluates(self, server_round: int) -> bool:
        return server_round % self.config.evaluate_every == 0 or server_round == self.num_rounds

    def trainers(self) -> list[str]:
        """Who may be asked to train: all that are connected."""
        return self.federation.clients

    def sample(self, server_round: int) -> list[str]:
        """The clients that train in this round: a seeded share of those who can."""
        clients = self.trainers()
        number = min(len(clients), max(1, round(self.config.fraction_train * len(clients))))
        rng = generator(self.config.seed, "sample", server_round)
        return [clients[i] for i in sorted(rng.permutation(len(clients))[:number])]

    def packed(self, parts: tuple[str, ...]) -> ArrayRecord:
        """These parts of the global model as they travel, made once per round."""
        if parts not in self._packed:
            self._packed[parts] = pack({name: self.model[name] for name in parts})
        return self._packed[parts]

    def _train(self, server_round: int, config: ConfigRecord, timeout: float) -> tuple[ArrayRecord, MetricRecord]:
        started = time.monotonic()
        for _ in range(self.config.round_retries + 1):
            messages = self.configure_train(server_round, ArrayRecord(), config, self.federation.grid)
            self.needed = max(1, math.ceil(self.config.quorum * len(messages)))
            replies, missing = self.federation.exchange(messages, timeout, self._progress(server_round, "train"))
            self.event["left-out"] = missing
            arrays, metrics = self.aggregate_train(server_round, replies)
            for name, reason in self.event["left-out"].items():
                log(WARNING, "round %d: client %s is left out: %s", server_round, name, reason)
            if arrays is not None and metrics is not None:
                self.event["bytes-down"] = self.federation.sizes(messages)
                self.after_train(server_round, list(self.event["train"]), timeout)
                self.event["seconds"] = round(time.monotonic() - started, 3)
                return arrays, metrics
            self.federation.welcome()
        left_out = self.event["left-out"]
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:3])
        raise RunFailed(
            f"round {server_round}: {len(messages) - len(left_out)} of {len(messages)} clients answered well and quorum = "
            f"{self.config.quorum:g} needs {self.needed}, in {self.config.round_retries + 1} tries. {reasons}"
        )

    def _evaluate(self, server_round: int, config: ConfigRecord, timeout: float) -> MetricRecord:
        """All clients that were not tested in this round yet."""
        started = time.monotonic()
        size = sum(part.nbytes for part in self.layout.parts.values())
        clients = [name for name in self.federation.clients if name not in self.tested]
        replies, silent, _ = self._in_waves(
            self.evaluate_type, clients, self.evaluate_content, server_round, size, timeout
        )
        self.event["not-tested"] = silent
        metrics = self.aggregate_evaluate(server_round, replies)
        for name, reason in self.event["not-tested"].items():
            log(WARNING, "round %d: client %s could not be tested: %s", server_round, name, reason)
        self.event["evaluate-seconds"] = round(time.monotonic() - started, 3)
        self.federation.welcome()
        return metrics

    def _in_waves(
        self,
        kind: str,
        clients: list[str],
        content: Callable[[str, int], RecordDict],
        server_round: int,
        size: int,
        timeout: float,
    ) -> tuple[list[Message], dict[str, str], dict[str, int]]:
        """Messages of about `size` bytes to many clients, a few at a time: with a model for each of a thousand clients
        they would not fit into memory at once. Returns replies, who was silent and why, and the bytes sent to each."""
        step = max(8, WAVE_BYTES // max(size, 1))
        tell = self._progress(server_round, kind.rpartition(".")[2])
        replies: list[Message] = []
        silent: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for start in range(0, len(clients), step):
            messages = self._messages(kind, clients[start : start + step], content, server_round)
            answers, missing = self.federation.exchange(messages, timeout, _from(start, len(clients), tell))
            replies += answers
            silent |= missing
            sizes |= self.federation.sizes(messages)
        return replies, silent, sizes

    def _messages(
        self, kind: str, clients: list[str], content: Callable[[str, int], RecordDict], server_round: int
    ) -> list[Message]:
        self.prepare(server_round, clients)
        return [self.federation.message(name, kind, content(name, server_round), server_round) for name in clients]

    def _sort_out(
        self, replies: Iterable[Message], check: Callable[[str, Message], T]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What passed its check, and why the rest did not; by client, in a stable order."""
        good: dict[str, T] = {}
        refused: dict[str, str] = {}
        for name, reply in self.federation.by_name(replies).items():
            try:
                good[name] = check(name, reply)
            except Refused as error:
                refused[name] = str(error)
        return good, refused

    def _progress(self, server_round: int, phase: str) -> Progress:
        def tell(done: int, total: int) -> None:
            for observer in self.observers:
                observer.progress(server_round, phase, done, total)

        return tell


def _from(start: int, total: int, tell: Progress) -> Progress:
    """Progress of one wave as progress of all."""
    return lambda done, _: tell(start + done, total)


def mean_metrics(metrics: Mapping[str, Metrics]) -> Metrics:
    """Every metric as unweighted mean over clients (the papers' mean test accuracy) and, `-weighted`, by test samples."""
    tested = [values for values in metrics.values() if values["num-samples"]]
    names = [
        name
        for name in (tested[0] if tested else {})
        if name != "num-samples" and all(name in values for values in tested)
    ]
    weights = [values["num-samples"] for values in tested]
    result: Metrics = {}
    for name in names:
        values = [client[name] for client in tested]
        result[name] = float(np.mean(values))
        result[f"{name}-weighted"] = float(np.average(values, weights=weights))
    return result
