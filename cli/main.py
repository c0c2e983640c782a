"""The `coterie` command: its sub-commands, their help, and what becomes of errors."""

import sys
from collections.abc import Callable
from typing import Any

import click
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import coterie
from coterie.cli import commands
from coterie.cli.client import command as client_command
from coterie.cli.keys import keys_command
from coterie.cli.options import config_options
from coterie.cli.server import command as server_command
from coterie.presets import PLAIN, PRESETS, Methods
from coterie.wire.config import RunConfig

WORKERS_HELP = "Worker processes; results do not depend on it. 0: all in this process. Default: one per core."


def _workers() -> click.Parameter:
    return TyperOption(
        param_decls=["--workers"], type=click.IntRange(min=0), metavar="N", help=WORKERS_HELP, rich_help_panel="Places"
    )


def _port(name: str, text: str) -> click.Parameter:
    return TyperOption(
        param_decls=[f"--{name}"], type=click.IntRange(1, 65535), metavar="N", help=text, rich_help_panel="Places"
    )


def _text(name: str, metavar: str, text: str, panel: str | None = None) -> click.Parameter:
    """An option that may be left out."""
    return TyperOption(
        param_decls=[f"--{name}"], default="", show_default=False, metavar=metavar, help=text, rich_help_panel=panel
    )


def _argument(name: str, metavar: str, text: str) -> click.Parameter:
    argument = TyperArgument(param_decls=[name], required=True, metavar=metavar)
    argument.help = text  # not in the call: click's constructor, which comes last, would set it to None
    return argument


def _place(name: str, metavar: str, text: str, default: str | None = None) -> click.Parameter:
    return TyperOption(
        param_decls=[f"--{name}"],
        metavar=metavar,
        help=text,
        rich_help_panel="Places",
        default=default,
        show_default=default is not None,
        required=default is None,
    )


def _files() -> click.Parameter:
    argument = TyperArgument(param_decls=["files"], required=True, metavar="FILE...", nargs=-1)
    argument.help = "Tables: .csv, .csv.gz or .parquet files, or a folder of them."
    return argument


class Stopped(Exception):
    """Ctrl-C. Typer would end the program without a word."""


def _command(name: str, callback: Callable[..., None], params: list[click.Parameter], text: str) -> TyperCommand:
    def call(**options: Any) -> None:
        try:
            callback(**options)
        except KeyboardInterrupt:
            raise Stopped from None

    return TyperCommand(name=name, callback=call, params=params, help=text, rich_markup_mode="markdown")


NOT_DATA = (
    "strategy",
    "model",
    "local-epochs",
    "batch-size",
    "learning-rate",
    "momentum",
    "weight-decay",
    "buffers",
    "device",
    "threads",
    "num-server-rounds",
    "fraction-train",
    "evaluate-every",
    "quorum",
    "round-retries",
    "round-timeout",
    "join-timeout",
    "strategy-file",
    "observers",
    "run-dir",
)

OF_TABLES = ("label", "classes", "ignore", "missing", "min-count", "delimiter", "decimal", "encoding")

WITH_NUMBERS = [name for name, preset in PRESETS.items() if isinstance(preset, Methods) and preset.paper]


def _print_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"coterie {coterie.__version__}")
        context.exit()


