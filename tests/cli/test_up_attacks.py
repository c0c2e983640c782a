"""ShapleyFL among real processes: the ServerApp reads its own data, clients do harm, and the server finds them out."""

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

GAME = ("--strategy", "afedsv-plus", "--server-data", "0.2", "--model", "mlp", "--partition", "iid")
GAME += ("--learning-rate", "0.2", "--num-server-rounds", "6")
COTERIE = (sys.executable, "-m", "coterie")


def test_bad_clients_of_the_run_configuration_are_found_and_the_run_is_the_simulated_one(sandbox: Any) -> None:
    bad = ("--set", "attack.kind=sign-flip", "--set", "attack.clients=3")
    done = sandbox.run([*COTERIE, "up", "--clients", "5", *GAME, *bad, "--run-dir", "up"], timeout=900)
    assert done.returncode == 0, done.stderr
    assert "suspects, with a score below -2: 3 (bad are 3; precision 1.00; recall 1.00)" in done.stdout + done.stderr
    assert sandbox.left() == []
    simulated = sandbox.coterie("run", "--num-clients", "5", *GAME, *bad, "--workers", "1", "--run-dir", "run")
    assert simulated.returncode == 0, simulated.stderr
    for name in ("result.json", "findings.json"):
        assert (sandbox.path / "up" / name).read_bytes() == (sandbox.path / "run" / name).read_bytes()
