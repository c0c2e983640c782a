"""Which code is this? Server and clients compare, so that nobody trains with code of another version or of another app."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("games", "tasks", "wire", "strategies", "client", "server")


@functools.cache
def fingerprint() -> str:
    """Twelve hexadecimal digits that change with any source file of the packages that make up the app."""
    return fingerprint_of(installed_files())


def installed_files() -> dict[str, bytes]:
    root = Path(__file__).resolve().parent.parent
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def fingerprint_of(files: Mapping[str, bytes]) -> str:
    """Of the files of these packages, by their paths; others do not count."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if name.endswith(".py") and name.split("/")[0] in PACKAGES:
            digest.update(name.encode() + b"\0" + files[name] + b"\0")
    return digest.hexdigest()[:12]
