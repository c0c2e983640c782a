"""A federation in this process in which things go wrong: what `coterie.testing` and tests are made with."""

import functools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from safetensors.numpy import load_file

from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import checked_config, initial_layout
from coterie.server.rundir import RunDirectory
from coterie.strategies.method import Method
from coterie.strategies.observer import Observer
from coterie.strategies.registry import method_of, parse_config, section_of
from coterie.wire.arrays import pack
from coterie.wire.config import Value
from coterie.wire.messages import HELLO

CLIENTS = ["0", "1", "2", "3"]
TINY: dict[str, Value] = {
    **{"task": "digits", "partition": "iid", "num-clients": len(CLIENTS)},
    **{"num-server-rounds": 3, "local-epochs": 1, "momentum": 0.5, "join-timeout": 5.0},
    **{"server-data": "100", "test-fraction": 0.7},
}
NETWORK = """
from torch import nn

def build(input_shape, num_outputs):  # with BatchNorm, so that a model has all five parts
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, num_outputs)
"""
TRAIN, TEST, ASK = "train", "test", "ask"  # what an exchange is for; ASK: something else
Tamper = Callable[[Message, Message, str], Message | None]  # (asked, answered, client) -> what arrives; None: nothing


class TamperedGrid(SimulationGrid):
    """The simulation's grid; it writes down all messages, and what a client answers may be changed on its way."""

    def __init__(
        self, config: Mapping[str, Any], state_dir: Path, tamper: Tamper | None, names: Sequence[str], workers: Workers
    ) -> None:
        super().__init__(workers, int(config["num-clients"]), config, str(state_dir))
        self.tamper = tamper
        self.away: set[str] = set()  # clients that are not connected
        self.phase = ASK
        self.asked_more = False  # there was another exchange than training and tests
        self.sent: list[tuple[str, Message]] = []
        self.answered: list[tuple[str, Message]] = []
        for context, name in zip(self.contexts.values(), names, strict=False):
            context.node_config["client-name"] = name

    def name_of(self, node: int) -> str:
        config = self.contexts[node].node_config
        return str(config.get("client-name", config["partition-id"]))

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if self.name_of(node) not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        identifiers = list(super().push_messages(messages))
        if self.workers.count:
            return identifiers
        answers = dict(self.workers.done)
        self.workers.done.clear()
        for identifier, message in zip(identifiers, messages, strict=True):
            name, answer = self.name_of(message.metadata.dst_node_id), answers[identifier]
            self.asked_more |= self.phase == ASK and message.metadata.message_type != HELLO
            self.sent.append((name, message))
            self.answered.append((name, answer))
            arrived = self.tamper(message, answer, name) if self.tamper else answer
            if arrived is not None:
                arrived.metadata.__dict__["_reply_to_message_id"] = identifier
                self.workers.done.append((identifier, arrived))
        self.phase = ASK
        return identifiers


Fault = Callable[[TamperedGrid, Message, Message, str], Message | None]


