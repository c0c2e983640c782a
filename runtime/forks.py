"""The processes of `coterie client`: each is forked from the one before, and none takes another with it when it dies.

    the parent   starts the others and starts them again; it never touches data, nor anything that strangers send
    the node     speaks with the server (client/node.py)
    a run        has torch, the app's code for this run and its data set in memory; forks for every message (client/answer.py)
    an answer    trains or tests, sends its reply, and ends; it may raise, run out of memory or be killed

So torch is imported once per run and not once per message, and an idle client is small: it has none.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def fork(child: Callable[[], None]) -> int:
    """Run `child` in a new process that ends with this one; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        child()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def serve_forks(control: socket.socket) -> str:
    """The parent's work: a new process for every run that the node asks for. Returns what the node said at its end."""
    runs: set[int] = set()
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
            runs = {pid for pid in runs if os.waitpid(pid, os.WNOHANG)[0] == 0}
            if not descriptors:
                return data.decode()
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
    from coterie.runtime.answer import serve_run  # not before: it imports torch

    serve_run(control)
