"""Commands that are not loaded before they are called: `coterie --help` needs their names and texts only."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from typer.core import TyperArgument, TyperCommand, TyperOption

Parameters = Callable[[], Sequence[click.Parameter]]


class Stopped(Exception):
    """Ctrl-C. Typer would end the program without a word."""


class LazyCommand(TyperCommand):
    """Its options are made when somebody asks for them, and its function (`module:name` in coterie.cli) is looked up when
    it is called."""

    def __init__(self, name: str, function: str, parameters: Parameters, text: str) -> None:
        self.make_parameters: Parameters | None = parameters
        module, _, attribute = function.partition(":")

        def call(**options: Any) -> None:
            try:
                getattr(import_module(f"coterie.cli.{module}"), attribute)(**options)
            except KeyboardInterrupt:
                raise Stopped from None

        super().__init__(name=name, callback=call, help=text, rich_markup_mode="markdown")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self.make_parameters:
            self.params, self.make_parameters = list(self.make_parameters()), None
        return super().get_params(ctx)


def option(name: str, text: str, panel: str | None = None, **more: Any) -> TyperOption:
    """An option that may be left out, unless it is required."""
    return TyperOption(
        param_decls=[f"--{name}"],
        help=text,
        rich_help_panel=panel,
        **{"default": None, "show_default": "default" in more, "metavar": "TEXT", **more},
    )


def argument(name: str, metavar: str, text: str, *, required: bool = True, number: int = 1) -> TyperArgument:
    made = TyperArgument(
        param_decls=[name], required=required, metavar=metavar, default=None if required else "", nargs=number
    )
    made.help = text  # not in the call: click's constructor, which comes last, would set it to None
    return made
