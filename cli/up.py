"""`coterie up`: a federation of real processes on this machine, over gRPC with TLS and client keys.

A server and a process for each client, as they would run on machines of their own. All of the run is under its
directory:

    keys/             certificates and keys, made for this run
    logs/             superlink.log, executor.log, serverapp.log, client-0.log, ...
    clients/<i>/      what client i keeps: its state and its personal model
    ...               and what the server writes (server/rundir.py)
"""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx
from coterie.cli.run import prepare, result_table
from coterie.cli.submit import follow
from coterie.runtime.control import Control, bundle
from coterie.runtime.keys import make_keys
from coterie.runtime.processes import Processes, free_ports, must_be_free
from coterie.runtime.programs import environment, executor_command, program, superlink_command
from coterie.server.rundir import PREPARED, new_run_dir
from coterie.wire.config import Value
from coterie.wire.errors import RunFailed
from rich.console import Console

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def up_command(values: Mapping[str, Value], control_port: int | None, fleet_port: int | None) -> None:
    config = prepare(values)
    program("flower-superlink")
    for key, port in (("control-port", control_port), ("fleet-port", fleet_port)):
        if port:
            must_be_free(key, port)
    for number in STOPPING:
        signal.signal(number, _stop)
    run_dir = new_run_dir(config)
    for name in PREPARED:
        (run_dir / name).mkdir(mode=0o700)
    config["run-dir"] = str(run_dir)
    console = Console(stderr=True)
    try:
        _run(config, run_dir, (control_port, fleet_port), console)
    except Stopped as signal_:
        print(f"error: stopped by {signal_}; finished rounds and logs are in {run_dir}", file=sys.stderr)
        raise SystemExit(signal_.code) from None
    except httpx.HTTPError as error:
        raise RunFailed(f"the SuperLink does not answer any more ({error}); logs are in {run_dir / 'logs'}") from None
    result = json.loads((run_dir / "result.json").read_text())
    Console().print(result_table(result))
    console.print(f"run directory: {run_dir}", highlight=False, soft_wrap=True)


def _run(config: Mapping[str, Value], run_dir: Path, ports: tuple[int | None, int | None], console: Console) -> None:
    number = int(config["num-clients"])
    timeout = float(config["join-timeout"])
    started = time.monotonic()
    make_keys(run_dir / "keys", [str(i) for i in range(number)])
    with tempfile.TemporaryDirectory(prefix="coterie-") as flower_home, Processes(run_dir / "logs") as processes:
        federation = LocalFederation(run_dir, Path(flower_home), processes, ports)
        federation.start_server()
        control = Control(federation.control_address, run_dir / "keys" / "ca.crt")
        control.wait_until_up(timeout, processes.check)
        for i in range(number):
            control.register(run_dir / "keys" / "clients" / f"{i}.pub")
            federation.start_client(i, number, str(config["data-root"]))
        control.wait_for_clients(number, timeout, processes.check)
        console.print(f"{number} clients connected after {time.monotonic() - started:.1f} s", highlight=False)
        run = control.submit(bundle(config))
        with open(processes.log_of("serverapp"), "w", buffering=1) as log:
            follow(control.log(run), log, config, console)
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

    def start_client(self, i: int, number: int, data_root: str) -> None:
        state = self.run_dir / "clients" / str(i)
        state.mkdir(mode=0o700)
        command = [
            *(sys.executable, "-P", "-m", "coterie", "client"),
            *("--server", f"127.0.0.1:{self.fleet_port}"),
            *("--key", str(self.keys / "clients" / str(i))),
            *("--num-partitions", str(number)),
            *("--data-root", data_root),
            *("--state", str(state)),
        ]
        self._start(f"client-{i}", command)

    def _start(self, name: str, command: Sequence[str]) -> None:
        """In an empty directory of its own: what lies in the user's must not be imported by accident."""
        home = self.home / name
        home.mkdir()
        self.processes.start(name, command, environment(home), home)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not disturb the cleaning up
    raise Stopped(number)
