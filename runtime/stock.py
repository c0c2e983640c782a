"""A client's node as Flower has it: `flower-supernode`, which starts a new Python process for every message."""

import subprocess
import sys
from collections import deque

from coterie.runtime.device import Device
from coterie.runtime.forks import End, Ending, end, end_with_parent
from coterie.runtime.processes import free_ports, reason_in
from coterie.runtime.programs import environment, program, quoted

REFUSALS = ("Failed to activate SuperNode", "Invalid node ID")  # in its log; it has no other way to tell


def run_stock_node(device: Device) -> End:
    """Run it to its end; how it ended."""
    node_config = " ".join(
        f"{key}={quoted(value) if isinstance(value, str) else value}" for key, value in device.node_config.items()
    )
    command = [
        program("flower-supernode"),
        "--superlink",
        device.server,
        "--port",
        str(free_ports(1)[0]),
        "--root-certificates",
        str(device.authority),
        "--auth-supernode-private-key",
        str(device.key),
        "--node-config",
        node_config,
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(device.state / "flower"),
        cwd=device.state / "flower",
        text=True,
        errors="replace",
        preexec_fn=end_with_parent,
    )
    lines: deque[str] = deque(maxlen=50)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            sys.stderr.write(line)
        reason = reason_in(lines)
        return End(Ending.REFUSED if any(text in reason for text in REFUSALS) else Ending.LOST, reason)
    finally:
        end(process.pid)
        process.wait()
