"""Which code is this? Server and clients compare, so that nobody trains with code of another version or of another app."""

import functools
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

APP = ("client", "games", "server", "strategies", "tasks", "wire")  # what decides about results
PACKAGES = (*APP, "cli", "runtime")  # and all others beside the door
DOOR = "coterie"
SOURCE = "__source__"  # where a module says what it was read from, if it may have changed since


@functools.cache
def fingerprint() -> str:
    """Twelve hexadecimal digits that change with any source file of the packages that make up the app."""
    return fingerprint_of({name: path.read_bytes() for name, path in source_files().items()})


def fingerprint_with(method: type) -> str:
    """The same of the app together with a method from outside: of its file or, of a package, of all of its files."""
    sources = _sources(method)
    if not sources:
        return fingerprint()
    digest = hashlib.sha256(fingerprint().encode())
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name] + b"\0")
    return digest.hexdigest()[:12]


def _sources(method: type) -> dict[str, bytes]:
    """By paths inside its package; a module that stands alone may be called as it likes."""
    top = method.__module__.partition(".")[0]
    module = sys.modules.get(top)
    if top == DOOR or module is None:
        return {}
    if SOURCE in vars(module):
        return {"": vars(module)[SOURCE]}
    if folders := getattr(module, "__path__", None):
        roots = [Path(folder) for folder in folders]
        return {path.relative_to(root).as_posix(): path.read_bytes() for root in roots for path in root.rglob("*.py")}
    file = getattr(module, "__file__", None)
    return {"": Path(file).read_bytes()} if file else {}


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
