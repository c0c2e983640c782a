"""`coterie server`: the coordinator, for good (runtime/server.py)."""

from typing import Any

import click
from typer.core import TyperCommand, TyperOption

from coterie.cli.alone import run_alone


def serve_command(**options: Any) -> None:
    from coterie.runtime.server import serve  # not for `--help`

    serve(**options)


def command(**more: Any) -> TyperCommand:
    return TyperCommand(
        name="server",
        callback=serve_command,
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
            place("metrics-host", "Where the metrics are read.", metavar="HOST", default="127.0.0.1"),
            place(
                "metrics-port", "Tell Prometheus how it goes, over HTTP at this port; not, if it is not given.", **PORT
            ),
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
