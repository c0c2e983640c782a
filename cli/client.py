"""`coterie client`: one device, connected to a server for good.

It checks the server's certificate, connects with its key, answers messages, and connects again when the connection is
lost or the server restarts. What it keeps is in one directory (`--state`): its own model parts and its personal model.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
from coterie.cli.alone import run_alone
from coterie.runtime.keys import NAME
from coterie.runtime.tls import split_address
from coterie.wire.attack import KINDS
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError
from cryptography.exceptions import UnsupportedAlgorithm
from typer.core import TyperCommand, TyperOption


@dataclass(frozen=True)
class Device:
    """All that a client is told about itself."""

    server: str
    key: Path
    authority: Path
    state: Path
    node_config: dict[str, Value]
    any_code: bool = True  # else only what is installed here

    @property
    def name(self) -> str:
        return str(self.node_config["client-name"])


def client_command(options: dict[str, Any]) -> None:
    from coterie.runtime.supervise import keep_connected

    key, lock = find_key(str(options["key"]))
    with lock:
        check_key(key)
        keep_connected(device(options, key))


def find_key(text: str) -> tuple[Path, IO[bytes]]:
    """The private key `text`; of a directory the first key that no other client on this machine uses. Open, and locked."""
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        candidates = sorted(
            p for p in path.iterdir() if p.is_file() and p.suffix != ".pub" and not p.name.startswith(".")
        )
    elif path.suffix == ".pub":
        raise ConfigError(f"key = {text!r}: is the public key, which the server needs; give the private one beside it")
    else:
        candidates = [path]
    for candidate in candidates:
        try:
            file = open(candidate, "rb")  # noqa: SIM115 - stays open as long as the client runs
        except OSError as error:
            raise ConfigError(
                f"key = {text!r}: cannot be read ({error.strerror}); make one with `coterie keys`, and copy it here"
            ) from None
        if _lock(file):
            return candidate, file
        file.close()
    raise ConfigError(
        f"key = {text!r}: {'every key there' if path.is_dir() else 'it'} is used by another client on this machine; "
        "every client needs a key of its own (`coterie keys`)"
    )


def check_key(path: Path) -> None:
    """A file that is no such key would only be noticed by the process that connects, again and again."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        usable = isinstance(load_ssh_private_key(path.read_bytes(), password=None), ec.EllipticCurvePrivateKey)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        usable = False
    if not usable:
        raise ConfigError(f"key = {str(path)!r}: not a client's key without a password; make one with `coterie keys`")


def _lock(file: IO[bytes]) -> bool:
    """As long as the file is open, nobody else on this machine gets it."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def device(options: dict[str, Any], key: Path) -> Device:
    split_address(str(options["server"]))
    name = str(options["name"] or key.name)
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name = {name!r}: use up to 64 letters, digits, '-', '_' and '.', starting with a letter or digit"
        )
    state = Path(options["state"] or f"clients/{name}").expanduser().absolute()
    node: dict[str, Value] = {"client-name": name, "state-dir": str(state), **whose_data(options, name)}
    for option in ("device", "threads"):
        if options[option] is not None:
            node[option] = options[option]
    if options["attack"] is not None:
        node["attack"] = choose("attack", options["attack"], list(KINDS))
    given = options["root_certificates"]
    authority = Path(given).expanduser().absolute() if given else _authority_beside(key)
    for path in (state, state / "flower"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Device(str(options["server"]), key, authority, state, node, not options["installed_code_only"])


def whose_data(options: dict[str, Any], name: str) -> dict[str, Value]:
    """Data of its own, or a share of the run's data set."""
    data, partition, number = options["data"], options["partition"], options["num_partitions"]
    if data and (partition is not None or number is not None):
        raise ConfigError("data, partition: give one of the two, data of its own or a share of the run's data set")
    node: dict[str, Value] = {"data-root": str(Path(options["data_root"]).expanduser().absolute())}
    if data:
        path = Path(data).expanduser().absolute()
        if not path.exists():
            raise ConfigError(f"data = {data!r}: there is nothing at {path}; give a folder of images or a file")
        return node | {"data": str(path)}
    if partition is None:
        if not name.isdecimal():
            raise ConfigError(
                f"data, partition: say which data client {name!r} has, --data DIR for its own, or --partition I for a share "
                "of the run's data set"
            )
        partition = int(name)
    if number is not None:
        if partition >= number:
            raise ConfigError(f"partition = {partition}: must be from 0 to {number - 1} (--num-partitions {number})")
        node["num-partitions"] = number
    return node | {"partition-id": partition}


def _authority_beside(key: Path) -> Path:
    for directory in (key.parent, key.parent.parent):
        if (directory / "ca.crt").exists():
            return directory / "ca.crt"
    raise ConfigError(
        f"root-certificates: there is no ca.crt beside {key}; get it from the server's keys directory and give its path"
    )


def _option(name: str, text: str, **more: Any) -> TyperOption:
    return TyperOption(param_decls=[f"--{name}"], help=text, **{"metavar": "TEXT", "default": None, **more})


def command(**more: Any) -> TyperCommand:
    number = {"type": click.IntRange(min=0), "metavar": "N"}
    return TyperCommand(
        name="client",
        callback=lambda **options: client_command(options),
        params=[
            _option("server", "Where the server is.", metavar="HOST:PORT", required=True),
            _option(
                "key",
                "This client's private key; of a directory, the first that no other client on this machine uses.",
                metavar="FILE",
                required=True,
            ),
            _option(
                "root-certificates",
                "The federation's ca.crt, by which the server is known. Default: the one beside the key.",
                metavar="FILE",
            ),
            _option("name", "Who this is. Default: the name of the key.", metavar="NAME"),
            _option("data", "Data of its own: a folder of images, an .npz, .csv or .py file.", metavar="PATH"),
            _option(
                "partition",
                "Or its share of the run's data set, from 0. Default: the name, if it is a number.",
                **number,
            ),
            _option("num-partitions", "Into how many shares that is dealt. Default: the run's num-clients.", **number),
            _option(
                "data-root",
                "Directory of the data sets on this machine.",
                metavar="DIR",
                default="data",
                show_default=True,
            ),
            _option("state", "What it keeps: its state and its personal model. Default: clients/NAME.", metavar="DIR"),
            _option("device", "cpu, cuda, cuda:1 or mps on this machine. Default: the run's.", metavar="TEXT"),
            _option("threads", "Threads on this machine. Default: the run's.", type=click.IntRange(min=1), metavar="N"),
            _option("attack", "For experiments: do this harm in every round, e.g. sign-flip.", metavar="KIND"),
            TyperOption(
                param_decls=["--installed-code-only"],
                is_flag=True,
                help="Refuse runs whose code is not what is installed here. Default: run what the server sends.",
            ),
        ],
        help="""Take part in a federation, as one device, until stopped.

Example: `coterie client --server fl.example.org:9092 --name ward-7 --data /srv/images --key ward-7`""",
        rich_markup_mode="markdown",
        **more,
    )


def main(arguments: list[str]) -> None:
    run_alone(command(), arguments)
