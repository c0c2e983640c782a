"""`coterie keys`: certificates and keys of a federation (runtime/keys.py)."""

from pathlib import Path

from rich.console import Console

from coterie.runtime.keys import make_keys, revoke_keys
from coterie.wire.errors import ConfigError


def keys_command(directory: str, clients: int | None, names: str, server_names: str, revoke: str = "") -> None:
    if revoke:
        if clients is not None or names or server_names:
            raise ConfigError("revoke: takes keys away and makes none; leave --clients, --names and --server-names out")
        names_of_keys = [name.strip() for name in revoke.split(",")]
        revoke_keys(Path(directory), names_of_keys)
        for name in names_of_keys:
            print(f"revoked {name}; a running `coterie server` refuses its key from now on")
        return
    if (clients is None) == (not names):
        raise ConfigError("clients, names: give one of the two, --clients 4 or --names ward-7,ward-8")
    chosen = [str(i) for i in range(clients)] if clients is not None else names.split(",")
    path = Path(directory)
    made = make_keys(path, [name.strip() for name in chosen], [n.strip() for n in server_names.split(",") if n.strip()])
    console = Console()
    for file in made:
        console.print(f"made {file}", highlight=False, soft_wrap=True)
    if not made:
        console.print(f"nothing to make: all of it is in {path} already", highlight=False, soft_wrap=True)
