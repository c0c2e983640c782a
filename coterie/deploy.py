"""Federations of real processes: one on this machine (`up`), and runs for a server that is there already (`submit`).

`up` starts a server and a process for each client, as they would run on machines of their own, over gRPC with TLS and
client keys. All of the run is under its directory:

    keys/             certificates and keys, made for this run
    logs/             superlink.log, executor.log, serverapp.log, client-0.log, ...
    clients/<i>/      what client i keeps: its state and its personal model
    ...               and what the server writes (server/rundir.py)
"""

import re
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import httpx

from coterie.client.data import has_table
from coterie.following import shown_by
from coterie.page import Page, beside
from coterie.progress import RunProgress, Shown, progress_of
from coterie.runs import Run
from coterie.runtime.control import Control, bundle
from coterie.runtime.foreground import Stopped, stoppable
from coterie.runtime.keys import make_keys
from coterie.runtime.processes import Processes, free_ports, must_be_free
from coterie.runtime.programs import environment, executor_command, program, superlink_command
from coterie.runtime.tls import Unreachable, check_server
from coterie.server.app import checked_config
from coterie.server.checkpoints import write_json
from coterie.server.roundlog import round_in
from coterie.server.rundir import new_run_dir
from coterie.simulate import names_of_clients, prepare
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.tasks.server_data import is_amount
from coterie.tasks.sources import named_files, several
from coterie.wire.config import RunConfig, Value, split_sections
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.files import alone_in

PATIENCE_SECONDS = 120.0  # how long the server may be away while its run is followed
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
    values: Mapping[str, Value],
    control_port: int | None = None,
    fleet_port: int | None = None,
    progress: Shown = True,
    page: Page | None = None,
) -> Run:
    """One run as real processes on this machine; they end with it, and with a signal, which raises `Stopped`."""
    config = prepare(values)
    settings = RunConfig.parse(split_sections(config)[0])
    _check_fold(settings)
    if is_amount(settings.server_data) and len(_files_of(settings)) > 1:
        raise ConfigError(
            f"server-data = {settings.server_data!r}: the clients have tables of their own; name a file of the server's"
        )
    program("flower-superlink")
    for key, port in (("control-port", control_port), ("fleet-port", fleet_port)):
        if port:
            must_be_free(key, port)
    with stoppable():
        run_dir = new_run_dir(config)
        config |= {"run-dir": str(run_dir), "run-id": secrets.token_hex(8)}
        with beside(run_dir, page):
            return _up(config, run_dir, (control_port, fleet_port), progress)


def _check_fold(settings: RunConfig) -> None:
    if settings.folds and not settings.fold:
        raise ConfigError(
            f"folds = {settings.folds}: `coterie run` does all of them; here say which one this is, for example fold=1"
        )


def up_again(config: dict[str, Value], run_dir: Path, progress: Shown = True) -> Run:
    """Go on with a run of `up`, with the keys that it has and what its clients kept."""
    program("flower-superlink")
    config |= {"run-dir": str(run_dir)}
    with stoppable():
        return _up(config, run_dir, (None, None), progress)


def _up(config: Mapping[str, Value], run_dir: Path, ports: tuple[int | None, int | None], progress: Shown) -> Run:
    for name in ("clients", "keys", "logs"):
        (run_dir / name).mkdir(mode=0o700, exist_ok=True)
    in_use = ConfigError(f"{run_dir}: another process works on this run; wait for its end, or stop it")
    try:
        with alone_in(run_dir / "clients", in_use):
            write_json(run_dir / "config.json", config)
            _run(config, run_dir, ports, progress)
    except Stopped as stopped:
        stopped.add_note(f"finished rounds and logs are in {run_dir}; `coterie resume {run_dir}` goes on")
        raise
    except httpx.HTTPError as error:
        raise RunFailed(
            f"the SuperLink does not answer any more ({error}); logs are in {run_dir / 'logs'}; "
            f"`coterie resume {run_dir}` goes on"
        ) from None
    return Run(run_dir)


def _run(config: Mapping[str, Value], run_dir: Path, ports: tuple[int | None, int | None], progress: Shown) -> None:
    settings = RunConfig.parse(split_sections(config)[0])
    names = names_of_clients(settings)
    number = len(names)
    files = _files_of(settings)
    timeout = float(config["join-timeout"])
    started = time.monotonic()
    if not (run_dir / "keys" / "ca.crt").exists():
        make_keys(run_dir / "keys", names)
    with tempfile.TemporaryDirectory(prefix="coterie-") as flower_home, Processes(run_dir / "logs") as processes:
        federation = LocalFederation(run_dir, Path(flower_home), processes, ports)
        federation.start_server()
        control = Control(federation.control_address, run_dir / "keys" / "ca.crt")
        control.wait_until_up(timeout, processes.check)
        for i, name in enumerate(names):
            control.register(run_dir / "keys" / "clients" / f"{name}.pub")
            share = ["--partition", str(i), "--num-partitions", str(number)]
            shared = [*share, *(("--data", settings.data) if settings.data else ())]
            federation.start_client(name, ["--data", str(files[name])] if len(files) > 1 else shared, config)
        control.wait_for_clients(number, timeout, processes.check)
        with _progress(config, progress) as shown, open(processes.log_of("serverapp"), "a", buffering=1) as log:
            shown.say(f"{number} clients connected after {time.monotonic() - started:.1f} s")
            with shown_by(shown, run_dir):
                failure = follow_to_the_end(control, control.submit(bundle(config), config), config, shown, log)
        control.close()
    if failure:
        raise RunFailed(f"{failure}. Logs are in {run_dir / 'logs'}")


