"""One device of a federation: its key, its data, its place on this machine."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from coterie.runtime.keys import NAME
from coterie.runtime.tls import split_address
from coterie.wire.attack import kinds
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError


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


def make_device(
    key: Path,
    *,
    server: str,
    name: str | None = None,
    data: str | None = None,
    partition: int | None = None,
    num_partitions: int | None = None,
    data_root: str = "data",
    state: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    root_certificates: str | None = None,
    attack: str | None = None,
    installed_code_only: bool = False,
    method: Sequence[str] = (),
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    missing: str | None = None,
    model: Sequence[str] = (),
    pretrained: str | None = None,
    require_privacy: bool = False,
    max_epsilon: float | None = None,
    allow_strategies: str | None = None,
) -> Device:
    """The device that the options of `coterie client` describe; its directory is made."""
    split_address(server)
    name = name or key.name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name = {name!r}: use up to 64 letters, digits, '-', '_' and '.', starting with a letter or digit"
        )
    home = Path(state or f"clients/{name}").expanduser().absolute()
    node: dict[str, Value] = {
        "client-name": name,
        "state-dir": str(home),
        "data-root": str(Path(data_root).expanduser().absolute()),
        **_whose_data(name, data, partition, num_partitions),
    }
    reading = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding, "missing": missing}
    node |= {key: value for key, value in reading.items() if value is not None}
    if device is not None:
        node["device"] = device
    if threads is not None:
        node["threads"] = threads
    if attack is not None:
        node["attack"] = choose("attack", attack, kinds())
    if method:
        node["methods"] = os.pathsep.join(_python_file("method", file) for file in method)
    if model:
        node["models"] = os.pathsep.join(_python_file("model", file) for file in model)
    if pretrained:
        node["pretrained"] = _named_file("pretrained", pretrained, "the weights, as .safetensors")
    floors = _floors(require_privacy, max_epsilon, allow_strategies)
    authority = Path(root_certificates).expanduser().absolute() if root_certificates else _authority_beside(key)
    for path in (home, home / "flower"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Device(server, key, authority, home, node | floors, not (installed_code_only or floors))


def _python_file(what: str, text: str) -> str:
    return _named_file(what, text, f"the .py file of a {what}")


def _named_file(key: str, text: str, wanted: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"{key} = {text!r}: there is no file {path}; give {wanted}")
    return str(path)


def _floors(require_privacy: bool, max_epsilon: float | None, allow_strategies: str | None) -> dict[str, Value]:
    """What no run overrides (client/owner.py). Code that a run brings could, so there is none with any of these."""
    floors: dict[str, Value] = {}
    if require_privacy:
        floors["require-privacy"] = True
    if max_epsilon is not None:
        if not 0 < max_epsilon < float("inf"):
            raise ConfigError(f"max-epsilon = {max_epsilon:g}: must be a number above 0, for example 4")
        floors["max-epsilon"] = float(max_epsilon)
    if allow_strategies is not None:
        names = [name.strip() for name in allow_strategies.split(",") if name.strip()]
        if not names:
            raise ConfigError(f"allow-strategies = {allow_strategies!r}: name one or more, like fedavg,fedper")
        floors["allow-strategies"] = ",".join(names)
    return floors


def _whose_data(name: str, data: str | None, partition: int | None, number: int | None) -> dict[str, Value]:
    """Data of its own, or a share of the run's data set, or of those that it names itself."""
    shared: dict[str, Value] = {}
    if data:
        path = Path(data).expanduser().absolute()
        if not path.exists():
            raise ConfigError(f"data = {data!r}: there is nothing at {path}; give a folder of images or a file")
        if partition is None and number is None:
            return {"data": str(path)}
        shared = {"shared-data": str(path)}
    if partition is None:
        if not name.isdecimal():
            raise ConfigError(
                f"data, partition: say which data client {name!r} has, --data DIR for its own, or --partition I for a share "
                "of the run's data set"
            )
        partition = int(name)
    if number is None:
        return {"partition-id": partition, **shared}
    if partition >= number:
        raise ConfigError(f"partition = {partition}: must be from 0 to {number - 1} (--num-partitions {number})")
    return {"partition-id": partition, "num-partitions": number, **shared}


def _authority_beside(key: Path) -> Path:
    for directory in (key.parent, key.parent.parent):
        if (directory / "ca.crt").exists():
            return directory / "ca.crt"
    raise ConfigError(
        f"root-certificates: there is no ca.crt beside {key}; get it from the server's keys directory and give its path"
    )


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
