"""What many tests need: Flower's identity, one thread, and a whole federation inside this process."""

import json
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import load_file

from coterie.runtime.simulation import Workers
from coterie.server.app import run
from coterie.simulate import prepare
from coterie.strategies.registry import method_of, parse_config
from coterie.trial import Tamper, TamperedGrid
from coterie.wire.arrays import unpack
from coterie.wire.messages import MODEL

hypothesis.settings.register_profile("patient", deadline=None)  # how long an example takes is the machine's business
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _quiet_machine() -> None:
    torch.set_num_threads(1)
    # A shell makes its background jobs deaf to Ctrl-C, and the programs that tests start would be so, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


@pytest.fixture
def data_of() -> Callable[[Path], dict[str, Any]]:
    """What a report was drawn from: `data_of(run / "report.html")`."""

    def read(path: Path) -> dict[str, Any]:
        (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
        return dict(json.loads(text))

    return read


@dataclass
class Federated:
    """What a run left behind."""

    result: dict[str, Any]
    path: Path
    grid: TamperedGrid

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "events.jsonl").read_text().splitlines()]

    @property
    def model(self) -> dict[str, np.ndarray]:
        """The server's arrays after the last round."""
        return load_file(self.path / "checkpoint" / "state.safetensors")

    def state(self, client: str) -> dict[str, np.ndarray]:
        """What a client keeps for itself."""
        return load_file(self.path / "state" / f"{client}.safetensors")

    def sent(self, server_round: int, kind: str = "train") -> dict[str, dict[str, np.ndarray]]:
        """The model parts that each client got in a round."""
        return _parts_of(self.grid.sent, server_round, kind)

    def uploaded(self, server_round: int) -> dict[str, dict[str, np.ndarray]]:
        """The model parts that each client sent after training in a round."""
        return _parts_of(self.grid.answered, server_round, "train")

    def exchanges(self, server_round: int, kind: str = "train.personalize") -> dict[str, tuple[Message, Message]]:
        """Client -> (asked, answered), of one kind of message in a round."""
        pairs = zip(self.grid.sent, self.grid.answered, strict=True)
        return {
            name: (asked, answered)
            for (name, asked), (_, answered) in pairs
            if asked.metadata.message_type == kind and asked.metadata.group_id == str(server_round)
        }

    def personal(self, client: str) -> dict[str, np.ndarray]:
        return load_file(self.path / "models" / f"{client}.safetensors")


def _parts_of(messages, server_round: int, kind: str) -> dict[str, dict[str, np.ndarray]]:
    return {
        name: unpack(message.content.array_records[MODEL])
        for name, message in messages
        if message.metadata.message_type == kind and message.metadata.group_id == str(server_round)
    }


SMALL = {
    "strategy": "fedavg",
    "task": "digits",
    "num-clients": 4,
    "partition": "iid",
    "num-server-rounds": 2,
    "local-epochs": 1,
    "round-timeout": 30.0,
    "join-timeout": 5.0,
    "baseline": "none",
}
QUICK = {
    "spo.hidden": 8,
    "spo.server-steps": 2,
    "spo.rays": 4,
    "spo.search-steps": 3,
    "spo.local-steps": 2,
    "spo.fine-tune-epochs": 1,
    "pfedhn.hidden": 8,
    "pfedhn.server-steps": 2,
    "pfedme.inner-steps": 2,
}


@pytest.fixture
def federate(tmp_path):
    """Run a small federation on digits: `federate(strategy="fedper", **{"num-clients": 3})`. With `path`, go on there."""
    count = 0

    def go(
        tamper: Tamper | None = None,
        names: Sequence[str] = (),
        workers: int = 0,
        path: Path | None = None,
        **values: Any,
    ) -> Federated:
        nonlocal count
        count += 1
        path = path or tmp_path / f"run-{count}"
        path.mkdir(exist_ok=True)
        given = {**SMALL, **{key.replace("_", "-"): value for key, value in values.items()}}
        config, _ = parse_config(given)
        if method_of(config.strategy, config.strategy_file).needs_server_data:
            given = {"server-data": "100", **given}
        config = prepare({**QUICK, **given})
        pool = Workers(workers)
        try:
            grid = TamperedGrid(config, path, tamper, names, pool)
            return Federated(run(grid, config, path), path, grid)
        finally:
            pool.close()

    return go
