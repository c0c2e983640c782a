"""Files that are there as a whole or not at all, also after a power cut; directories that only one process works in.

On a full disk a write waits for room as long as `waiting_for_room` says, and is tried again from its beginning.
"""

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

log = logging.getLogger(__name__)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LOOK_SECONDS = 1.0  # between two tries on a full disk
TEMPORARY = ".tmp"  # how the names of unfinished files end
Piece = bytes | memoryview
T = TypeVar("T")

_patience = 0.0


@contextlib.contextmanager
def waiting_for_room(seconds: float) -> Iterator[None]:
    """Within, writes wait so long for room on a full disk before they fail."""
    global _patience
    before, _patience = _patience, seconds
    try:
        yield
    finally:
        _patience = before


def with_room(path: Path, write: Callable[[], T]) -> T:
    """What `write` returns. It must leave nothing behind when it fails, because it may be called again."""
    deadline = 0.0
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in NO_ROOM or not _patience:
                raise
            now = time.monotonic()
            if not deadline:
                log.warning("%s: the disk is full; waiting up to %g seconds for room", path, _patience)
                deadline = now + _patience
            if now >= deadline:
                raise
            time.sleep(min(LOOK_SECONDS, deadline - now))


def write_atomically(
    path: Path, data: bytes | Sequence[Piece] | Callable[[], Iterable[Piece]], *, durable: bool = True
) -> None:
    """Write beside `path`, flush to the disk, rename. On any failure the old file stays and nothing new is left behind.
    `durable=False` leaves the flushing to others: a process may be killed at any time, but not the machine."""
    pieces = data if callable(data) else lambda: [data] if isinstance(data, bytes) else data
    with_room(path, lambda: _write(path, pieces(), durable))


def _write(path: Path, data: Iterable[Piece], durable: bool) -> None:
    make_directory(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            for piece in data:
                write_all(file, piece)
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync(path.parent)


def flush(directory: Path, pattern: str) -> None:
    """What was written there and not durable, becomes so."""
    for path in directory.glob(pattern):
        with_room(path, partial(sync, path))
    if directory.is_dir():
        with_room(directory, partial(sync, directory))


def flush_below(directory: Path) -> None:
    """The same for all below it, however many: one call for its whole file system."""
    if not directory.is_dir():
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)  # of Linux
        if syncfs is None or syncfs(handle):
            os.sync()
    finally:
        os.close(handle)


def keep_as(path: Path, other: Path) -> None:
    """What `path` contains now is also at `other`, and stays there when `path` is written anew: without a copy, where the
    file system can."""
    make_directory(other.parent)
    temporary = other.parent / f".{other.name}.{os.getpid()}{TEMPORARY}"

    def link() -> None:
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        try:
            os.replace(temporary, other)
        finally:
            temporary.unlink(missing_ok=True)  # two names of one file: nothing was renamed

    try:
        with_room(other, link)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        write_atomically(other, path.read_bytes())


def write_all(file: BinaryIO, data: Piece) -> None:
    """All of it: an unbuffered file may take less at a time, and none when the disk is full."""
    view = memoryview(data)
    while len(view):
        written = file.write(view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        view = view[written:]


def append_line(path: Path, line: str) -> None:
    """Append a whole line; if that fails, take back what was written of it."""
    is_new = not path.exists()
    with_room(path, lambda: _append(path, (line + "\n").encode()))
    if is_new:
        sync(path.parent)


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        before = file.tell()
        try:
            write_all(file, data)
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def move(old: Path, new: Path) -> None:
    """Rename, so that it stays renamed."""
    with_room(new, lambda: os.rename(old, new))
    sync(new.parent)


def make_directory(path: Path) -> None:
    """With all above it, so that they stay there."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """What a file contains, or a new name in a directory, outlives a power cut only after this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path) -> None:
    """Remove what writers left that were killed."""
    for path in directory.rglob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def alone_in(directory: Path, refusal: Exception, wait_seconds: float = 0.0) -> Iterator[None]:
    """Only one process at a time, with those forked from it, is within; another gets `refusal`. A killed one is not there."""
    handle = os.open(directory, os.O_RDONLY)
    deadline = time.monotonic() + wait_seconds
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise refusal from None
                time.sleep(0.05)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for workers that were forked with it and serve the next run
    finally:
        os.close(handle)
