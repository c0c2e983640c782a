"""A client's node as Flower has it: `flower-supernode`, which starts a new Python process for every message."""

import subprocess
import sys
from collections import deque

from coterie.cli.client import Device
from coterie.runtime.processes import end_with_parent, free_ports, reason_in
from coterie.runtime.programs import environment, program, quoted

GRACE_SECONDS = 5.0


def run_stock_node(device: Device) -> str:
    """Run it to its end; why it ended."""
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
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )
    lines: deque[str] = deque(maxlen=50)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            sys.stderr.write(line)
        return reason_in(lines)
    finally:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
