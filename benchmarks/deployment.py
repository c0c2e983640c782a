"""What a message costs a real client, and how much memory it takes, beside Flower's own programs.

    python benchmarks/deployment.py [--clients 4] [--rounds 5]

A server and clients as processes on this machine, over gRPC with TLS and keys; LeNet-5 on the digits, one epoch. First as
`coterie server` and `coterie client` start them, then as `flower-superlink` and `flower-supernode` do, whose executors ask for
work every 0.1 s here and not every second, their default; the method on the server is the same. Rounds are counted from the
second: training and evaluation of all clients. CPU seconds are those of all processes, of the server too; they depend less on
what else the machine does.
Memory is the proportional set size (PSS) of all processes of one client, added up: idle before the first message, and the
largest while rounds were going on. PSS divides what clients share with each other on this machine, so it is given for the first
client alone too, before the others were started.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from coterie.deploy import LocalFederation
from coterie.runtime.control import Control, bundle
from coterie.runtime.keys import make_keys
from coterie.runtime.processes import Processes, free_ports
from coterie.runtime.programs import program, quoted, superlink_command
from coterie.server.app import checked_config
from coterie.strategies.registry import default_config
from coterie.wire.config import Value

CONFIG = {"model": "lenet5", "local-epochs": 1, "strategy": "fedavg", "task": "digits"}
SETTLE_SECONDS = 5.0


class StockFederation(LocalFederation):
    """The same with Flower's own programs."""

    def start_server(self) -> None:
        fleet = f"127.0.0.1:{self.fleet_port}"
        command = superlink_command(self.keys, "127.0.0.1", self.control_port, fleet, None)
        isolation = command.index("--isolation")
        self._start("superlink", [*command[:isolation], *command[isolation + 2 :]])

    def start_client(self, i: int, number: int, config: Mapping[str, Value]) -> None:
        node = f"partition-id={i} num-partitions={number} state-dir={quoted(str(self.run_dir / 'clients' / str(i)))}"
        node += f" data-root={quoted(str(config['data-root']))}"
        command = [
            program("flower-supernode"),
            *("--superlink", f"127.0.0.1:{self.fleet_port}", "--port", str(free_ports(1)[0])),
            *("--root-certificates", str(self.keys / "ca.crt"), "--node-config", node),
            *("--auth-supernode-private-key", str(self.keys / "clients" / str(i))),
        ]
        self._start(f"client-{i}", command)


def tree(root: int) -> list[int]:
    """A process and all that came from it."""
    found: list[int] = []
    for child in Path(f"/proc/{root}/task/{root}/children").read_text().split():
        found += tree(int(child))
    return [root, *found]


def pss(root: int) -> float:
    """Megabytes of a process and its descendants."""
    total = 0.0
    try:
        for pid in tree(root):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except OSError:
        pass  # it has just ended
    return total


def cpu_seconds(root: int) -> float:
    """Of a process and all that came from it, living or dead."""
    ticks = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])  # user, system, and those of its dead children
    return ticks / os.sysconf("SC_CLK_TCK")


class Peak(threading.Thread):
    """The largest memory of some clients while this runs."""

    def __init__(self, roots: list[int]) -> None:
        super().__init__(daemon=True)
        self.roots, self.largest, self.done = roots, 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            self.largest = max(self.largest, *(pss(root) for root in self.roots))


def measure(kind: type[LocalFederation], clients: int, rounds: int) -> dict[str, float]:
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        run_dir, home = Path(directory, "run"), Path(directory, "home")
        for path in (run_dir / "logs", run_dir / "clients", home):
            path.mkdir(parents=True)
        make_keys(run_dir / "keys", [str(i) for i in range(clients)])
        with Processes(run_dir / "logs") as processes:
            federation = kind(run_dir, home, processes, (None, None))
            federation.start_server()
            control = Control(federation.control_address, run_dir / "keys" / "ca.crt")
            control.wait_until_up(120, processes.check)
            for i in range(clients):
                control.register(run_dir / "keys" / "clients" / f"{i}.pub")
                federation.start_client(i, clients, default_config())
                if i == 0:
                    control.wait_for_clients(1, 120, processes.check)
                    time.sleep(SETTLE_SECONDS)
                    measured["idle, alone"] = pss(processes.running["client-0"].pid)
            control.wait_for_clients(clients, 120, processes.check)
            time.sleep(SETTLE_SECONDS)
            roots = [processes.running[f"client-{i}"].pid for i in range(clients)]
            measured["idle"] = max(pss(root) for root in roots)
            result = Path(directory, "result")
            config = {**CONFIG, "num-clients": clients, "num-server-rounds": rounds, "run-dir": str(result)}
            all_roots = [process.pid for process in processes.running.values()]
            peak = Peak(roots)
            peak.start()
            run = control.submit(bundle(checked_config(config)))
            spent = []  # after each round
            for line in control.log(run):
                if " round " in line:
                    spent.append(sum(cpu_seconds(root) for root in all_roots))
            peak.done.set()
            peak.join()
            if failure := control.failure(run):
                raise SystemExit(f"error: {failure}")
            control.close()
        events = [json.loads(line) for line in (result / "events.jsonl").read_text().splitlines()]
    measured["training"] = peak.largest
    measured["CPU seconds per round"] = (spent[-1] - spent[0]) / (len(spent) - 1)
    measured["seconds per round"] = statistics.median(e["seconds"] + e["evaluate-seconds"] for e in events[1:])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", None)
    if options.rounds < 2:
        sys.exit("error: rounds: at least 2, because the first is not counted")
    ours = measure(LocalFederation, options.clients, options.rounds)
    stock = measure(StockFederation, options.clients, options.rounds)
    console = Console()
    unit = {"seconds per round": "s", "CPU seconds per round": "s"}
    for name in ours:
        console.print(
            f"{name}: Coterie {ours[name]:.2f} {unit.get(name, 'MB')}, Flower {stock[name]:.2f} {unit.get(name, 'MB')}, "
            f"ratio {ours[name] / stock[name]:.3f}",
            highlight=False,
        )


if __name__ == "__main__":
    main()
