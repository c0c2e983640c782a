"""`coterie server`, `client` and `submit`: a federation of real processes, and what becomes of it when some of them die."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.runs import open_run
from coterie.runtime.keys import make_keys, revoke_keys
from coterie.runtime.processes import free_ports
from coterie.server.checkpoints import read_events

SMALL = ("--model", "linear", "--strategy", "fedper")
# Flower tells of a lost client after one minute, and after three of one that was killed while it handed over its answer.
TOLD = 300


class Site:
    """A server and its clients, each a command as one would type it."""

    def __init__(self, box: Any, clients: int = 2) -> None:
        self.box, self.keys = box, box.path / "keys"
        self.control, self.fleet, self.metrics = free_ports(3)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        make_keys(self.keys, [str(i) for i in range(clients)])
        self.clients = clients

    def start_server(self) -> None:
        ports = ("--fleet-port", str(self.fleet), "--control-port", str(self.control))
        options = ("--keys", str(self.keys), "--directory", "server", "--host", "127.0.0.1")
        options += ("--metrics-port", str(self.metrics))
        self.processes["server"] = self.box.start_coterie("server", *options, *ports, log="server.log")
        self.box.wait_for("runs are submitted to", "server.log", self.processes["server"])

    def start_client(self, name: str, *options: str, log: str = "") -> subprocess.Popen[bytes]:
        where = ("--server", f"127.0.0.1:{self.fleet}", "--key", str(self.keys / "clients" / name))
        log = log or f"{name}.log"
        self.processes[name] = self.box.start_coterie("client", *where, *options, log=log)
        return self.processes[name]

    def start(self) -> "Site":
        self.start_server()
        for i in range(self.clients):
            self.start_client(str(i))
        for i in range(self.clients):
            self.box.wait_for("connected to", f"{i}.log", self.processes[str(i)])
        return self

    def submit_options(self, *options: str) -> tuple[str, ...]:
        where = ("--server", f"127.0.0.1:{self.control}", "--root-certificates", str(self.keys / "ca.crt"))
        return ("submit", *where, *SMALL, *options)

    def submit(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.box.coterie(*self.submit_options(*options))

    def events(self, run_dir: str) -> list[dict[str, Any]]:
        path = self.box.path / "server" / run_dir / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def site(make_sandbox: Callable[[], Any]) -> Iterator[Site]:
    yield Site(make_sandbox()).start()


@pytest.fixture
def own_site(sandbox: Any) -> Site:
    return Site(sandbox).start()


def test_a_run_to_its_end(site: Site) -> None:
    done = site.submit("--num-server-rounds", "2", "--run-dir", "first")
    assert done.returncode == 0, done.stderr
    assert "round 2/2:" in done.stderr
    result = json.loads((site.box.path / "server" / "first" / "result.json").read_text())
    assert result["mean-test-accuracy"]["personal"] > 0.5
    assert (site.box.path / "clients" / "0" / "models" / "0.safetensors").exists()
    for i in ("0", "1"):
        log = site.box.read(f"{i}.log")
        assert "round 2, evaluate" in log and "Flower's own programs" not in log
    told = told_to_prometheus(site)
    files = (site.box.path / "server").glob("**/events.jsonl")
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert told["coterie_rounds_total"] == len(events) >= 2 and told['coterie_clients{state="connected"}'] == 2
    for way in ("down", "up"):
        in_events = sum(sum(event[f"bytes-{way}"].values()) for event in events)
        assert told[f'coterie_bytes_total{{direction="{way}"}}'] == in_events
    assert told['coterie_seconds_total{part="training"}'] == pytest.approx(sum(event["seconds"] for event in events))
    assert all(
        told[f'coterie_memory_bytes{{process="{name}"}}'] > 2**20 for name in ("server", "superlink", "executor")
    )
    assert abs(told["coterie_last_round_timestamp_seconds"] - time.time()) < 600


def told_to_prometheus(site: Site) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{site.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.mark.slow
def test_a_run_that_fails_says_why(site: Site) -> None:
    done = site.submit("--device", "cuda:99")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: 0 of 2 clients joined") and "cuda:99" in last
    assert "Traceback" not in done.stderr
    assert all(site.processes[name].poll() is None for name in ("server", "0", "1"))


def test_a_stranger_is_refused_and_told_why(site: Site) -> None:
    """A key that the server does not know, with the right authority; and one that is in use."""
    make_keys(site.box.path / "strange", ["0"])
    where = (
        "--server",
        f"127.0.0.1:{site.fleet}",
        "--root-certificates",
        str(site.keys / "ca.crt"),
        "--state",
        "strange",
    )
    key = str(site.box.path / "strange" / "clients" / "0")
    stranger = site.box.start_coterie("client", *where, "--key", key, log="stranger.log")
    site.box.wait_for("refuses the key", "stranger.log", stranger)
    assert told_to_prometheus(site)["coterie_requests_refused_total"] > 0
    said = site.box.read("stranger.log")
    assert "0.pub" in said and "connected to" not in said and stranger.poll() is None
    stranger.send_signal(signal.SIGTERM)
    assert stranger.wait(timeout=30) == 0
    done = site.box.coterie("client", *where, "--key", str(site.keys / "clients" / "0"))
    assert done.returncode == 2 and "is used by another client" in done.stderr


def test_a_run_is_followed_and_stopped_from_elsewhere(site: Site, coterie: Any) -> None:
    """Nobody has to stay: those who submit, and those who watch, come and go."""
    box, where = site.box, site.submit_options()[1:5]
    code, _, err = coterie(*site.submit_options("--num-server-rounds", "500", "--run-dir", "long", "--detach"))
    number = re.search(r"run (\d+), 2 clients", err)[1]
    assert code == 0 and f"coterie watch {number} --server" in err and f"coterie stop {number} --server" in err
    watching = box.start_coterie("watch", number, *where, log="watch.log")
    box.wait_for("round 2/500:", "watch.log", watching)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=60) == 0 and "the run goes on" in box.read("watch.log")
    code, out, _ = coterie("runs", *where)
    assert code == 0 and re.search(rf"{number}.*fedper on digits.*running.*of 500.* s .*2 ", out), out
    code, out, _ = coterie("runs", box.path / "server")
    assert code == 0 and re.search(r"long.*running.*of 500", out), out
    code, out, _ = coterie("stop", *where)  # the only one
    assert (code, out) == (0, f"run {number}: stopped\n")
    code, _, err = coterie("stop", number, *where)
    assert code == 2 and "is not running (stopped)" in err
    code, _, err = coterie("watch", "17", *where)
    assert code == 2 and "no such run" in err
    deadline = time.monotonic() + 60
    while (status := open_run(box.path / "server" / "long").status).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert (status.state, status.why) == ("stopped", "by its server")


@pytest.mark.slow
def test_a_submit_that_is_ended_says_how_to_go_on_and_the_run_says_whom_it_waits_for(own_site: Site) -> None:
    box = own_site.box
    submit = own_site.submit_options("--num-server-rounds", "500", "--run-dir", "run", "--round-timeout", "600")
    run = box.start_coterie(*submit, log="submit.log")
    box.wait_for("round 1/500:", "submit.log", run)
    node = own_site.processes["1"]
    os.killpg(node.pid, signal.SIGSTOP)
    box.wait_for("waiting for 1 (", "submit.log", run)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 143
    assert "the run goes on.\nto follow it: coterie watch " in box.read("submit.log")
    waiting = open_run(box.path / "server" / "run").status.waiting
    assert waiting.clients == ("1",) and waiting.until == pytest.approx(waiting.since + 600)
    done = box.coterie("stop", str(box.path / "server" / "run"))  # by its directory, while it waits
    assert done.returncode == 0 and "by `coterie stop`" in done.stdout, done.stderr
    os.killpg(node.pid, signal.SIGCONT)


def test_another_federations_certificate_is_refused_at_once(site: Site) -> None:
    make_keys(site.box.path / "other", ["0"])
    key = str(site.box.path / "other" / "clients" / "0")
    done = site.box.coterie("client", "--server", f"127.0.0.1:{site.fleet}", "--key", key)
    assert done.returncode == 2 and "was not signed by" in done.stderr and "Traceback" not in done.stderr
    done = site.box.coterie("submit", "--server", f"127.0.0.1:{site.control}", "--root-certificates", f"{key}")
    assert done.returncode == 2 and "root-certificates" in done.stderr


def test_stopping_ends_all(site: Site) -> None:
    """The last of those who use this federation."""
    for name in ("0", "1", "server"):
        site.processes[name].send_signal(signal.SIGTERM)
        assert site.processes[name].wait(timeout=30) == 0
    assert site.box.left() == []
    assert "client 0 stopped" in site.box.read("0.log")


@pytest.mark.slow
def test_plain_text_is_refused(own_site: Site) -> None:
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{own_site.fleet}", "--port", str(free_ports(1)[0])]
    stranger = own_site.box.start([*command, "--insecure", "--max-retries", "1"], "plain.log")
    assert stranger.wait(timeout=90) != 0
    assert "SuperNode ID" not in own_site.box.read("plain.log")


def pids_of(root: int) -> list[int]:
    """A process and all below it; some end while they are listed."""
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        found = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    return [root, *(other for child in found for other in pids_of(int(child)))]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_client_comes_back_by_itself(own_site: Site) -> None:
    box = own_site.box
    run = box.start_coterie(*own_site.submit_options("--num-server-rounds", "15", "--run-dir", "run"), log="submit.log")
    box.wait_for("round 2/15:", "submit.log", run)
    own_site.processes["0"].kill()
    own_site.processes["0"].wait()
    box.wait_for("round 3/15:", "submit.log", run, timeout=TOLD)
    again = own_site.start_client("0", log="again.log")
    box.wait_for("connected to", "again.log", again)
    assert run.wait(timeout=300) == 0, box.read("submit.log")
    events = own_site.events("run")
    assert [event["round"] for event in events] == list(range(1, 16))
    assert set(events[-1]["train"]) == {"0", "1"}
    result = json.loads((box.path / "server" / "run" / "result.json").read_text())
    assert set(result["clients"]) == {"0", "1"}


@pytest.mark.slow
def test_the_node_of_a_client_may_die_too(own_site: Site) -> None:
    box = own_site.box
    run = box.start_coterie(*own_site.submit_options("--num-server-rounds", "10", "--run-dir", "run"), log="submit.log")
    box.wait_for("round 2/10:", "submit.log", run)
    for pid in pids_of(own_site.processes["0"].pid)[1:]:
        kill(pid)
    assert run.wait(timeout=TOLD) == 0, box.read("submit.log")
    assert own_site.processes["0"].poll() is None
    assert box.read("0.log").count("connected to") == 2
    assert set(own_site.events("run")[-1]["train"]) == {"0", "1"}


@pytest.mark.slow
def test_a_killed_superlink_loses_nothing(own_site: Site) -> None:
    box = own_site.box
    run = box.start_coterie(*own_site.submit_options("--num-server-rounds", "8", "--run-dir", "run"), log="submit.log")
    box.wait_for("round 2/8:", "submit.log", run)
    for pid in pids_of(own_site.processes["server"].pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "coterie.runtime.superlink" in Path(f"/proc/{pid}/cmdline").read_text():
                kill(pid)
    assert run.wait(timeout=300) == 0, box.read("submit.log")
    assert "superlink ended with code -9" in box.read("server.log")
    events = own_site.events("run")
    assert [event["round"] for event in events] == list(range(1, 9))
    assert all(set(event["train"]) == {"0", "1"} for event in events)


@pytest.mark.slow
def test_killed_executors_and_servers_change_no_byte_and_a_finished_run_is_prolonged(own_site: Site) -> None:
    """First the executor is killed, then the server, which takes all of its processes with it and is started again."""
    box, home = own_site.box, own_site.box.path / "server" / "run"
    options = ("--num-server-rounds", "7", "--partition", "iid", "--num-clients", "2", "--labels-per-client", "10")
    for rounds in ("7", "9"):
        alone = (
            "run",
            *SMALL,
            *options[2:],
            "--num-server-rounds",
            rounds,
            "--workers",
            "0",
            "--run-dir",
            f"alone-{rounds}",
        )
        done = box.coterie(*alone)
        assert done.returncode == 0, done.stderr
    run = box.start_coterie(*own_site.submit_options(*options, "--run-dir", "run"), log="submit.log")
    box.wait_for("round 2/7:", "submit.log", run)
    kill(box.executor())
    box.wait_for("executor ended with code -9", "server.log", own_site.processes["server"])
    box.wait_for("its rest is run", "server/logs/executor.log", own_site.processes["server"])
    until(lambda: len(own_site.events("run")) > 3)
    kill(own_site.processes["server"].pid)
    own_site.processes["server"].wait()
    assert not (home / "result.json").exists()
    own_site.start_server()
    until((home / "result.json").exists)
    same_results(home, box.path / "alone-7")
    where = own_site.submit_options()[1:5]
    done = box.coterie("resume", str(home), *where, "--num-server-rounds", "9")
    assert done.returncode == 0, done.stderr
    same_results(home, box.path / "alone-9")


@pytest.mark.slow
def test_a_machine_that_goes_down_with_all_its_processes_goes_on_when_it_is_back(own_site: Site) -> None:
    """Server, clients and who submitted are killed at once, in the middle of a round; the first two are started again."""
    box, home = own_site.box, own_site.box.path / "server" / "run"
    options = ("--num-server-rounds", "7", "--partition", "iid", "--num-clients", "2", "--labels-per-client", "10")
    done = box.coterie("run", *SMALL, *options, "--workers", "0", "--run-dir", "alone")
    assert done.returncode == 0, done.stderr
    box.start_coterie(*own_site.submit_options(*options, "--run-dir", "run"), log="submit.log")
    until(lambda: len(read_events(home)) > 2)
    box.end()
    assert box.left() == [] and not (home / "result.json").exists()
    own_site.start()
    until((home / "result.json").exists)
    same_results(home, box.path / "alone")
    assert [event["left-out"] for event in own_site.events("run")] == [{}] * 7


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TOLD
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def same_results(one: Path, other: Path) -> None:
    assert (one / "result.json").read_bytes() == (other / "result.json").read_bytes()
    states = [path / "checkpoint" / "state.safetensors" for path in (one, other)]
    assert states[0].read_bytes() == states[1].read_bytes()


@pytest.mark.slow
def test_a_crash_in_training_does_not_end_the_client(own_site: Site) -> None:
    """A client whose data kill the process that loads them, until they are mended."""
    box = own_site.box
    trap = box.path / "trap"
    script = box.path / "data.py"
    script.write_text(
        "import os, signal\nimport numpy as np\n"
        f"if os.path.exists({str(trap)!r}):\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def load():\n    rng = np.random.default_rng(0)\n"
        "    return {'x': rng.normal(size=(60, 1, 8, 8)).astype('float32'), 'y': np.arange(60) % 10}\n"
    )
    own_site.processes["1"].send_signal(signal.SIGTERM)
    own_site.processes["1"].wait(timeout=30)
    mended = own_site.start_client("1", "--data", str(script), log="own.log")
    box.wait_for("connected to", "own.log", mended)
    trap.touch()
    done = own_site.submit("--num-clients", "2", "--num-server-rounds", "1", "--quorum", "1.0")
    assert done.returncode == 2 and "SIGSEGV" in done.stderr, done.stderr
    trap.unlink()
    done = own_site.submit("--num-clients", "2", "--num-server-rounds", "1")
    assert done.returncode == 0, done.stderr
    assert mended.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_over_200_messages(sandbox: Any) -> None:
    site = Site(sandbox, clients=1).start()
    options = site.submit_options("--num-server-rounds", "100", "--labels-per-client", "10", "--run-dir", "run")
    run = sandbox.start_coterie(*options, log="submit.log")
    sizes = []
    for server_round in (25, 100):
        sandbox.wait_for(f"round {server_round}/100:", "submit.log", run, timeout=1500)
        sizes.append([resident(pid) for pid in pids_of(site.processes["0"].pid)[:3]])  # parent, node, run
    assert run.wait(timeout=60) == 0, sandbox.read("submit.log")
    assert sandbox.read("0.log").count(" s\n") >= 200
    for before, after in zip(*sizes, strict=True):
        assert after < before + 30 * 2**20


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_keys_that_appear_and_disappear(own_site: Site) -> None:
    box = own_site.box
    make_keys(own_site.keys, ["ward-7"])
    box.wait_for("client ward-7: registered", "server.log", own_site.processes["server"])
    late = own_site.start_client("ward-7", "--partition", "1")
    box.wait_for("connected to", "ward-7.log", late)
    box.wait_for("client ward-7: connected", "server.log", own_site.processes["server"])
    revoke_keys(own_site.keys, ["ward-7"])
    box.wait_for("refused from now on", "server.log", own_site.processes["server"])
    box.wait_for("refuses the key", "ward-7.log", late)
    assert own_site.processes["0"].poll() is None and "refuses" not in box.read("0.log")


@pytest.mark.slow
def test_a_name_belongs_to_its_key(own_site: Site) -> None:
    own_site.processes["1"].send_signal(signal.SIGTERM)
    own_site.processes["1"].wait(timeout=30)
    thief = own_site.start_client("1", "--name", "0", "--state", "thief", log="thief.log")
    own_site.box.wait_for("connected to", "thief.log", thief)
    done = own_site.submit("--num-clients", "2", "--num-server-rounds", "1", "--quorum", "1.0")
    assert done.returncode == 2
    assert re.search(r"its key is registered as '1'", done.stderr), done.stderr


@pytest.mark.slow
def test_ctrl_c_stops_the_run_on_the_server(own_site: Site) -> None:
    box = own_site.box
    run = box.start_coterie(
        *own_site.submit_options("--num-server-rounds", "500", "--run-dir", "run"), log="submit.log"
    )
    box.wait_for("round 1/500:", "submit.log", run)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    time.sleep(5)
    before = len(own_site.events("run"))
    time.sleep(5)
    assert len(own_site.events("run")) == before
    done = own_site.submit("--num-server-rounds", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_where_flower_is_not_as_expected_its_own_programs_are_used(own_site: Site) -> None:
    box = own_site.box
    own_site.processes["1"].send_signal(signal.SIGTERM)
    own_site.processes["1"].wait(timeout=30)
    broken = (
        "import sys\n"
        "sys.modules['flwr.client.grpc_rere_client.node_auth_client_interceptor'] = None\n"
        "from coterie.cli.entry import main\nmain()\n"
    )
    where = ("--server", f"127.0.0.1:{own_site.fleet}", "--key", str(own_site.keys / "clients" / "1"))
    stock = box.start([sys.executable, "-c", broken, "client", *where], "stock.log")
    box.wait_for("going on with Flower's own programs", "stock.log", stock)
    box.wait_for("SuperNode ID", "stock.log", stock)
    done = own_site.submit("--num-clients", "2", "--num-server-rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "Flower is not as expected" in box.read("stock.log")
