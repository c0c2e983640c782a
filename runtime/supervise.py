"""Keep a client connected: start its node, and start it again when it ends, with growing pauses and clear words."""

import contextlib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

from coterie.runtime.device import Device
from coterie.runtime.foreground import Stopped, say, stoppable
from coterie.runtime.forks import End, Ending
from coterie.runtime.stock import run_stock_node
from coterie.runtime.tls import Unreachable, check_server
from coterie.runtime.warm import run_warm_node, why_not
from coterie.wire.errors import RunFailed
from coterie.wire.files import sweep

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds; doubled after every failure
CONNECTED_SECONDS = 60.0  # who was connected for so long begins with the first pause again


def keep_connected(device: Device) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["FLWR_HOME"] = str(device.state / "flower")
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # to look for a GPU must not make it unusable in forked processes
    sweep(device.state)
    try:
        with stoppable():
            check_once(device)
            reason = why_not() or connect_for_ever(device, run_warm_node)
            if not device.any_code:
                raise RunFailed(
                    f"client {device.name}: {reason}, and Flower's own programs run whatever code a run brings; install the "
                    "version of Flower that Coterie asks for, or start without --installed-code-only and the owner's floors"
                )
            say(
                f"client {device.name}: {reason}; going on with Flower's own programs, seconds slower for every message"
            )
            connect_for_ever(device, run_stock_node)
    except Stopped:
        say(f"client {device.name} stopped")


def check_once(device: Device) -> None:
    """A wrong certificate is a mistake that waiting does not mend; a server that is not there yet is none."""
    with contextlib.suppress(Unreachable):
        check_server(device.server, device.authority)


def connect_for_ever(device: Device, run_node: Callable[[Device], End]) -> str:
    """`run_node` returns how the node ended. Returns why it is no use to try again this way."""
    pause, told = FIRST_PAUSE, ""
    while True:
        started = time.monotonic()
        try:
            check_server(device.server, device.authority)
            end = run_node(device)
            if end.kind is Ending.BROKEN:
                return f"Flower is not as expected ({end.reason})"
            reason = explained(end, device)
        except Unreachable as error:
            reason = str(error)
        if time.monotonic() - started > CONNECTED_SECONDS:
            pause, told = FIRST_PAUSE, ""
        if reason != told:
            say(f"client {device.name}: {reason}; trying again until it works")
        told = reason
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def explained(end: End, device: Device) -> str:
    """What Flower says of a refused key is the same for an unknown, a revoked and a used one."""
    if end.kind is Ending.CLOCK:
        return (
            f"the clock of this machine is wrong, or the server's: here it is {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. It may "
            "be five minutes slow and a few seconds fast; set it right, by NTP"
        )
    if end.kind is not Ending.REFUSED:
        return f"the connection ended: {end.reason}"
    return (
        f"the server refuses the key {device.key}. Either it is not registered there, or it was revoked: put "
        f"{device.key.name}.pub into clients/ of the server's keys directory, a new one if the old one was revoked. "
        "Or another client is connected with it; one that was killed counts as connected for a minute"
    )
