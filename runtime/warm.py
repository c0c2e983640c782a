"""A client's node, and the processes that answer for it: see forks.py."""

import gc
import socket
import sys
from importlib import import_module

from coterie.runtime.device import Device
from coterie.runtime.foreground import say
from coterie.runtime.forks import End, end, fork, serve_forks


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


def run_warm_node(device: Device) -> End:
    """Run the node to its end; how it ended."""
    from coterie.runtime.node import run_node

    ours, theirs = socket.socketpair()

    def serve() -> None:
        ours.close()
        run_node(theirs, device, lambda text: say(f"client {device.name}: {text}"))

    pid = fork(serve)
    theirs.close()
    try:
        return serve_forks(ours)
    finally:
        ours.close()
        end(pid)
