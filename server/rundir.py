"""The directory of a run.

    config.json      every setting of the run
    events.jsonl     one line per round: metrics, weights, bytes, seconds, who was left out and why
    checkpoint/      the method's state after the last round; `checkpoint.previous/` the one before (checkpoints.py)
    result.json      what the run came to
    models/          in a simulation: every client's personal model
    keys/ logs/ clients/   as real processes (coterie/deploy.py): certificates, logs, what each client keeps

Files appear whole or not at all; a line that does not fit on the disk is taken back. A run goes on in the directory that it
left: from its checkpoint, with the event lines up to that, and only with the code and the settings that it began with.
"""

import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.server.checkpoints import EVENTS, State, cut_events, newest_checkpoint, save_checkpoint, write_json
from coterie.server.results import judgement_of, privacy_of, result_of
from coterie.strategies.federation import name_order
from coterie.strategies.judging import Judged
from coterie.strategies.observer import Observer
from coterie.wire.config import Value
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.files import append_line, flush_below, sweep
from coterie.wire.messages import Hello

MAY_DIFFER = {  # settings that a run may go on with though they are others
    *("num-server-rounds", "round-retries", "round-timeout", "join-timeout", "disk-patience"),
    *("run-dir", "data-root", "strategy-file", "observers"),
}


def new_run_dir(config: Mapping[str, Value]) -> Path:
    """Make the directory that `run-dir` names, or one under runs/; an existing one is never touched."""
    name = str(config["run-dir"])
    stem = name or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{config['strategy']}-{config['task']}"
    path = Path(stem).absolute()
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            if name or not path.is_dir():
                raise ConfigError(
                    f"run-dir = {name or str(path)!r}: exists already; choose another, nothing was changed"
                ) from None
            path = Path(f"{stem}-{number}").absolute()  # another run began in the same second
        except NotADirectoryError:
            raise ConfigError(
                f"run-dir = {name or str(path)!r}: a part of this path is a file; choose another"
            ) from None
    return path


def begun_run_dir(config: Mapping[str, Value]) -> Path | None:
    """The directory that `run-dir` names, if this very run was begun there."""
    path = Path(str(config["run-dir"])).absolute() / "config.json"
    begun = json.loads(path.read_bytes()) if config["run-dir"] and path.is_file() else {}
    return path.parent if config["run-id"] and begun.get("run-id") == config["run-id"] else None


class RunDirectory(Observer):
    def __init__(self, path: Path, config: Mapping[str, Value], code: str = "") -> None:
        self.path = path
        self.config = {**config, "run-dir": str(config["run-dir"])}
        self.code = code
        self.clients: list[str] = []
        self.last_evaluation: Mapping[str, Any] | None = None
        self.epsilon: dict[str, float] = {}  # of every client that trained with privacy
        self.state = self._go_on()
        write_json(path / "config.json", self.config)

    def _go_on(self) -> State | None:
        """The state that the run goes on from, if it was begun before."""
        state = newest_checkpoint(self.path)
        if state:
            self._check(state)
            self.clients = list(state["clients"])
        sweep(self.path)
        for event in cut_events(self.path, state["round"] if state else 0):
            self._note(event)
        return state

    def _check(self, state: State) -> None:
        if state["code"] != self.code:
            raise ConfigError(
                f"{self.path}: was begun with other code (fingerprint {state['code']}) than this ({self.code}); "
                "go on with the version of Coterie, and of the method, that it was begun with"
            )
        before = state["config"]
        for key in sorted({*before, *self.config} - MAY_DIFFER):
            if before.get(key) != self.config.get(key):
                raise ConfigError(
                    f"{key} = {self.config.get(key)!r}: the run in {self.path} was begun with {before.get(key)!r}; "
                    "go on with that, or begin a new run"
                )
        if int(self.config["num-server-rounds"]) < state["round"]:
            raise ConfigError(
                f"num-server-rounds = {self.config['num-server-rounds']}: the run in {self.path} has {state['round']} rounds "
                "already; ask for more, or begin a new run"
            )

    def started(self, clients: Mapping[str, Hello]) -> None:
        self.clients = list(dict.fromkeys([*self.clients, *clients]))

    def round_ended(self, event: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        flush_below(self.path / "state")  # of a simulation's clients: a checkpoint speaks of what is on the disk
        append_line(self.path / EVENTS, json.dumps(event))
        mine = {"code": self.code, "config": self.config, "clients": self.clients}
        save_checkpoint(self.path, {**state, **mine})
        (self.path / "result.json").unlink(missing_ok=True)  # of fewer rounds
        self._note(event)

    def _note(self, event: Mapping[str, Any]) -> None:
        told = [*event.get("train", {}), *event.get("evaluate", {})]
        self.clients = list(dict.fromkeys([*self.clients, *told]))  # who came later, too
        self.epsilon |= {name: told["epsilon"] for name, told in event.get("train", {}).items() if "epsilon" in told}
        if "evaluate" in event:
            self.last_evaluation = event

    @property
    def tested(self) -> Mapping[str, Any]:
        """By client, how its models did in the last test."""
        return self.last_evaluation["evaluate"] if self.last_evaluation else {}

    def finish(self, judged: Judged | None = None) -> dict[str, Any]:
        assert self.last_evaluation is not None  # the last round is always evaluated
        result = result_of(self.config, sorted(self.clients, key=name_order), self.last_evaluation)
        if not result["models"]:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(result["not-tested"].items())[:3])
            raise RunFailed(f"round {result['rounds']}: no client could be tested. {reasons}")
        if judged:
            result |= judgement_of(judged)
        if self.config.get("privacy.mode", "off") != "off":
            result["privacy"] = privacy_of(self.config, self.epsilon)
        write_json(self.path / "result.json", result)
        return result
