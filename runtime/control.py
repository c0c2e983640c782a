"""The SuperLink as our commands use it: register client keys, see who is there, submit a run, follow it.

The same calls as those of Flower's `flwr` command, without a new Python process for each.
"""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization

from coterie.runtime.flower import (
    ControlHttpClient,
    Fab,
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
    build_fab_from_files,
    fab_to_proto,
    user_config_from_proto,
    user_config_to_proto,
)
from coterie.wire.config import Value
from coterie.wire.errors import RunFailed
from coterie.wire.fingerprint import source_files

POLL_SECONDS = 0.2
LOG_SECONDS = 2.0  # for the first piece of a log
FAILED_PREFIX = "ServerApp failed with exception: "
REST_SECONDS = 30.0  # until the rest of a run that was killed is submitted, at most


@dataclass(frozen=True)
class FlowerRun:
    """A run as the SuperLink knows it."""

    number: int
    config: Mapping[str, Value]  # of `flwr run`: what differs from the defaults
    state: str  # pending, starting, running, finished
    ending: str  # completed, failed, stopped
    why: str
    submitted: float  # seconds since 1970
    now: float

    @classmethod
    def of(cls, run: Any, now: str) -> "FlowerRun":
        config = user_config_from_proto(run.override_config)
        status, why = run.status, str(run.status.details).removeprefix(FAILED_PREFIX)
        times = (datetime.fromisoformat(text).timestamp() for text in (run.pending_at, now))
        return cls(int(run.run_id), config, str(status.status), str(status.sub_status), why, *times)


class Control:
    def __init__(self, address: str, authority: Path) -> None:
        self.client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def wait_until_up(self, timeout: float, check: Callable[[], None]) -> None:
        def answers() -> bool:
            try:
                return self.online() >= 0
            except httpx.TransportError:
                return False

        _wait_for(answers, timeout, check, "the SuperLink did not answer")

    def wait_for_clients(self, number: int, timeout: float, check: Callable[[], None]) -> None:
        _wait_for(lambda: self.online() >= number, timeout, check, f"not all {number} clients connected")

    def nodes(self) -> list[Any]:
        """All that were ever registered."""
        return list(self.client.ListNodes(ListNodesRequest()).nodes_info)

    def online(self) -> int:
        return sum(node.status == "online" for node in self.nodes())

    def register(self, public_key: Path) -> None:
        """Under the name of the file: it is the client's, whatever the client says."""
        self.client.RegisterNode(RegisterNodeRequest(public_key=read_public_key(public_key), name=public_key.stem))

    def unregister(self, node: int) -> None:
        self.client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def submit(self, bundle: bytes, config: Mapping[str, Value]) -> int:
        """`config` is what the bundle has, too: given here, those who list runs see it."""
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        request = StartRunRequest(fab=fab, override_config=user_config_to_proto(dict(config)))
        return int(self.client.StartRun(request).run_id)

    def runs(self) -> list["FlowerRun"]:
        """All that the SuperLink knows of, the newest first."""
        told = self.client.ListRuns(ListRunsRequest())
        found = [FlowerRun.of(run, told.now) for run in told.run_dict.values()]
        return sorted(found, key=lambda run: run.submitted, reverse=True)

    def wait_for_end(self, run: int, timeout: float) -> None:
        def ended() -> bool:
            status = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
            return bool(status.status == "finished")

        _wait_for(ended, timeout, lambda: None, f"run {run} did not end")

    def stop(self, run: int) -> None:
        self.client.StopRun(StopRunRequest(run_id=run))

    def log(self, run: int, patience: float = 0.0) -> Iterator[str]:
        """The ServerApp's log, line by line, until the run ends; the SuperLink may be away for `patience` seconds."""
        rest, seen, deadline = "", 0.0, time.monotonic() + patience
        while True:
            try:
                for piece in self.client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=seen)):
                    seen, deadline = piece.latest_timestamp, time.monotonic() + patience
                    *lines, rest = (rest + piece.log_output).split("\n")
                    yield from lines
                break
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
        yield rest

    def log_so_far(self, run: int) -> list[str]:
        """What the ServerApp logged until now; nothing if it did not yet. The stream of a run that goes on has no end."""
        pieces: list[str] = []

        def read() -> None:
            with contextlib.suppress(httpx.HTTPError):
                pieces.append(next(self.client.StreamLogs(StreamLogsRequest(run_id=run))).log_output)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(LOG_SECONDS)
        return "".join(pieces).split("\n")

    def status(self, run: int) -> Any:
        """`status`, `sub_status` and `details`; None if there is no such run, or no longer."""
        try:
            return self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        except httpx.HTTPStatusError as error:
            if error.response.is_server_error:  # then nobody knows
                raise
            return None

    def rest_of(self, run: int, identity: str, patience: float = 0.0) -> int | None:
        """The run that goes on with this one, which has ended. One that was killed gets one soon."""
        deadline = 0.0
        while True:
            runs = self._runs(ListRunsRequest(), patience)
            same = [key for key, found in runs.items() if found.override_config["run-id"].string == identity]
            later = [key for key in same if (runs[key].pending_at, key) > (runs[run].pending_at, run)]
            if later:
                return int(max(later, key=lambda key: runs[key].pending_at))
            status = runs[run].status
            deadline = deadline or time.monotonic() + REST_SECONDS
            known_end = status.sub_status != "failed" or status.details.startswith(FAILED_PREFIX)
            if known_end or time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)

    def _runs(self, request: Any, patience: float) -> Any:
        """The SuperLink may be away for `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self.client.ListRuns(request).run_dict
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def failure(self, run: int, patience: float = 0.0) -> str | None:
        """Why the run did not complete; None if it did."""
        status = self._runs(ListRunsRequest(run_id=run), patience)[run].status
        if status.sub_status == "completed":
            return None
        return str(status.details).removeprefix(FAILED_PREFIX) or str(status.sub_status)

    def close(self) -> None:
        self.client.close()


def read_public_key(path: Path) -> bytes:
    """As Flower keeps it."""
    key = serialization.load_ssh_public_key(path.read_bytes())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _wait_for(true: Callable[[], bool], timeout: float, check: Callable[[], None], complaint: str) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        check()
        if time.monotonic() > deadline:
            raise RunFailed(f"{complaint} within {timeout:g} seconds (join-timeout)")
        time.sleep(POLL_SECONDS)


def bundle(config: Mapping[str, Value], code: Mapping[str, Path] | None = None) -> bytes:
    """This very code, or other, as a Flower app whose configuration is `config`; the same wherever Coterie is installed."""
    files: dict[str, bytes | Path] = {"pyproject.toml": _project(config).encode(), **(code or source_files())}
    return bytes(build_fab_from_files(files)[0])


def _project(config: Mapping[str, Value]) -> str:
    lines = [
        "[project]",
        'name = "coterie"',
        f'version = "{metadata.version("coterie")}"',
        "[tool.flwr.app]",
        'publisher = "coterie"',
        "[tool.flwr.app.components]",
        'serverapp = "coterie:server_app"',
        'clientapp = "coterie:client_app"',
        "[tool.flwr.app.config]",
        *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in config.items()),
    ]
    return "\n".join(lines) + "\n"
