"""A long run with many real clients, some of which are killed at any time: does memory stay flat, is anything left behind?

    python benchmarks/soak.py [--clients 30] [--rounds 200] [--every 15] [--seed 1]

`coterie server`, a `coterie client` for each client and `coterie submit`, as on machines of their own. Every few seconds
(`--every`, a mean) something is killed with SIGKILL: in eight of ten cases a client, which is started again five seconds later,
else the SuperLink, the executor or the process that runs the method; the server starts these again itself. It prints rounds,
kills with the seconds until the next round ended, clients left out, megabytes (PSS) of the server's processes over the rounds
with their slope beside their mean, open files, and what was left behind at the end: processes, and files in the temporary
directory. Where the run does not come to its end, its last words.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from deployment import pss, tree

from coterie.runtime.keys import make_keys
from coterie.runtime.processes import Processes, free_ports, marked

BACK_SECONDS = 5.0  # until a killed client is started again
LOOK_SECONDS = 0.5
FIRST_KILL_SECONDS = 20.0
COTERIE = (sys.executable, "-P", "-m", "coterie")


class Soak:
    def __init__(self, home: Path, processes: Processes, clients: int, rounds: int) -> None:
        self.home, self.processes, self.rounds = home, processes, rounds
        self.keys, self.run_dir = home / "keys", home / "run"
        self.names = [f"c{i:02d}" for i in range(clients)]
        self.fleet, self.control = free_ports(2)
        make_keys(self.keys, self.names)

    def start(self, name: str, *words: str) -> None:
        directory = self.home / name
        directory.mkdir(exist_ok=True)
        temporary = {"TMPDIR": str(self.home / "tmp"), "OMP_NUM_THREADS": "1"}
        self.processes.start(name, [*COTERIE, *words], {**os.environ, **temporary}, directory)

    def start_server(self) -> None:
        ports = ("--fleet-port", str(self.fleet), "--control-port", str(self.control))
        self.start("server", "server", "--keys", str(self.keys), "--directory", str(self.home / "server"), *ports)

    def start_client(self, name: str) -> None:
        own = ("--key", str(self.keys / "clients" / name), "--root-certificates", str(self.keys / "ca.crt"))
        data = ("--partition", str(self.names.index(name)), "--num-partitions", str(len(self.names)))
        server = ("--server", f"127.0.0.1:{self.fleet}", "--state", str(self.home / "states" / name))
        self.start(name, "client", *server, *own, *data)

    def submit(self) -> None:
        where = ("--server", f"127.0.0.1:{self.control}", "--root-certificates", str(self.keys / "ca.crt"))
        keys = ("--num-clients", str(len(self.names)), "--num-server-rounds", str(self.rounds), "--local-epochs", "1")
        small = ("--strategy", "fedavg", "--task", "digits", "--evaluate-every", "10", "--round-timeout", "30")
        self.start("submit", "submit", *where, *keys, *small, "--run-dir", str(self.run_dir))

    def kill(self, rng: random.Random) -> str:
        """Kills one at random; returns its name."""
        if rng.random() < 0.8:
            name = rng.choice(self.names)
            os.killpg(self.processes.running[name].pid, signal.SIGKILL)
            return name
        kind = rng.choice(["superlink", "executor", "serverapp"])
        wanted = "superlink" if kind == "superlink" else "runtime.executor"
        server = tree(self.processes.running["server"].pid)[1:]
        found = [pid for pid in server if wanted in command_of(pid)]
        number = int(kind == "serverapp")  # forked from the executor, which comes first
        if len(found) <= number:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[number], signal.SIGKILL)
        return kind

    def events(self) -> list[dict]:
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):  # it ended just now
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def open_files(root: int) -> int:
    count = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            count += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("clients", 30), ("rounds", 200), ("every", 15), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        for name in ("logs", "tmp", "states"):
            (home / name).mkdir()
        with Processes(home / "logs") as processes:
            soak = Soak(home, processes, options.clients, options.rounds)
            kills, ended, memory, files = run(soak, rng, options.every)
            events, mark = soak.events(), processes.mark
            said = (home / "logs" / "submit.log").read_text().splitlines()
            finished = (soak.run_dir / "result.json").exists()
        left = [path.relative_to(home) for path in (home / "tmp").rglob("*") if path.is_file()]
    print(f"rounds {len(events)} of {options.rounds}, {'finished' if finished else 'NOT FINISHED'}")
    print("\n".join(said[-1 if finished else -40 :]))
    print(f"kills: {len(kills)}; left out {sum(len(event['left-out']) for event in events)} times")
    for kind in sorted({kind for kind, _ in kills}):
        after = [
            min((end - then for end in ended.values() if end > then), default=np.nan) for k, then in kills if k == kind
        ]
        print(
            f"{len(after)} x {kind}: a round ended {np.nanmedian(after):.1f} s later, at most {np.nanmax(after):.1f} s"
        )
    times = np.diff([ended[number] for number in sorted(ended)])
    print(f"from round to round: {np.median(times):.1f} s, at most {times.max():.1f} s")
    rounds = np.array(sorted(memory))
    megabytes, handles = (np.array([values[r] for r in rounds]) for values in (memory, files))
    half = len(rounds) // 10  # the first tenth fills caches
    slope = np.polyfit(rounds[half:], megabytes[half:], 1)[0] * 100
    print(
        f"server: mean {megabytes.mean():.0f} MB, slope {slope:+.1f} MB per 100 rounds ({slope / megabytes.mean():+.3f} of it)"
    )
    print(f"open files: {handles[half]} at round {rounds[half]}, {handles[-1]} at the end")
    print(f"left behind: {len(marked(mark))} processes, {len(left)} files {[str(path) for path in left[:5]]}")


def run(
    soak: Soak, rng: random.Random, every: float
) -> tuple[list[tuple[str, float]], dict[int, float], dict[int, float], dict[int, int]]:
    """Kills, by kind and time; when rounds ended; megabytes and open files then."""
    kills: list[tuple[str, float]] = []
    ended: dict[int, float] = {}
    memory: dict[int, float] = {}
    files: dict[int, int] = {}
    back: dict[str, float] = {}
    soak.start_server()
    for name in soak.names:
        soak.start_client(name)
    time.sleep(10)
    soak.submit()
    following = soak.processes.running["submit"]
    next_kill = time.monotonic() + FIRST_KILL_SECONDS
    while following.poll() is None:
        time.sleep(LOOK_SECONDS)
        now, rounds = time.monotonic(), len(soak.events())
        server = soak.processes.running["server"].pid
        if rounds and rounds not in ended:
            ended[rounds], memory[rounds], files[rounds] = now, pss(server), open_files(server)
            print(f"round {rounds}: {memory[rounds]:.0f} MB, {files[rounds]} files, {len(kills)} kills", flush=True)
        for name in [name for name, when in back.items() if now > when]:
            soak.processes.running[name].wait()
            soak.start_client(name)
            del back[name]
        if rounds and now > next_kill and (killed := soak.kill(rng)):
            kind = "client" if killed in soak.names else killed
            kills.append((kind, now))
            if kind == "client":
                back[killed] = now + BACK_SECONDS
            next_kill = now + rng.expovariate(1 / every)
    return kills, ended, memory, files


if __name__ == "__main__":
    main()
