"""Federations of real processes: one on this machine (`up`), and runs for a server that is there already (`submit`).

`up` starts a server and a process for each client, as they would run on machines of their own, over gRPC with TLS and
client keys. All of the run is under its directory:

    keys/             certificates and keys, made for this run
    logs/             superlink.log, executor.log, serverapp.log, client-0.log, ...
    clients/<i>/      what client i keeps: its state and its personal model
    ...               and what the server writes (server/rundir.py)
"""

import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import httpx

from coterie.client.data import has_table
from coterie.progress import RunProgress, progress_of
from coterie.runs import Run
from coterie.runtime.control import Control, bundle
from coterie.runtime.foreground import Stopped, stoppable
from coterie.runtime.keys import make_keys
from coterie.runtime.processes import Processes, free_ports, must_be_free
from coterie.runtime.programs import environment, executor_command, program, superlink_command
from coterie.runtime.tls import Unreachable, check_server
from coterie.server.app import checked_config
from coterie.server.rundir import PREPARED, new_run_dir
from coterie.simulate import names_of_clients, prepare
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.tasks.sources import named_files
from coterie.wire.config import RunConfig, Value, split_sections
from coterie.wire.errors import ConfigError, RunFailed

PATIENCE_SECONDS = 120.0  # how long the server may be away while its run is followed
ROUND = re.compile(r"round (\d+)/\d+:")
FLOWER_PREFIX = re.compile(r"^(DEBUG|INFO|WARNING|ERROR)\s*:\s*")
NOISE = (
    "Start `flwr-serverapp`",
    "Successfully installed",
    "Exit Code:",
    "An unhandled exception",
    "For more information, visit",
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def up(
    values: Mapping[str, Value], control_port: int | None = None, fleet_port: int | None = None, progress: bool = True
) -> Run:
    """One run as real processes on this machine; they end with it, and with a signal, which raises `Stopped`."""
    config = prepare(values)
    program("flower-superlink")
    for key, port in (("control-port", control_port), ("fleet-port", fleet_port)):
        if port:
            must_be_free(key, port)
    with stoppable():
        run_dir = new_run_dir(config)
        for name in PREPARED:
            (run_dir / name).mkdir(mode=0o700)
        config["run-dir"] = str(run_dir)
        try:
            _run(config, run_dir, (control_port, fleet_port), progress)
        except Stopped as stopped:
            stopped.add_note(f"finished rounds and logs are in {run_dir}")
            raise
        except httpx.HTTPError as error:
            raise RunFailed(
                f"the SuperLink does not answer any more ({error}); logs are in {run_dir / 'logs'}"
            ) from None
    return Run(run_dir)


def _run(config: Mapping[str, Value], run_dir: Path, ports: tuple[int | None, int | None], progress: bool) -> None:
    settings = RunConfig.parse(split_sections(config)[0])
    names = names_of_clients(settings)
    number = len(names)
    files = named_files(settings.data) if has_table(settings) else {}
    if len(files) > 1:  # every client has its own, and the run names none
        config = {**config, "data": ""}
    timeout = float(config["join-timeout"])
    started = time.monotonic()
    make_keys(run_dir / "keys", names)
    with tempfile.TemporaryDirectory(prefix="coterie-") as flower_home, Processes(run_dir / "logs") as processes:
        federation = LocalFederation(run_dir, Path(flower_home), processes, ports)
        federation.start_server()
        control = Control(federation.control_address, run_dir / "keys" / "ca.crt")
        control.wait_until_up(timeout, processes.check)
        for i, name in enumerate(names):
            control.register(run_dir / "keys" / "clients" / f"{name}.pub")
            data = (
                ["--data", str(files[name])]
                if len(files) > 1
                else ["--partition", str(i), "--num-partitions", str(number)]
            )
            federation.start_client(name, data, str(config["data-root"]), str(config["strategy-file"]))
        control.wait_for_clients(number, timeout, processes.check)
        with _progress(config, progress) as shown, open(processes.log_of("serverapp"), "w", buffering=1) as log:
            shown.say(f"{number} clients connected after {time.monotonic() - started:.1f} s")
            run = control.submit(bundle(config))
            follow(control.log(run), shown, log)
        failure = control.failure(run)
        control.close()
    if failure:
        raise RunFailed(f"{failure}. Logs are in {run_dir / 'logs'}")


class LocalFederation:
    """The commands that make up the federation, and where each of them works."""

    def __init__(self, run_dir: Path, home: Path, processes: Processes, ports: Sequence[int | None]) -> None:
        self.run_dir, self.home, self.processes = run_dir, home, processes
        self.keys = run_dir / "keys"
        free = free_ports(2)
        control, self.fleet_port = (given or found for given, found in zip(ports, free, strict=True))
        self.control_port = control
        self.control_address = f"127.0.0.1:{control}"

    def start_server(self) -> None:
        fleet = f"127.0.0.1:{self.fleet_port}"
        self._start("superlink", superlink_command(self.keys, "127.0.0.1", self.control_port, fleet, None))
        self._start("executor", executor_command(self.keys, self.control_address))

    def start_client(self, name: str, data: Sequence[str], data_root: str, method: str) -> None:
        state = self.run_dir / "clients" / name
        state.mkdir(mode=0o700)
        command = [
            *(sys.executable, "-P", "-m", "coterie", "client"),
            *("--server", f"127.0.0.1:{self.fleet_port}"),
            *("--key", str(self.keys / "clients" / name)),
            *data,
            *("--data-root", data_root),
            *("--state", str(state)),
            *(("--method", method) if method else ()),
        ]
        self._start(f"client-{name}", command)

    def _start(self, name: str, command: Sequence[str]) -> None:
        """In an empty directory of its own: what lies in the user's must not be imported by accident."""
        home = self.home / name
        home.mkdir()
        self.processes.start(name, command, environment(home), home)


def submit(values: Mapping[str, Value], server: str, authority: Path, progress: bool = True) -> None:
    """Give a run to a running server, and follow it to its end. The run directory is the server's."""
    config = checked_config(values)
    control = connect(server, authority)
    try:
        config["num-clients"] = number_of_clients(config, control)
        run = control.submit(bundle(config))
        with _progress(config, progress) as shown:
            shown.say(f"run {run}, {config['num-clients']} clients")
            try:
                follow(control.log(run, PATIENCE_SECONDS), shown)
            except KeyboardInterrupt:
                control.stop(run)
                raise
        failure = control.failure(run)
    except httpx.HTTPError as error:
        raise RunFailed(f"server = {server!r}: does not answer any more ({error})") from None
    finally:
        control.close()
    if failure:
        raise RunFailed(failure)


def connect(server: str, authority: Path) -> Control:
    if not authority.exists():
        raise ConfigError(
            f"root-certificates = {str(authority)!r}: is not there; it is ca.crt in the server's keys directory"
        )
    try:
        check_server(server, authority)
    except Unreachable as error:
        raise RunFailed(
            f"server = {server!r}: {error}; start it with `coterie server`, and submit from its machine"
        ) from None
    return Control(server, authority)


def number_of_clients(config: Mapping[str, Value], control: Control) -> int:
    """As many as the user says, else the task's own, else those that are connected now."""
    settings = RunConfig.parse(split_sections(config)[0])
    if settings.num_clients:
        return settings.num_clients
    spec = spec_of(settings)
    if partition_kind(spec, settings.partition) == "natural":
        return len(spec.natural_clients)
    if number := control.online():
        return number
    raise RunFailed("num-clients = 0: no client is connected; say for how many to wait, for example --num-clients 4")


def _progress(config: Mapping[str, Value], shown: bool) -> RunProgress:
    return progress_of(shown, f"{config['strategy']} on {config['task']}", int(config["num-server-rounds"]))


def follow(lines: Iterable[str], progress: RunProgress, log: IO[str] | None = None) -> None:
    """Show the ServerApp's log as it comes, and how far the run is; keep it in `log`."""
    for line in lines:
        plain = COLOUR.sub("", line)
        if log:
            print(plain, file=log)
        text = FLOWER_PREFIX.sub("", plain).strip()
        if text and not text.startswith(NOISE):
            progress.say(text)
        if match := ROUND.match(text):
            progress.finished(int(match[1]))
