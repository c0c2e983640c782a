"""Baselines as a user calls them: presets name methods that there are, and real processes come to the same result."""

from typing import Any

import pytest

from coterie.presets import PRESETS
from coterie.strategies.registry import BUILT_IN as METHODS

PAPER = {
    "spo-synthetic": {"per-fedavg", "pfedme", "pfedhn"},
    "spo-adult": {"per-fedavg", "pfedme", "pfedhn", "afl", "q-ffl"},
    "spo-cifar10": {"per-fedavg", "lg-fedavg", "pfedme", "pfedhn"},
    "ce-heart": {"per-fedavg", "pfedme", "pfedhn", "afl"},
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_have_the_papers_baselines(name):
    strategies = PRESETS[name].strategies.split(",")
    assert PAPER[name] < set(strategies) <= set(METHODS) and len(set(strategies)) == len(strategies)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["lg-fedavg", "per-fedavg", "pfedme", "pfedhn", "afl", "q-ffl"])
def test_real_processes_come_to_the_same_result(sandbox: Any, strategy: str) -> None:
    common = ("--strategy", strategy, "--model", "mlp", "--num-server-rounds", "2", "--set", "pfedhn.hidden=8")
    up = sandbox.coterie("up", "--clients", "2", *common, "--run-dir", "up")
    assert up.returncode == 0, up.stderr
    done = sandbox.coterie("run", "--num-clients", "2", *common, "--workers", "1", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert (sandbox.path / "up" / "result.json").read_bytes() == (sandbox.path / "run" / "result.json").read_bytes()
    assert sandbox.left() == []
