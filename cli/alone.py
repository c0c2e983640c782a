"""A command by itself, without the rest of the program: a user's mistake ends in one line and a code that is not zero."""

import sys
from typing import NoReturn

from typer.core import TyperCommand

from coterie.wire.errors import CoterieError


def run_alone(command: TyperCommand, arguments: list[str]) -> None:
    try:
        command(args=arguments, prog_name=f"coterie {command.name}", standalone_mode=True)
    except CoterieError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
