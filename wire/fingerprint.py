"""Which code is this? Server and clients compare, so that nobody trains with code of another version or of another app."""

import functools
import hashlib
from pathlib import Path

PACKAGES = ("games", "tasks", "wire", "strategies", "client", "server")


@functools.cache
def fingerprint() -> str:
    """Twelve hexadecimal digits that change with any source file of the packages that make up the app."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
