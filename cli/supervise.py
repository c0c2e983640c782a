"""Keep a client connected: start its node, and start it again when it ends, with growing pauses and clear words."""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from cli.client import Device
from cli.stock import run_stock_node
from cli.tls import Unreachable, check_server

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds; doubled after every failure
HEARTBEAT_SECONDS = 60.0  # a killed client counts as connected for so long


class Stopped(Exception):
    """A signal asked this program to end."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def keep_connected(device: Device) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        connect_for_ever(device, run_stock_node)
    except Stopped:
        say(f"client {device.name} stopped")


def connect_for_ever(device: Device, run_node: Callable[[Device], str]) -> NoReturn:
    """`run_node` returns when the node has ended, with the reason."""
    pause, told = FIRST_PAUSE, ""
    while True:
        started = time.monotonic()
        try:
            check_server(device.server, device.authority)
            reason = explained(run_node(device), device)
        except Unreachable as error:
            reason = str(error)
        if time.monotonic() - started > HEARTBEAT_SECONDS:
            pause, told = FIRST_PAUSE, ""
        if reason != told:
            say(f"client {device.name}: {reason}; trying again until it works")
        told = reason
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def explained(reason: str, device: Device) -> str:
    """What Flower says of a refused key is the same for an unknown, a revoked and a used one."""
    if "Failed to activate SuperNode" not in reason and "Invalid node ID" not in reason:
        return f"the connection ended: {reason}"
    return (
        f"the server refuses the key {device.key}. Either it is not registered there, or it was revoked: put "
        f"{device.key.name}.pub into clients/ of the server's keys directory. Or another client "
        "is connected with it; one that was killed counts as "
        f"connected for up to {HEARTBEAT_SECONDS:g} s"
    )


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Stopped