program = TyperGroup(
    name="coterie",
    params=[
        TyperOption(
            param_decls=["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Which version this is.",
        )
    ],
    help="""Personalised and robust federated learning on Flower.

For every client: with whom should it train, what is each of them worth to it, and which model is its own?

Begin with `coterie compare`, which runs three methods on data that are always there.""",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    commands={
        "run": _command(
            "run",
            commands.run,
            [*config_options(), _workers()],
            """Run one method, simulated on this machine, and write a run directory.

Example: `coterie run --strategy fedper --task digits --num-server-rounds 20`""",
        ),
        "compare": _command(
            "compare",
            commands.compare,
            [
                _text(
                    "preset",
                    "NAME",
                    f"An experiment of a paper: {', '.join(PRESETS)}. With the paper's numbers: {', '.join(WITH_NUMBERS)}.",
                    "What to run",
                ),
                TyperOption(
                    param_decls=["--quick"],
                    is_flag=True,
                    help="A short form of the preset.",
                    rich_help_panel="What to run",
                ),
                TyperOption(
                    param_decls=["--strategies"],
                    default=None,
                    show_default=PLAIN.strategies,
                    metavar="A,B,...",
                    help="The methods to compare.",
                    rich_help_panel="What to run",
                ),
                TyperOption(
                    param_decls=["--seeds"],
                    default=None,
                    show_default="1",
                    metavar="N,N,...",
                    help="Every method runs once with each; the table has mean and standard deviation.",
                    rich_help_panel="What to run",
                ),
                *config_options(leave_out=("strategy", "seed")),
                _workers(),
            ],
            """Run several methods on the same data and print one table.

Example: `coterie compare --strategies local,fedavg,fedper --task digits --seeds 1,2,3`""",
        ),
        "up": _command(
            "up",
            commands.up,
            [
                TyperOption(
                    param_decls=["--clients", "--num-clients", "num_clients"],
                    type=click.IntRange(min=1),
                    default=4,
                    show_default=True,
                    metavar="N",
                    help="How many clients to start.",
                    rich_help_panel="Data",
                ),
                *config_options(leave_out=("num-clients",)),
                _port("control-port", "Where runs are submitted, on this machine only. Default: a free one."),
                _port("fleet-port", "Where clients connect, over gRPC with TLS. Default: a free one."),
            ],
            """Run one method as real processes on this machine: a server and clients, over gRPC with TLS and client keys.

All processes end with the run, and with Ctrl-C. Certificates, logs and what the clients keep are in the run directory.

Example: `coterie up --clients 4 --strategy fedper --task digits --num-server-rounds 3`""",
        ),
        "server": server_command(),
        "client": client_command(),
        "submit": _command(
            "submit",
            commands.submit,
            [
                _place("server", "HOST:PORT", "Where runs are submitted.", "127.0.0.1:8000"),
                _place("root-certificates", "FILE", "The federation's ca.crt, by which the server is known."),
                *config_options(),
            ],
            """Give a run to a running server and follow it to its end. The run directory is on the server.

Example: `coterie submit --root-certificates keys/ca.crt --strategy fedper --num-server-rounds 20`""",
        ),
        "keys": _command(
            "keys",
            keys_command,
            [
                _argument("directory", "DIR", "Where to put them; what is there already is kept."),
                TyperOption(
                    param_decls=["--clients"],
                    type=click.IntRange(min=1),
                    metavar="N",
                    help="Clients called 0, 1, ..., N-1.",
                ),
                _text("names", "A,B,...", "Or clients with these names."),
                _text(
                    "server-names",
                    "HOST,IP,...",
                    "Names and addresses under which clients reach the server, beside localhost and 127.0.0.1.",
                ),
                _text(
                    "revoke",
                    "A,B,...",
                    "Make nothing, but take these clients' keys away: the server refuses them from now on.",
                ),
            ],
            """Make a certificate authority, the server's certificate, and a key pair for each client.

Example: `coterie keys keys --names ward-7,ward-8 --server-names fl.example.org,10.0.0.5`""",
        ),
        "report": _command(
            "report",
            commands.report,
            [_argument("run", "RUN", "A run directory.")],
            """Make `report.html` of a run, finished or not: curves, every client, who was left out and why, all settings.

Example: `coterie report runs/20261116-120000-fedavg-digits`""",
        ),
        "predict": _command(
            "predict",
            commands.predict,
            [
                _argument("model", "MODEL", "A personal model, models/NAME.safetensors."),
                _argument(
                    "data",
                    "DATA",
                    "An .npz file with x, a .csv or .py file, or a folder of images, of the kind it was trained with; "
                    "labels are not needed.",
                ),
                _text("output", "FILE", "Where to write the table. Default: to the terminal."),
                _text("network", "FILE", "The .py file that defines the network, for a model of your own."),
            ],
            """Ask a personal model about new samples: a line with the label and its probability for each.

Example: `coterie predict clients/ward-7/models/ward-7.safetensors new-images`""",
        ),
        "schema": _command(
            "schema",
            commands.schema,
            [
                _files(),
                _text("output", "FILE", "Where to write the schema, to look at, mend, and give to a run.", "Places"),
                *config_options(leave_out=set(RunConfig.keys()) - set(OF_TABLES)),
            ],
            """Show what tables have in common: columns, kinds, categories, label, and what is left out and why.

Example: `coterie schema north.csv south.csv west.csv --label ill --output schema.json`""",
        ),
        "data": _command(
            "data",
            commands.data,
            [
                _text("plot", "FILE", "Draw the labels of every client as a bubble chart, .png or .svg.", "Places"),
                *config_options(leave_out=NOT_DATA),
            ],
            """Show which data sets are here, or with `--task` who gets which labels.

Example: `coterie data --task digits --partition dirichlet --dirichlet-alpha 0.1 --plot labels.png`""",
        ),
    },
)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; a user's mistake ends in one line and a code that is not zero, never in a stack trace."""
    try:
        program(args=arguments, prog_name="coterie", standalone_mode=True)
    except coterie.CoterieError as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except (Stopped, KeyboardInterrupt):
        fail("stopped; finished rounds are in the run directory", 130)


def fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
