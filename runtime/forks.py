"""The processes of `coterie client`: each is forked from the one before, and none takes another with it when it dies.

    the parent   starts the others and starts them again; it never touches data, nor anything that strangers send
    the node     speaks with the server (node.py)
    a run        has torch, the app's code for this run and its data set in memory; forks for every message (answer.py)
    an answer    trains or tests, sends its reply, and ends; it may raise, run out of memory or be killed

So torch is imported once per run and not once per message, and an idle client is small: it has none.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from coterie.runtime.foreground import leave_it_to_the_parent

GRACE_SECONDS = 3.0
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Ending(StrEnum):
    STOPPED = "stopped"
    REFUSED = "refused"  # the server does not let its key in
    CLOCK = "clock"  # the same, because of the time
    LOST = "lost"  # the connection, or the process
    BROKEN = "broken"  # Flower is not as expected


class End(NamedTuple):
    """How a node ended, and why."""

    kind: Ending
    reason: str = ""

    def to_bytes(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def of(cls, data: bytes) -> "End":
        """What a node said at its end; nothing if it was killed."""
        if not data:
            return cls(Ending.LOST, "its process was killed")
        kind, reason = json.loads(data)
        return cls(Ending(kind), reason)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Runs in a new process: when its parent, or the thread that started it, ends without a word, Linux sends it this signal."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, number)


def fork(child: Callable[[], None], at_parents_end: int = signal.SIGKILL) -> int:
    """Run `child` in a new process that ends with this one; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(at_parents_end)
        leave_it_to_the_parent()
        child()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def end(pid: int) -> None:
    """Ask a child to end, end it if it does not, and wait until it has."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += GRACE_SECONDS
        time.sleep(0.02)


def living(children: set[int]) -> set[int]:
    """Those that have not ended; the others are not heard of again."""
    return {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0] == 0}


def serve_forks(control: socket.socket) -> End:
    """The parent's work: a new process for every run that the node asks for. Returns what the node said at its end."""
    runs: set[int] = set()
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
            runs = living(runs)
            if not descriptors:
                return End.of(data)
            handed = socket.socket(fileno=descriptors[0])
            runs.add(fork(lambda: _serve_run(control, handed)))  # noqa: B023 - runs before the next
            handed.close()
    finally:
        for pid in runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve_run(parent: socket.socket, control: socket.socket) -> None:
    parent.close()
    from coterie.runtime.answer import serve_run  # not before: the parent stays small

    serve_run(control)
