"""What a client keeps between messages: its own model parts, and its personal model as it would use it.

With `state-dir` in the node configuration these are files that survive a restart:

    <state-dir>/state/<name>.safetensors       own parts after the last training; under state/previous/ of the round before
    <state-dir>/models/<name>.safetensors      the personal model, with torch's names for its tensors

Without, as in `flwr run`'s simulation, the own parts live in Flower's context for the length of the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tasks.files import write_atomically
from tasks.models import Network
from wire.messages import Parts, pack, unpack


class Store(Protocol):
    def own_parts(self, before_round: int) -> Parts:
        """The parts kept in the latest round before `before_round`: a repeated round starts where it started first."""

    def keep(self, server_round: int, parts: Parts) -> None: ...

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None: ...


class FileStore:
    def __init__(self, directory: Path, name: str) -> None:
        if not name or name.startswith(".") or "/" in name:
            raise ValueError(f"client-name = {name!r}: must not be empty, start with '.' or contain '/'")
        self.current = directory / "state" / f"{name}.safetensors"
        self.previous = directory / "state" / "previous" / f"{name}.safetensors"
        self.model = directory / "models" / f"{name}.safetensors"

    def own_parts(self, before_round: int) -> Parts:
        for path in (self.current, self.previous):
            if path.exists():
                kept_round, parts = _read(path)
                if kept_round < before_round:
                    return parts
        return {}

    def keep(self, server_round: int, parts: Parts) -> None:
        if self.current.exists() and _read(self.current)[0] < server_round:
            write_atomically(self.previous, self.current.read_bytes())
        write_atomically(self.current, save(parts, metadata={"round": str(server_round)}))

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None:
        tensors = {name: value.cpu().numpy() for name, value in network.state_dict().items()}
        write_atomically(self.model, save(tensors, metadata=dict(facts)))


def _read(path: Path) -> tuple[int, Parts]:
    try:
        with safe_open(path, framework="numpy") as file:
            return int((file.metadata() or {})["round"]), {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: not a client state of Coterie ({error}); move it away to start afresh") from None


class ContextStore:
    """Keeps the own parts in Flower's context; personal models are not written anywhere."""

    def __init__(self, context: Context) -> None:
        self.state = context.state

    def own_parts(self, before_round: int) -> Parts:
        for slot in ("current", "previous"):
            if slot in self.state.array_records and self._round(slot) < before_round:
                return {name: np.array(value) for name, value in unpack(self.state.array_records[slot]).items()}
        return {}

    def keep(self, server_round: int, parts: Parts) -> None:
        if "current" in self.state.array_records and self._round("current") < server_round:
            self.state["previous"] = self.state.array_records["current"]
            self.state["previous-round"] = self.state.config_records["current-round"]
        self.state["current"] = pack(parts)
        self.state["current-round"] = ConfigRecord({"round": server_round})

    def save_model(self, network: Network, facts: Mapping[str, str]) -> None:
        """Nowhere to save it."""

    def _round(self, slot: str) -> int:
        value = self.state.config_records[f"{slot}-round"]["round"]
        assert isinstance(value, int)
        return value
