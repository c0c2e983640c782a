"""How much memory a client needs to play with five large models: in a process of its own, whose peak the kernel tells."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NETWORK = """
from torch import nn
def build(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 150_000), nn.ReLU(), nn.Linear(150_000, 8)), nn.Linear(8, num_outputs)
"""
CLIENT = """
import gc, json, sys
from pathlib import Path
import numpy as np
from flwr.app import Context, RecordDict
from coterie.client.participant import Participant
from coterie.strategies.pfedsv.client import personalize
from coterie.server.app import checked_config
from coterie.strategies.pfedsv.orders import PersonalizeOrder
from coterie.wire.messages import Sent

state, k = sys.argv[1], 5
config = checked_config({"strategy": "pfedsv", "task": "digits", "num-clients": 10, "model": state + "/net.py"})
node = {"partition-id": 0, "num-partitions": 10, "state-dir": state, "models": state + "/net.py"}
me = Participant.of(Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config))
network = me.network()
size = sum(part.nbytes for part in network.parts.values())
names = tuple(f"{i:016x}" for i in range(k))
me.store.keep(1, network.views())
for name in names:
    network.parts["classifier"] += 0.01
    me.store.keep_other(f"{name}-1", network.views())
parts = tuple(network.parts)
network(me.validation_samples().x[:2])
del network
gc.collect()

def status(key):
    return int(Path("/proc/self/status").read_text().split(key)[1].split()[0]) * 1024

Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS:")
order = PersonalizeOrder(1, k, 0.2, parts, names, (), (), names, (1,) * k, keep_models=True, evaluate=True)
personalize(me, order, Sent(order).content())
print(json.dumps({"model": size, "peak": status("VmHWM:") - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a process's peak in /proc")
def test_a_game_with_five_large_models_does_not_have_them_in_memory(tmp_path):
    """The network, what it was at the start of the first round, and activations of about one model's size; not seven models."""
    (tmp_path / "net.py").write_text(NETWORK)
    command = [sys.executable, "-c", CLIENT, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert 5 * told["model"] > 64 * 2**20
    assert told["peak"] < 4 * told["model"], told
