"""pFedOCF's presets, and pFedOCF as real processes."""

import json
from typing import Any

import numpy as np
import pytest

from coterie.cli.main import main
from coterie.mechanisms import MECHANISMS
from coterie.presets import PRESETS
from coterie.server.findings import found


def test_a_preset_in_small(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("coterie.mechanisms.GAMES", 5)
    arguments = ["compare", "--preset", "ocf-10", "--quick", "--num-clients", "6", "--workers", "0"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--run-dir", str(tmp_path / "run")])
    assert end.value.code == 0
    told = json.loads((tmp_path / "run" / "comparison.json").read_text())
    for rows in told["rows"].values():
        assert [row["mechanism"] for row in rows] == list(MECHANISMS)
        assert rows[0]["worse-than-local"] == 0 and all(row["clients"] == 6 for row in rows)
    local, grand, _, _, ours = told["rows"]["expected"]
    assert ours["worse-than-local"] == 0 and ours["mean-error"] < local["mean-error"] < grand["mean-error"]
    assert told["rows"]["measured"][4]["mean-error"] < told["rows"]["measured"][0]["mean-error"]
    assert len(told["sweeps"]) == 5 and max(told["sweeps"]) <= 7
    run = tmp_path / "run" / "overlapping-seed1"
    assert set(found(run)) == {"coalitions", "mixing", "similarity", "places"}
    assert len(told["page"]["charts"]) == 3 and not list((tmp_path / "run").glob("*.png"))
    errors, sweeps, mixing = told["page"]["charts"]
    assert [one["name"] for one in errors["lines"]] == ["local", "grand", "grand-mixed", "disjoint", "pfedocf"]
    assert sweeps["lines"][0]["y"][0] == 0 and sweeps["lines"][0]["y"][-1] == 1
    np.testing.assert_allclose(sum(np.array(one["y"]) for one in mixing["lines"]), 1, atol=0.2)
    out = capsys.readouterr().out
    assert "paper, 100 clients" in out and "sweeps until nobody moves: at most" in out


def test_a_preset_needs_true_parameters(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", "--preset", "ocf-10", "--quick", "--task", "digits", "--run-dir", str(tmp_path / "run")])
    assert end.value.code == 2 and "is about true parameters" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_presets_say_how_many_samples_are_for_training():
    for name in ("ocf-10", "ocf-100"):
        values = PRESETS[name].values
        assert values["linear-samples"] == "60-200" and round(60 * (1 - values["test-fraction"])) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--task", "linear", "--input-shape", "4", "--linear-groups", "1"),
        ("--task", "digits", "--partition", "iid", "--model", "linear", "--num-server-rounds", "2"),
    ],
    ids=["closed", "measured"],
)
def test_real_processes_come_to_the_same_result(sandbox: Any, arguments: tuple[str, ...]) -> None:
    common = ("--strategy", "pfedocf", *arguments)
    up = sandbox.coterie("up", "--clients", "3", *common, "--run-dir", "up")
    assert up.returncode == 0, up.stderr
    done = sandbox.coterie("run", "--num-clients", "3", *common, "--workers", "1", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert (sandbox.path / "up" / "result.json").read_bytes() == (sandbox.path / "run" / "result.json").read_bytes()
    first, second = (found(sandbox.path / name) for name in ("up", "run"))
    assert first["coalitions"] == second["coalitions"] and first["coalitions"].values
    assert first["mixing"] == second["mixing"]
    assert sandbox.left() == []
