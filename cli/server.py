"""`coterie server`: the coordinator, for good.

Flower's SuperLink, with its state in a database, and beside it an executor that runs the methods (ServerApps). They are
processes of their own: when the SuperLink is killed it is started again, and a run that was going on goes on. Clients are
those whose public keys are in `clients/` of the keys directory, and the server looks there again and again. Under `--directory`:

    state.db     the SuperLink's state: clients, runs, messages
    logs/        superlink.log, executor.log
    runs/        the run directories, unless a run says otherwise
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import httpx
from coterie.cli.alone import run_alone
from coterie.runtime.control import Control, read_public_key
from coterie.runtime.processes import Processes, last_words, must_be_free
from coterie.runtime.programs import environment, executor_command, superlink_command
from coterie.wire.errors import ConfigError, RunFailed
from cryptography import x509
from typer.core import TyperCommand, TyperOption

LOOK_SECONDS = 2.0
START_SECONDS = 60.0
MOST_RESTARTS, RESTART_SECONDS = 5, 120.0  # so many in so short a time: it will not get better
LARGEST_LOG = 20 * 2**20  # bytes; then it is put aside as .log.1
WARN_DAYS = 30
EVERYWHERE = ("0.0.0.0", "::")
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal asked this program to end."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def server_command(
    keys: str, directory: str, host: str, fleet_port: int, control_host: str, control_port: int, executor: bool
) -> None:
    key_dir, home = Path(keys).expanduser().absolute(), Path(directory).expanduser().absolute()
    check_keys(key_dir)
    must_be_free("fleet-port", fleet_port, host)
    must_be_free("control-port", control_port, control_host)
    for path in (home, home / "logs", home / "flower"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in STOPPING:
        signal.signal(number, _stop)
    with Processes(home / "logs") as processes:
        try:
            fleet = f"{_bracketed(host)}:{fleet_port}"
            Server(processes, key_dir, home, fleet, control_host, control_port, executor).serve()
        except Stopped:
            say("server stopped")


def check_keys(directory: Path) -> None:
    for name in ("ca.crt", "server.crt", "server.key"):
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
            with contextlib.suppress(httpx.TransportError):  # it is just being started again
                self.members.update(self.control)
            time.sleep(LOOK_SECONDS)

    def _revive(self) -> None:
        """Start again what has ended, if that helps."""
        for name, process in list(self.processes.running.items()):
            log = self.processes.log_of(name)
            if log.stat().st_size > LARGEST_LOG:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)
            if process.poll() is None:
                continue
            said = f"{name} ended with code {process.returncode} ({last_words(log)}). Its log is {log}"
            self.restarts = [then for then in self.restarts if time.monotonic() - then < RESTART_SECONDS]
            if len(self.restarts) == MOST_RESTARTS:
                raise RunFailed(f"{said}. It was started again {MOST_RESTARTS} times, and it did not help")
            self.restarts.append(time.monotonic())
            say(f"{said}; starting it again")
            self._start(name)

    def _start(self, name: str) -> None:
        self.processes.start(name, self.commands[name], environment(self.home / "flower"), self.home)


class Members:
    """The clients that may take part: those of the public keys in a directory, and no others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.status: dict[str, str] = {}  # what was said of each
        self.told: set[str] = set()

    def update(self, control: Control) -> None:
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
            except (ValueError, OSError) as error:
                self._tell_once(f"{path}: is not a public key of `coterie keys` ({error}); left out")
        return keys

    def _tell_once(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            say(text)


def command(**more: Any) -> TyperCommand:
    return TyperCommand(
        name="server",
        callback=server_command,
        params=[
            place(
                "keys", "What `coterie keys` made; clients are those with a public key in DIR/clients.", required=True
            ),
            place("directory", "Where the server keeps its state, logs and runs.", default="server"),
            place("host", "Where clients connect.", metavar="HOST", default="0.0.0.0"),
            place("fleet-port", "Where clients connect, over gRPC with TLS.", default=9092, **PORT),
            place(
                "control-host",
                "Where runs are submitted. Who reaches it can run code on all clients: never a public address.",
                metavar="HOST",
                default="127.0.0.1",
            ),
            place("control-port", "Where runs are submitted, over HTTPS.", default=8000, **PORT),
            TyperOption(
                param_decls=["--executor/--no-executor", "executor"],
                default=True,
                help="Run the methods here too, or leave them to `python -m coterie.runtime.executor` elsewhere.",
            ),
        ],
        help="""Coordinate a federation until stopped: clients connect to it, runs are submitted to it.

Example: `coterie server --keys keys`""",
        rich_markup_mode="markdown",
        **more,
    )


PORT: dict[str, Any] = {"type": click.IntRange(1, 65535), "metavar": "N"}


def place(name: str, text: str, **more: Any) -> TyperOption:
    shown = "default" in more
    return TyperOption(param_decls=[f"--{name}"], help=text, show_default=shown, **{"metavar": "DIR", **more})


def main(arguments: list[str]) -> None:
    run_alone(command(), arguments)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped
