"""Whether a run directory has a process that works on it: that process holds a lock (flock) on the file `lock` in it.

The system takes the lock away when the process ends, however it ends, so a run that was killed is never taken for one that
goes on. Forked workers hold it with their parent until they end, too.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from coterie.wire.errors import ConfigError

LOCK = "lock"
PATIENCE_SECONDS = 1.0  # who only looks holds it for a moment


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Within, this process is the one that works on the run directory."""
    handle = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, run_dir)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for workers that were forked with it and serve the next run
    finally:
        os.close(handle)


def is_held(run_dir: Path) -> bool:
    try:
        handle = os.open(run_dir / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _take(handle: int, run_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"run-dir = {str(run_dir)!r}: another process works on this run; wait for its end, or stop it with "
                    f"`coterie stop {run_dir}`"
                ) from None
            time.sleep(0.05)
