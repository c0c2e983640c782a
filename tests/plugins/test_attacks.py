"""Harm from outside, as an entry point."""

import numpy as np
import pytest

import coterie
from coterie.client.attacks import Attack
from coterie.wire.errors import ConfigError

FEW = {"num_server_rounds": 1, "num_clients": 3, "model": "linear", "workers": 0, "progress": False}


class Zeros(Attack):
    """Sends nothing but zeros."""

    def on_update(self, start, trained, server_round):
        return {part: np.zeros_like(value) for part, value in trained.items()}


def test_a_kind_of_harm_from_outside(install, tmp_path):
    install("coterie.attacks", zeros=Zeros)
    harm = {"attack.kind": "zeros", "attack.clients": "0,1,2"}
    run = coterie.run("fedavg", run_dir=tmp_path / "run", settings=harm, **FEW)
    x = np.random.default_rng(0).normal(size=(2, 1, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run.model("0").predict(x), 0.1, rtol=1e-6)  # all weights are zero: ten labels alike
    assert run.config["attack.kind"] == "zeros"


def test_unknown_and_wrong_ones_are_refused(install, tmp_path):
    install("coterie.attacks", zeros=Zeros, thing=dict, nan=dict)
    with pytest.raises(
        ConfigError, match=r"^attack\.kind = 'zeroes': unknown, did you mean 'zeros'\?; choose one of none"
    ):
        coterie.run("fedavg", run_dir=tmp_path / "run", settings={"attack.kind": "zeroes"}, **FEW)
    with pytest.raises(coterie.RunFailed, match=r"attack\.kind = 'thing': its entry point is no subclass of"):
        harm = {"attack.kind": "thing", "attack.clients": "0,1,2"}
        coterie.run("fedavg", run_dir=tmp_path / "run", settings=harm, **FEW)
    harm = {"attack.kind": "nan", "attack.clients": "0"}  # nobody takes a name of ours
    run = coterie.run("fedavg", run_dir=tmp_path / "run2", settings=harm, **FEW)
    assert "not finite" in run.events[0]["left-out"]["0"]