def _files_of(settings: RunConfig) -> dict[str, Path]:
    """The tables of a run, or several places of other data, by the names of their owners."""
    return named_files(settings.data) if has_table(settings) else several(settings.data)


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

    def start_client(self, name: str, data: Sequence[str], config: Mapping[str, Value]) -> None:
        state = self.run_dir / "clients" / name
        state.mkdir(mode=0o700, exist_ok=True)
        command = [
            *(sys.executable, "-P", "-m", "coterie", "client"),
            *("--server", f"127.0.0.1:{self.fleet_port}"),
            *("--key", str(self.keys / "clients" / name)),
            *data,
            *("--data-root", str(config["data-root"])),
            *("--state", str(state)),
            *(("--method", str(config["strategy-file"])) if config["strategy-file"] else ()),
            *(("--pretrained", str(config["pretrained"])) if config["pretrained"] else ()),
            *(("--model", str(config["model"])) if str(config["model"]).endswith(".py") else ()),
        ]
        self._start(f"client-{name}", command)

    def _start(self, name: str, command: Sequence[str]) -> None:
        """In an empty directory of its own: what lies in the user's must not be imported by accident."""
        home = self.home / name
        home.mkdir()
        self.processes.start(name, command, environment(home), home)


def submit(
    values: Mapping[str, Value], server: str, authority: Path, progress: Shown = True, detach: bool = False
) -> int:
    """Give a run to a running server, and follow it to its end unless `detach`; its number. The run directory is the server's.

    Ctrl-C stops the run. Any other signal ends the following only, and raises `Stopped` with a note how to go on.
    """
    config = checked_config(values)
    _check_fold(RunConfig.parse(split_sections(config)[0]))
    config["run-id"] = config["run-id"] or secrets.token_hex(8)
    control = connect(server, authority)
    how = ""
    try:
        with stoppable():
            config["num-clients"] = number_of_clients(config, control)
            run = control.submit(bundle(config), config)
            how = how_to_go_on(run, server, authority)
            with _progress(config, progress) as shown:
                shown.say(f"run {run}, {config['num-clients']} clients")
                shown.submitted(run)
                if detach:
                    shown.say(how)
                    return run
                failure = follow_to_the_end(control, run, config, shown, how=how)
    except httpx.HTTPError as error:
        said = f"server = {server!r}: does not answer any more ({error})"
        raise RunFailed("\n".join([said, how] if how else [said])) from None
    finally:
        control.close()
    if failure:
        raise RunFailed(failure)
    return run


def follow_to_the_end(
    control: Control,
    first: int,
    config: Mapping[str, Value],
    shown: RunProgress,
    log: IO[str] | None = None,
    how: str = "",
) -> str | None:
    """Follow a run, with its rest if it was killed; why it did not complete, None if it did."""
    run: int | None = first
    failure = None
    while run is not None:
        if run != first:
            shown.say(f"it was killed; its rest is run {run}")
        try:
            follow(control.log(run, PATIENCE_SECONDS), shown, log)
        except KeyboardInterrupt as stopped:
            if isinstance(stopped, Stopped) and stopped.number != signal.SIGINT and how:
                stopped.add_note(f"the run goes on.\n{how}")
            else:
                control.stop(run)
                if how:
                    stopped.add_note("the run is stopped, too; its finished rounds are on the server")
            raise
        failure = control.failure(run, PATIENCE_SECONDS)
        run = control.rest_of(run, str(config["run-id"]), PATIENCE_SECONDS) if failure else None
    return failure


def how_to_go_on(run: int, server: str, authority: Path) -> str:
    place = f"--server {server} --root-certificates {shlex.quote(str(authority))}"
    return f"to follow it: coterie watch {run} {place}\nto stop it:   coterie stop {run} {place}"


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


def _progress(config: Mapping[str, Value], shown: Shown) -> RunProgress:
    return progress_of(shown, f"{config['strategy']} on {config['task']}", config)


def plain(line: str) -> str:
    """A line of the ServerApp's log without colours and without what Flower puts before it."""
    return FLOWER_PREFIX.sub("", COLOUR.sub("", line)).strip()


def follow(lines: Iterable[str], progress: RunProgress, log: IO[str] | None = None) -> None:
    """Show the ServerApp's log as it comes, and how far the run is; keep it in `log`."""
    for line in lines:
        if log:
            print(COLOUR.sub("", line), file=log)
        text = plain(line)
        if text and not text.startswith(NOISE):
            progress.say(text)
        if log is None and (event := round_in(text)):  # else the run directory is here, and tells more
            progress.round_told(event)
