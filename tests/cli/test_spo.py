"""SPO and CE as a user calls them: presets, and real processes."""

import json
from typing import Any

import pytest

from coterie.cli.main import main
from coterie.server.findings import found


def test_the_synthetic_preset_in_small(data_of, tmp_path, capsys):
    arguments = ["compare", "--preset", "spo-synthetic", "--quick", "--strategies", "local,spo,ce", "--workers", "0"]
    arguments += ["--num-server-rounds", "4", "--evaluate-every", "4", "--set", "spo.hidden=10", "--set", "spo.rays=8"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--set", "spo.search-steps=3", "--run-dir", str(tmp_path / "run")])
    assert end.value.code == 0
    rows = json.loads((tmp_path / "run" / "comparison.json").read_text())["rows"]
    assert list(rows) == ["few-samples", "many-samples"]
    assert all([row["strategy"] for row in cell] == ["local", "spo", "ce"] for cell in rows.values())
    for folder in (tmp_path / "run").glob("*/[sc]*-seed1"):
        helped = found(folder)["collaborators"].values
        links = data_of(folder / "report.html")["runs"][0]["links"]
        assert len(links) == sum(len(set(others) - {name}) for name, others in helped.items())
    assert "Test loss on linear, few-samples" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["spo", "ce"])
def test_real_processes_come_to_the_same_result(sandbox: Any, strategy: str) -> None:
    common = (
        "--strategy",
        strategy,
        "--task",
        "linear",
        "--input-shape",
        "4",
        "--num-server-rounds",
        "2" if strategy == "ce" else "1",
    )
    common += ("--set", "spo.hidden=8", "--set", "spo.rays=4", "--set", "spo.search-steps=2")
    up = sandbox.coterie("up", "--clients", "2", *common, "--run-dir", "up")
    assert up.returncode == 0, up.stderr
    done = sandbox.coterie("run", "--num-clients", "2", *common, "--workers", "1", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert (sandbox.path / "up" / "result.json").read_bytes() == (sandbox.path / "run" / "result.json").read_bytes()
    first, second = (found(sandbox.path / name)["collaborators"] for name in ("up", "run"))
    assert first == second and set(first.values) == {"0", "1"}
    assert sandbox.left() == []