@contextmanager
def phases_of(method: Method, grid: TamperedGrid) -> Iterator[None]:
    """The grid knows by these calls what it carries: every training begins with `sample`, every test with `test_orders`."""

    def noticed(phase: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            grid.phase = phase
            return original(*args)

        return call

    vars(method).update(sample=noticed(TRAIN, method.sample), test_orders=noticed(TEST, method.test_orders))
    yield
    for name in ("sample", "test_orders"):
        vars(method).pop(name, None)  # a method that was rolled back has lost them


@dataclass
class Snapshot:
    """All that is there after a round: the server's state, through its files, and what the clients keep."""

    state: dict[str, Any]
    clients: Path


@dataclass
class Played(Observer):
    """A federation and what came of it."""

    path: Path
    method: Method
    grid: TamperedGrid
    after: Callable[["Played", int], None] | None  # what happens when a round has ended
    events: list[Any] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        line = (self.path / "events.jsonl").read_text().splitlines()[-1]
        self.events.append(json.loads(line, parse_constant=_no_json))
        if self.after:
            self.after(self, len(self.events))

    def keep(self, number: int) -> None:
        """A snapshot."""
        told = json.loads((self.path / "checkpoint" / "state.json").read_text(), parse_constant=_no_json)
        arrays = load_file(self.path / "checkpoint" / "state.safetensors")
        clients = self.path.parent / f"{self.path.name}-clients-{number}"
        clients.mkdir()
        if (self.path / "state").exists():
            shutil.copytree(self.path / "state", clients / "state")
        self.snapshots.append(Snapshot(told | {"arrays": arrays}, clients))

    def outcome(self) -> dict[str, Any]:
        """What must be the same, whatever happened on the way."""
        models = {path.name: path.read_bytes() for path in sorted((self.path / "models").glob("*"))}
        state = self.method.state_dict()
        values = json.loads(json.dumps({key: value for key, value in state.items() if key != "arrays"}))
        arrays = {name: (value.dtype.str, value.tobytes()) for name, value in state["arrays"].items()}
        return {"result.json": self.result, "state": values, "arrays": arrays, "personal models": models}

    @property
    def result(self) -> Any:
        return json.loads((self.path / "result.json").read_text(), parse_constant=_no_json)

    def must_be_finite(self) -> None:
        for name, value in self.method.state_dict()["arrays"].items():
            assert np.isfinite(value).all(), f"the server's {name} has numbers that are not finite"
        for path in (self.path / "models").glob("*"):
            for name, value in load_file(path).items():
                assert np.isfinite(value).all(), f"{name} of {path.stem}'s model has numbers that are not finite"

    def must_have_tested(self, clients: Sequence[str]) -> None:
        told = self.events[-1]
        assert set(told["evaluate"]) == set(clients), (
            f"tested were {sorted(told['evaluate'])}, not {clients}; {told['not-tested']}"
        )


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


class Trial:
    """The federations in which one method is tried."""

    def __init__(self, strategy: str, values: Mapping[str, Value], home: Path) -> None:
        (home / "network.py").write_text(NETWORK)
        self.values = {**TINY, "model": str(home / "network.py"), "strategy": strategy, **values}
        self.home = home
        self.count = 0
        self._whole: Played | None = None

    def config(self, **values: Value) -> dict[str, Value]:
        return checked_config({**self.values, **{key.replace("_", "-"): value for key, value in values.items()}})

    def play(
        self,
        *,
        workers: int = 0,
        nodes: int = 0,
        tamper: Fault | None = None,
        after: Callable[[Played, int], None] | None = None,
        away: Sequence[str] = (),
        data: Mapping[str, str] | None = None,
        start: Snapshot | None = None,
        **values: Value,
    ) -> Played:
        """All rounds, or those after a snapshot. Clients in `away` are not there at first, those in `data` have their own."""
        self.count += 1
        path = self.home / str(self.count)
        path.mkdir()
        config = self.config(**values)
        run, settings = parse_config(config)
        layout = initial_layout(run)
        name, file = run.strategy, run.strategy_file
        directory, observers = RunDirectory(path, config), list[Observer]()
        method = method_of(name, file)(run, settings[section_of(name, file)], layout, observers)
        pool = Workers(workers)
        try:
            grid = TamperedGrid({**config, "num-clients": nodes or run.num_clients}, path, None, (), pool)
            grid.tamper = functools.partial(tamper, grid) if tamper else None
            grid.away = set(away)
            for client, place in (data or {}).items():
                grid.contexts[2 + int(client)].node_config["data"] = place
            played = Played(path, method, grid, after)
            observers += [directory, played]
            if start:
                shutil.copytree(start.clients, path, dirs_exist_ok=True)
                method.load_state_dict(start.state)
            with phases_of(method, grid):
                method.start(grid, pack(layout.parts), num_rounds=run.num_server_rounds, timeout=run.round_timeout)
            directory.finish()
        finally:
            pool.close()
        return played

    def whole(self) -> Played:
        """A federation in which nothing happens, with a snapshot after each round."""
        if self._whole is None:
            self._whole = self.play(after=Played.keep, fraction_train=0.75)
        return self._whole
