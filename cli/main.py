"""The `coterie` command: its sub-commands, their help, and what becomes of errors."""

import sys
from collections.abc import Callable
from typing import Any

import click
from typer.core import TyperCommand, TyperGroup, TyperOption

from cli.options import config_options, given_values
from server.app import USER_ERRORS

WORKERS_HELP = "Worker processes; results do not depend on it. 0: all in this process. Default: one per core."


def _workers() -> click.Parameter:
    return TyperOption(param_decls=["--workers"], type=click.IntRange(min=0), metavar="N", help=WORKERS_HELP, rich_help_panel="Places")


def run(settings: tuple[str, ...], workers: int | None, **options: Any) -> None:
    from cli.run import run_command

    run_command(given_values(options, settings), workers)


def compare(settings: tuple[str, ...], workers: int | None, strategies: str, seeds: str, **options: Any) -> None:
    from cli.compare import compare_command

    compare_command(given_values(options, settings), strategies, seeds, workers)


def data(settings: tuple[str, ...], plot: str, **options: Any) -> None:
    from cli.data import data_command

    data_command(given_values(options, settings), plot)


class Stopped(Exception):
    """Ctrl-C. Typer would end the program without a word."""


def _command(name: str, callback: Callable[..., None], params: list[click.Parameter], text: str) -> TyperCommand:
    def call(**options: Any) -> None:
        try:
            callback(**options)
        except KeyboardInterrupt:
            raise Stopped from None

    return TyperCommand(name=name, callback=call, params=params, help=text, rich_markup_mode="markdown")


NOT_DATA = ("strategy", "model", "local-epochs", "batch-size", "learning-rate", "momentum", "weight-decay", "buffers", "device",
            "threads", "num-server-rounds", "fraction-train", "evaluate-every", "quorum", "round-retries", "round-timeout",
            "join-timeout", "run-dir")

program = TyperGroup(
    name="coterie",
    help="""Personalised and robust federated learning on Flower.

For every client: with whom should it train, what is each of them worth to it, and which model is its own?

Begin with `coterie compare`, which runs three methods on data that are always there.""",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    commands={
        "run": _command(
            "run", run, [*config_options(), _workers()],
            """Run one method, simulated on this machine, and write a run directory.

Example: `coterie run --strategy fedper --task digits --num-server-rounds 20`""",
        ),
        "compare": _command(
            "compare", compare,
            [
                TyperOption(param_decls=["--strategies"], default="local,fedavg,fedper", show_default=True, metavar="A,B,...",
                            help="The methods to compare.", rich_help_panel="What to run"),
                TyperOption(param_decls=["--seeds"], default="1", show_default=True, metavar="N,N,...",
                            help="Every method runs once with each; the table has mean and standard deviation.",
                            rich_help_panel="What to run"),
                *config_options(leave_out=("strategy", "seed")), _workers(),
            ],
            """Run several methods on the same data and print one table.

Example: `coterie compare --strategies local,fedavg,fedper --task digits --seeds 1,2,3`""",
        ),
        "data": _command(
            "data", data,
            [
                TyperOption(param_decls=["--plot"], default="", show_default=False, metavar="FILE",
                            help="Draw the labels of every client as a bubble chart, .png or .svg.", rich_help_panel="Places"),
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
    except USER_ERRORS as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except (Stopped, KeyboardInterrupt):
        fail("stopped; finished rounds are in the run directory", 130)


def fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
