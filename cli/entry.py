"""Where the `coterie` command begins. `coterie client` and `coterie server` stay, so they load no more than they need."""

import sys
from importlib import import_module
from importlib.util import find_spec

REST = ("flwr_datasets", "networkx", "scipy")  # what `coterie[all]` adds
FOR_A_CLIENT = ("client", "keys", "predict", "--help", "--version")


def main(arguments: list[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    missing = [name for name in REST if find_spec(name) is None]
    if missing and given and given[0] not in FOR_A_CLIENT:
        print(
            f"error: {given[0]}: {', '.join(missing)} not installed, because this is the installation of a client; "
            "for all commands: pip install 'coterie[all]'",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if given[:1] in (["client"], ["server"]):
        import_module(f"coterie.cli.{given[0]}").main(given[1:])
    else:
        import_module("coterie.cli.main").main(arguments)
