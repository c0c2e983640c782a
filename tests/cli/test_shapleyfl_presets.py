"""ShapleyFL's presets, as a user calls them."""

import json

import pytest
from coterie.cli.main import main
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import parse_config

from coterie.presets import PRESETS, SCENARIOS, Methods


def command(arguments, path) -> dict:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--run-dir", str(path)])
    assert end.value.code == 0
    return json.loads((path / "comparison.json").read_text())


def test_every_preset_is_a_valid_configuration():
    for preset in PRESETS.values():
        for values in ({**preset.values}, {**preset.values, **preset.quick}):
            for different in preset.cells.values() if isinstance(preset, Methods) else [{}]:
                parse_config({**values, **different})
        if isinstance(preset, Methods):
            assert set(preset.strategies.split(",")) <= set(METHODS)
            assert set(preset.quick_cells) <= set(preset.cells) and preset.cells


def test_estimators_come_closer_with_more_evaluations(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("coterie.estimators.DRAWS", 10)
    rows = command(["compare", "--preset", "shapleyfl-table3", "--quick", "--num-clients", "7"], tmp_path / "run")[
        "rows"
    ]
    assert set(rows) == {"mc", "tmc", "dmc", "cc"}
    assert rows["mc"]["960"] <= rows["mc"]["120"] and rows["cc"]["240"] == pytest.approx(0, abs=1e-12)  # 128 coalitions
    assert "evaluations" in capsys.readouterr().out


def test_five_scenarios_in_small(tmp_path, capsys):
    arguments = ["compare", "--preset", "shapleyfl-fashion-mnist", "--quick", "--strategies", "fedavg,afedsv-plus"]
    arguments += [
        "--task",
        "digits",
        "--model",
        "linear",
        "--num-clients",
        "6",
        "--num-server-rounds",
        "2",
        "--workers",
        "0",
    ]
    rows = command([*arguments, "--server-data", "0.2", "--test-fraction", "0.2"], tmp_path / "run")["rows"]
    assert list(rows) == list(SCENARIOS)
    for cell in rows.values():
        assert [row["strategy"] for row in cell] == ["fedavg", "afedsv-plus"]
        assert "suspects-recall" in cell[1] and "suspects-recall" not in cell[0]
    assert "recall" in capsys.readouterr().out
