"""The coordinator of a federation, for good.

Flower's SuperLink, with its state in a database, and beside it an executor that runs the methods (ServerApps). They are
processes of their own: when the SuperLink is killed it is started again, and a run that was going on goes on. Clients are
those whose public keys are in `clients/` of the keys directory, and the server looks there again and again. In its directory:

    state.db     the SuperLink's state: clients, runs, messages
    logs/        superlink.log, executor.log
    refused.count   how many requests of unknown keys were refused, for its metrics
    runs/        the run directories, unless a run says otherwise; in runs/.unfinished what is needed to go on with killed ones
"""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn

import httpx
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from coterie.runtime.control import Control, read_public_key
from coterie.runtime.foreground import Stopped, say, stoppable
from coterie.runtime.keys import SECRET
from coterie.runtime.metrics import TALLY, TALLY_VARIABLE, Metrics, resident_bytes, served
from coterie.runtime.processes import Processes, last_words, must_be_free
from coterie.runtime.programs import environment, executor_command, superlink_command
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.files import alone_in

LOOK_SECONDS = 2.0
START_SECONDS = 60.0
END_SECONDS = 20.0  # until the processes of a killed server have ended, and its ports are free
MOST_RESTARTS, RESTART_SECONDS = 5, 120.0  # so many in so short a time: it will not get better
LARGEST_LOG = 20 * 2**20  # bytes; then it is put aside as .log.1
WARN_DAYS = 30
EVERYWHERE = ("0.0.0.0", "::")


