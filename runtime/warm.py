"""A client's node, and the processes that answer for it: see client/forks.py."""

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from importlib import import_module

from coterie.cli.client import Device

GRACE_SECONDS = 3.0


def why_not() -> str:
    """Why this cannot be done here, or nothing if it can. Imports all that a node needs."""
    if sys.platform != "linux":
        return f"processes cannot be forked safely on {sys.platform}"
    try:
        import_module("coterie.runtime.node")
    except (ImportError, AttributeError) as error:
        return f"Flower is not as expected ({error})"
    gc.collect()
    gc.freeze()  # what is there now stays in memory that all processes share
    return ""


def run_warm_node(device: Device) -> str:
    """Run the node to its end; how it ended."""
    from coterie.runtime.forks import fork, serve_forks
    from coterie.runtime.node import run_node

    def say(text: str) -> None:
        print(f"client {device.name}: {text}", file=sys.stderr, flush=True)

    ours, theirs = socket.socketpair()

    def serve() -> None:
        ours.close()
        home = device.state / "flower"
        node = dict(device.node_config)
        run_node(theirs, device.server, device.authority, device.key, node, home, device.any_code, say)

    pid = fork(serve)
    theirs.close()
    try:
        return serve_forks(ours)
    finally:
        ours.close()
        _end(pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += GRACE_SECONDS
        time.sleep(0.02)
