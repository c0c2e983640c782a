"""Whether a run directory has a process that works on it: that process holds a lock (wire/files.py).

The system takes the lock away when the process ends, however it ends, so a run that was killed is never taken for one that
goes on. Forked workers hold it with their parent until they end, too.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from coterie.wire.errors import ConfigError
from coterie.wire.files import alone_in

PATIENCE_SECONDS = 5.0  # who only looks holds it for a moment, workers of one that was killed a little longer


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Within, this process is the one that works on the run directory."""
    refusal = ConfigError(
        f"run-dir = {str(run_dir)!r}: another process works on this run; wait for its end, or stop it with "
        f"`coterie stop {run_dir}`"
    )
    with alone_in(run_dir, refusal, PATIENCE_SECONDS):
        yield


def is_held(run_dir: Path) -> bool:
    try:
        handle = os.open(run_dir, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