def serve(
    keys: str,
    directory: str,
    host: str,
    fleet_port: int,
    control_host: str,
    control_port: int,
    executor: bool,
    metrics_host: str = "127.0.0.1",
    metrics_port: int | None = None,
) -> None:
    """Until a signal ends it."""
    key_dir, home = Path(keys).expanduser().absolute(), Path(directory).expanduser().absolute()
    check_keys(key_dir)
    was_here = (home / "state.db").exists()
    for path in (home, home / "logs", home / "flower"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = ConfigError(f"directory = {str(home)!r}: another server works there; stop it, or choose another directory")
    try:
        with alone_in(home, in_use), stoppable(), Processes(home / "logs") as processes:
            deadline = time.monotonic() + (END_SECONDS if was_here else 0.0)
            must_be_free("fleet-port", fleet_port, host, deadline)
            must_be_free("control-port", control_port, control_host, deadline)
            fleet = f"{_bracketed(host)}:{fleet_port}"
            server = Server(processes, key_dir, home, fleet, control_host, control_port, executor)
            if metrics_port is None:
                server.serve()
            server.metrics = Metrics(home, processes.pids)
            with served(server.metrics, metrics_host, metrics_port):
                say(f"metrics: http://{_bracketed(metrics_host)}:{metrics_port}/metrics")
                server.serve()
    except Stopped:
        say("server stopped")


def check_keys(directory: Path) -> None:
    for name in ("ca.crt", "server.crt", "server.key", SECRET):
        if not (directory / name).exists():
            raise ConfigError(
                f"keys = {str(directory)!r}: has no {name}; make it with `coterie keys {directory} --names A,B`"
            )
    end = x509.load_pem_x509_certificate((directory / "server.crt").read_bytes()).not_valid_after_utc
    days = (end.timestamp() - time.time()) / 86400
    remedy = "move server.crt and server.key away and run `coterie keys` again to have new ones made"
    if days < 0:
        raise ConfigError(f"keys = {str(directory)!r}: server.crt expired on {end:%Y-%m-%d}; {remedy}")
    if days < WARN_DAYS:
        say(f"warning: server.crt expires on {end:%Y-%m-%d}; {remedy}")


class Server:
    def __init__(
        self,
        processes: Processes,
        keys: Path,
        home: Path,
        fleet: str,
        control_host: str,
        control_port: int,
        executor: bool,
    ) -> None:
        self.processes, self.keys, self.home = processes, keys, home
        self.fleet, self.control_host, self.control_port = fleet, control_host, control_port
        here = f"{'127.0.0.1' if control_host in EVERYWHERE else _bracketed(control_host)}:{control_port}"
        self.control = Control(here, keys / "ca.crt")
        self.members = Members(keys / "clients")
        self.restarts: list[float] = []
        self.started_again = 0
        self.metrics: Metrics | None = None
        self.most_memory = max(2**30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
        self.commands = {
            "superlink": superlink_command(keys, control_host, control_port, fleet, home / "state.db"),
            **({"executor": executor_command(keys, here)} if executor else {}),
        }

    def serve(self) -> NoReturn:
        for name in self.commands:
            self._start(name)
        self.control.wait_until_up(START_SECONDS, self.processes.check)
        say(f"clients connect to {self.fleet}; runs are submitted to {self.control_host}:{self.control_port}")
        while True:
            self._revive()
            self._look_for_members()
            time.sleep(LOOK_SECONDS)

    def _look_for_members(self) -> None:
        try:
            nodes = self.members.update(self.control)
            if self.metrics:
                self.metrics.tell(nodes, self.control.runs(), self.started_again)
        except httpx.TransportError:
            pass  # it is just being started again
        except httpx.HTTPStatusError as error:
            say(f"the SuperLink cannot tell or change who takes part ({error}); trying again")

    def _revive(self) -> None:
        """Start again what has ended, if that helps."""
        for name, process in list(self.processes.running.items()):
            log = self.processes.log_of(name)
            with contextlib.suppress(OSError):  # the disk is full, or somebody took the log away
                if log.stat().st_size > LARGEST_LOG:
                    shutil.copyfile(log, log.with_suffix(".log.1"))
                    os.truncate(log, 0)
            if process.poll() is None:
                if name == "superlink" and (size := resident_bytes(process.pid)) > self.most_memory:
                    say(f"superlink has {size >> 20} MB of memory, and may have {self.most_memory >> 20}; ending it")
                    process.kill()
                continue
            said = f"{name} ended with code {process.returncode} ({last_words(log)}). Its log is {log}"
            self.restarts = [then for then in self.restarts if time.monotonic() - then < RESTART_SECONDS]
            if len(self.restarts) == MOST_RESTARTS:
                raise RunFailed(f"{said}. It was started again {MOST_RESTARTS} times, and it did not help")
            self.restarts.append(time.monotonic())
            self.started_again += 1
            say(f"{said}; starting it again")
            self._start(name)

    def _start(self, name: str) -> None:
        variables = environment(self.home / "flower")
        if self.metrics:
            variables = {**variables, TALLY_VARIABLE: str(self.home / TALLY)}
        self.processes.start(name, self.commands[name], variables, self.home)


class Members:
    """The clients that may take part: those of the public keys in a directory, and no others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.status: dict[str, str] = {}  # what was said of each
        self.told: set[str] = set()

    def update(self, control: Control) -> list[Any]:
        """Register those who are new, refuse those whose key is gone; all that were ever registered are given back."""
        wanted = self._read()
        nodes = control.nodes()
        revoked = {node.public_key for node in nodes if node.status == "unregistered"}
        there = {node.public_key: node for node in nodes if node.status != "unregistered"}
        for key, path in wanted.items():
            if key in revoked and key not in there:
                self._tell_once(f"{path}: was revoked once and stays so; make {path.stem} a new key")
            elif key not in there:
                self._register(path, control)
        for key, node in there.items():
            if key not in wanted:
                control.unregister(node.node_id)
                say(f"client {node.name}: its key is not in {self.directory} any more; refused from now on")
            else:
                self._tell_status(node)
        return nodes

    def _register(self, path: Path, control: Control) -> None:
        try:
            control.register(path)
            say(f"client {path.stem}: registered")
        except httpx.HTTPStatusError as error:
            self._tell_once(f"{path}: cannot be registered ({error.response.text}); make a key with `coterie keys`")

    def _tell_status(self, node: Any) -> None:
        if node.status != self.status.get(node.name, "registered"):
            say(f"client {node.name}: {'connected' if node.status == 'online' else 'gone'}")
        self.status[node.name] = node.status

    def _read(self) -> dict[bytes, Path]:
        keys = {}
        for path in sorted(self.directory.glob("*.pub")):
            try:
                keys[read_public_key(path)] = path
            except (ValueError, OSError, UnsupportedAlgorithm) as error:
                self._tell_once(f"{path}: is not a public key of `coterie keys` ({error}); left out")
        return keys

    def _tell_once(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            say(text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
