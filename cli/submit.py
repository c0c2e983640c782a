"""`coterie submit`: give a run to a running server, and follow it to its end. The run directory is the server's."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import httpx
from coterie.cli.progress import RunProgress
from coterie.runtime.control import Control, bundle
from coterie.runtime.tls import Unreachable, check_server
from coterie.server.app import checked_config
from coterie.tasks.resolve import partition_kind, spec_of
from coterie.wire.config import RunConfig, Value, split_sections
from coterie.wire.errors import ConfigError, RunFailed
from rich.console import Console

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


def submit_command(values: Mapping[str, Value], server: str, authority: str) -> None:
    config = checked_config(values)
    console = Console(stderr=True)
    control = connect(server, Path(authority))
    try:
        config["num-clients"] = number_of_clients(config, control)
        run = control.submit(bundle(config))
        console.print(f"run {run}, {config['num-clients']} clients", highlight=False)
        try:
            follow(control.log(run, PATIENCE_SECONDS), None, config, console)
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


def follow(lines: Iterable[str], log: IO[str] | None, config: Mapping[str, Value], console: Console) -> None:
    """Show the ServerApp's log as it comes, and how far the run is; keep it in `log`."""
    title, rounds = f"{config['strategy']} on {config['task']}", int(config["num-server-rounds"])
    with RunProgress(console, title, rounds) as progress:
        for line in lines:
            plain = COLOUR.sub("", line)
            if log:
                print(plain, file=log)
            text = FLOWER_PREFIX.sub("", plain).strip()
            if text and not text.startswith(NOISE):
                console.print(text, highlight=False, markup=False, soft_wrap=True)
            if match := ROUND.match(text):
                progress.finished(int(match[1]))
