"""ShapleyFL among real processes: the ServerApp reads its own data, clients do harm, and the server finds them out."""

import json
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

GAME = ("--strategy", "afedsv-plus", "--server-data", "0.2", "--model", "mlp", "--partition", "iid")
GAME += ("--learning-rate", "0.2", "--num-server-rounds", "6")
COTERIE = (sys.executable, "-m", "cli")
# as an operator would start one SuperNode, with another --node-config than the others'
ONE_DOES_HARM = """
import sys
from cli import up
from cli.main import main

start = up.LocalFederation._start

def with_harm(self, name, command):
    if name == "client-3":
        command[command.index("--node-config") + 1] += " attack='sign-flip'"
    start(self, name, command)

up.LocalFederation._start = with_harm
main(sys.argv[1:])
"""


def test_bad_clients_of_the_run_configuration_are_found_and_the_run_is_the_simulated_one(sandbox: Any) -> None:
    bad = ("--set", "attack.kind=sign-flip", "--set", "attack.clients=3")
    done = sandbox.run([*COTERIE, "up", "--clients", "5", *GAME, *bad, "--run-dir", "up"], timeout=900)
    assert done.returncode == 0, done.stderr
    assert "suspects, with a score below -1: 3 (bad are 3; precision 1.00; recall 1.00)" in done.stdout + done.stderr
    assert sandbox.left() == []
    simulated = sandbox.coterie("run", "--num-clients", "5", *GAME, *bad, "--workers", "1", "--run-dir", "run")
    assert simulated.returncode == 0, simulated.stderr
    for name in ("result.json", "suspects.json"):
        assert (sandbox.path / "up" / name).read_bytes() == (sandbox.path / "run" / name).read_bytes()


def test_a_bad_client_of_which_the_run_knows_nothing_is_found(sandbox: Any) -> None:
    command = [sys.executable, "-c", ONE_DOES_HARM, "up", "--clients", "5", *GAME, "--run-dir", "up"]
    done = sandbox.run(command, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "suspects, with a score below -1: 3\n" in done.stdout + done.stderr
    found = json.loads((sandbox.path / "up" / "suspects.json").read_text())
    assert found["suspects"] == ["3"] and "bad-clients" not in found
