"""Which code is this? Server and clients compare, so that nobody trains with code of another version or of another app."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

APP = ("client", "games", "server", "strategies", "tasks", "wire")  # what decides about results
PACKAGES = (*APP, "cli", "runtime")  # and all others beside the door
DOOR = "coterie"


@functools.cache
def fingerprint() -> str:
    """Twelve hexadecimal digits that change with any source file of the packages that make up the app."""
    return fingerprint_of({name: path.read_bytes() for name, path in source_files().items()})


def source_files() -> dict[str, Path]:
    """All of Coterie's code, by the paths that it has in a checkout; installed, the packages lie inside the door."""
    root = Path(__file__).resolve().parent.parent
    door = root / DOOR if (root / DOOR).is_dir() else root
    found = {f"{DOOR}/{path.name}": path for path in sorted(door.glob("*.py"))}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found[path.relative_to(root).as_posix()] = path
    return found


def fingerprint_of(files: Mapping[str, bytes]) -> str:
    """Of the files of the app's packages, by their paths; others do not count."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if name.endswith(".py") and name.split("/")[0] in APP:
            digest.update(name.encode() + b"\0" + files[name] + b"\0")
    return digest.hexdigest()[:12]
