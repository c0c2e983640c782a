"""A federation of real processes in which four of six clients hold up whoever waits for them; the others notice little."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.runtime.keys import make_keys
from coterie.runtime.processes import free_ports

TIMEOUT = 8
ANNOUNCES = """
from coterie.runtime import fleet
original = fleet.Fleet.reply
def reply(self, message, tree, contents, seconds):
    if message.metadata.message_type == "query.hello":
        return original(self, message, tree, contents, seconds)
    self._call(self.stub.PushMessages, fleet.PushMessagesRequest(
        node=self.node, messages_list=[fleet.message_to_proto(message)], message_object_trees=[tree]))
fleet.Fleet.reply = reply
"""
DRIPS = """
import time
from coterie.runtime import fleet
original = fleet.Fleet._call
def call(self, method, request):
    if isinstance(request, fleet.PushObjectRequest) and self.slow:
        time.sleep(60)
    return original(self, method, request)
def reply(self, message, tree, contents, seconds):
    self.slow = message.metadata.message_type != "query.hello"
    return announce(self, message, tree, contents, seconds)
announce = fleet.Fleet.reply
fleet.Fleet._call, fleet.Fleet.reply = call, reply
"""
STOPS = """
import os, signal
from coterie.runtime import answer
original = answer._reply
def reply(message, *others):
    if message.metadata.group_id not in ("0", "1"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return original(message, *others)
answer._reply = reply
"""
SILENT = "from coterie.runtime import fleet\nfleet.Fleet.receive = lambda self: None\n"
TRICKS = {"2": ANNOUNCES, "3": SILENT, "4": STOPS, "5": DRIPS}
STRANGER = """
import sys, grpc
credentials = grpc.ssl_channel_credentials(open(sys.argv[1], "rb").read())
channel = grpc.secure_channel(sys.argv[2], credentials, options=[("grpc.max_send_message_length", -1)])
try:
    channel.unary_unary("/flwr.proto.Fleet/PushObject")(bytes(200 * 2**20), timeout=60)
except grpc.RpcError as error:
    print(error.code().name)
"""


def start(box: Any) -> tuple[Path, int, int]:
    keys = box.path / "keys"
    make_keys(keys, ["0", "1", *TRICKS])
    control, fleet = free_ports(2)
    ports = ("--fleet-port", str(fleet), "--control-port", str(control))
    options = ("--keys", str(keys), "--directory", "server", "--host", "127.0.0.1")
    server = box.start_coterie("server", *options, *ports, log="server.log")
    box.wait_for("runs are submitted to", "server.log", server)
    for name, trick in {"0": "", "1": "", **TRICKS}.items():
        where = ("--server", f"127.0.0.1:{fleet}", "--key", str(keys / "clients" / name), "--num-partitions", "6")
        code = f"{trick}\nfrom coterie.cli.entry import main\nmain()\n"
        client = box.start([sys.executable, "-c", code, "client", *where], f"{name}.log")
        box.wait_for("connected to", f"{name}.log", client)
    return keys, control, fleet


@pytest.mark.slow
def test_only_the_culprits_are_left_out(sandbox: Any, federate: Any) -> None:
    keys, control, fleet = start(sandbox)
    where = ("--server", f"127.0.0.1:{control}", "--root-certificates", str(keys / "ca.crt"))
    patience = ("--round-timeout", str(TIMEOUT), "--join-timeout", "40", "--num-clients", "6", "--quorum", "0.3")
    what = ("--strategy", "fedavg", "--model", "linear", "--num-server-rounds", "5", "--partition", "iid")
    done = sandbox.coterie("submit", *where, *patience, *what, "--local-epochs", "1", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    home = sandbox.path / "server" / "run"
    events = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    longer_and_longer_pauses = [["2", "5"], ["2", "4", "5"], ["4"], ["2", "5"], ["4"]]
    assert [list(event["left-out"]) for event in events] == longer_and_longer_pauses
    assert all(set(event["train"]) == {"0", "1"} | ({"4"} if event["round"] == 1 else set()) for event in events)
    assert all({"0", "1"} <= set(event["evaluate"]) for event in events)  # the healthy are never blamed
    assert max(event["seconds"] for event in events) < TIMEOUT + 60  # Flower's own pull: 180 s more
    print("seconds", [(event["seconds"], event["evaluate-seconds"]) for event in events])

    def tamper(asked, answer, name):
        heard = {"2": ("0",), "3": (), "4": ("0", "1"), "5": ("0",)}  # rounds; hello comes before the first
        return answer if asked.metadata.group_id in heard.get(name, (asked.metadata.group_id,)) else None

    settings = {"strategy": "fedavg", "model": "linear", "num_server_rounds": 5, "round_timeout": 0.1}
    settings |= {"num_clients": 6, "quorum": 0.3}
    alone = federate(tamper=tamper, join_timeout=0.1, **settings)
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (home, alone.path))
    for kind in ("global", "personal"):
        assert ours["models"][kind]["clients"] == theirs["models"][kind]["clients"]
    assert (home / "checkpoint" / "state.safetensors").read_bytes() == (
        alone.path / "checkpoint" / "state.safetensors"
    ).read_bytes()
    stranger = sandbox.run([sys.executable, "-c", STRANGER, str(keys / "ca.crt"), f"127.0.0.1:{fleet}"])
    assert stranger.stdout.strip() == "UNAUTHENTICATED"
    assert peak_of_superlink(sandbox) < 300 * 2**20  # 794 MB without the gate


def peak_of_superlink(box: Any) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                box.mark.encode() in (entry / "environ").read_bytes()
                and "runtime.superlink" in (entry / "cmdline").read_text()
            ):
                (line,) = (line for line in (entry / "status").read_text().splitlines() if line.startswith("VmHWM"))
                return int(line.split()[1]) * 1024
        except OSError:
            continue
    raise AssertionError("no SuperLink")
