"""What `coterie server` tells a Prometheus server, in Prometheus's text format: `GET /metrics`, read-only.

Rounds, seconds and bytes are read from the event lines of the runs below the server's directory, so they are right after a
restart, too. No name of a client, no setting and no path is among them. Counters only ever grow: a round that is done again
after a kill counts once.
"""

import contextlib
import json
import mmap
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

from coterie.wire.errors import ConfigError

MOST_REQUESTS = 8  # at once
PATIENCE_SECONDS = 5.0  # for somebody who asks and does not go on
CLIENT_STATES = {"online": "connected", "unregistered": "revoked"}  # others are away
RUN_STATES = ("pending", "starting", "running", "completed", "failed", "stopped")
TALLY = "refused.count"  # in the server's directory
TALLY_VARIABLE = "COTERIE_REFUSED"  # tells the SuperLink where it is
WHAT = {  # name: kind, help
    "coterie_info": ("gauge", "Always 1; the label is the version."),
    "coterie_clients": ("gauge", "Clients by state: connected, away, revoked."),
    "coterie_runs": (
        "gauge",
        "Runs that were submitted, by state: pending to running, then completed, failed or stopped.",
    ),
    "coterie_requests_refused_total": ("counter", "Requests of clients whose key is not registered."),
    "coterie_rounds_total": ("counter", "Rounds that ended, of all runs."),
    "coterie_left_out_total": ("counter", "Clients left out of a round: no answer in time, or a refused one."),
    "coterie_seconds_total": ("counter", "Seconds that rounds took, by part: training, testing."),
    "coterie_bytes_total": ("counter", "Bytes of models and answers, by direction: down to clients, up from them."),
    "coterie_last_round_timestamp_seconds": ("gauge", "When the last round ended, in seconds since 1970."),
    "coterie_memory_bytes": ("gauge", "Resident memory of the server's processes, with those that they started."),
    "coterie_restarts_total": ("counter", "Times that the SuperLink or the executor was started again."),
}
Samples = dict[tuple[str, str], float]  # (name, label): value
ROUNDS, LEFT_OUT = ("coterie_rounds_total", ""), ("coterie_left_out_total", "")
SECONDS = {key: ("coterie_seconds_total", f'part="{part}"')
           for key, part in (("seconds", "training"), ("evaluate-seconds", "testing"))}  # fmt: skip
BYTES = {f"bytes-{way}": ("coterie_bytes_total", f'direction="{way}"') for way in ("down", "up")}
COUNTED = (ROUNDS, LEFT_OUT, *SECONDS.values(), *BYTES.values())


class Tally:
    """A number that one process counts up and others read; it outlives the process that counts."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8)
            self.map = mmap.mmap(descriptor, 8)
        finally:
            os.close(descriptor)
        self.lock = threading.Lock()

    def add(self) -> None:
        with self.lock:
            struct.pack_into("<Q", self.map, 0, self.value + 1)

    @property
    def value(self) -> int:
        return int(struct.unpack_from("<Q", self.map, 0)[0])


class Rounds:
    """Totals over the event lines of all runs below a directory; each look reads what is new."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.read: dict[Path, int] = {}  # bytes of each file
        self.counted: dict[Path, int] = {}  # the last round of each
        self.totals: Samples = dict.fromkeys(COUNTED, 0.0)
        self.last = 0.0

    def look(self) -> Samples:
        for folder in (self.home, self.home / "runs"):
            for path in sorted(folder.glob("*/events.jsonl")):
                with contextlib.suppress(OSError):  # just being removed
                    self._read(path)
        return {**self.totals, ("coterie_last_round_timestamp_seconds", ""): self.last}

    def _read(self, path: Path) -> None:
        told, done = path.stat(), self.read.get(path, 0)
        if told.st_size == done:
            return
        if told.st_size < done:  # a run that goes on after a kill has cut its file
            done = 0
        with open(path, "rb") as file:
            file.seek(done)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # being written
                with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
                    self._count(path, json.loads(line))
                done += len(line)
        self.read[path] = done
        self.last = max(self.last, told.st_mtime)

    def _count(self, path: Path, event: Mapping[str, Any]) -> None:
        number = int(event["round"])
        if number <= self.counted.get(path, 0):
            return
        self.counted[path] = number
        self.totals[ROUNDS] += 1
        self.totals[LEFT_OUT] += len(event.get("left-out", {}))
        for key, sample in SECONDS.items():
            self.totals[sample] += event.get(key, 0.0)
        for key, sample in BYTES.items():
            self.totals[sample] += sum(event.get(key, {}).values())


class Metrics:
    """`told` is what the server's loop sets; the rest is looked up when somebody asks."""

    def __init__(self, home: Path, pids: Callable[[], Mapping[str, int]]) -> None:
        self.rounds, self.refused, self.pids = Rounds(home), Tally(home / TALLY), pids
        self.told: Samples = {}
        self.looking = threading.Lock()

    def tell(self, nodes: Iterable[Any], runs: Iterable[Any], restarts: int) -> None:
        """What the server's loop knows of clients and runs."""
        told: Samples = {("coterie_restarts_total", ""): restarts}
        clients = Counter(CLIENT_STATES.get(node.status, "away") for node in nodes)
        told |= {("coterie_clients", f'state="{state}"'): clients[state] for state in ("connected", "away", "revoked")}
        states = Counter(run.ending or run.state for run in runs)
        told |= {("coterie_runs", f'state="{state}"'): states[state] for state in RUN_STATES}
        self.told = told

    def samples(self) -> Samples:
        found: Samples = {
            ("coterie_info", f'version="{metadata.version("coterie")}"'): 1,
            ("coterie_requests_refused_total", ""): self.refused.value,
            **self.told,
        }
        with self.looking:
            found |= self.rounds.look()
        children = _children()
        pids = self.pids()
        for name, pid in {"server": os.getpid(), **pids}.items():
            others = set(pids.values()) if name == "server" else set()
            found["coterie_memory_bytes", f'process="{name}"'] = sum(map(resident_bytes, _tree(pid, children, others)))
        return found

    def text(self) -> str:
        samples, lines = self.samples(), []
        for name, (kind, text) in WHAT.items():
            mine = {label: value for (one, label), value in samples.items() if one == name}
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{f'{{{label}}}' if label else ''} {value:.17g}" for label, value in mine.items()]
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def served(metrics: Metrics, host: str, port: int) -> Iterator[int]:
    """Within, the metrics are to be read at this port (0: a free one), which is given back."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_SECONDS
        server_version, sys_version = "coterie", ""

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = (metrics.text() if found else "the metrics are at /metrics\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nobody wants a line every 15 seconds."""

    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"metrics-host = {host!r}, metrics-port = {port}: cannot be listened at ({error.strerror}); choose others"
        ) from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    """Who comes while many ask already is turned away."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.places = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody went away in the middle."""


def resident_bytes(pid: int) -> int:
    """Memory that this process has; 0 where that cannot be known."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _children() -> dict[int, list[int]]:
    """Of every process on this machine."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            found.setdefault(parent, []).append(int(entry.name))
    return found


def _tree(pid: int, children: Mapping[int, list[int]], without: set[int]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        if child not in without:
            yield from _tree(child, children, without)
