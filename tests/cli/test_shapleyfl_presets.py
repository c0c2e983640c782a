"""ShapleyFL's presets, as a user calls them."""

import json

import numpy as np
import pytest

import coterie
from coterie.cli.main import main
from coterie.presets import PRESETS, SCENARIOS, Methods
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import parse_config


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
    for name, cell in rows.items():
        assert [row["strategy"] for row in cell] == ["fedavg", "afedsv-plus"]
        assert ("suspects-recall" in cell[1]) == (name != "long-tail") and "suspects-recall" not in cell[0]
    assert "recall" in capsys.readouterr().out


def test_what_is_given_leaves_no_cell_to_be_run_twice(tmp_path):
    cells = {name: preset.cells for name, preset in PRESETS.items() if isinstance(preset, Methods)}
    for name, quick, given, expected in (
        ("pfedsv-table1", False, {}, list(cells["pfedsv-table1"])),
        ("pfedsv-table1", True, {}, ["mnist"]),
        ("pfedsv-table1", False, {"task": "cifar10"}, ["cifar10", "cifar10-100"]),
        ("pfedsv-table1", True, {"task": "cifar10"}, ["cifar10", "cifar10-100"]),
        ("pfedsv-table1", False, {"task": "digits"}, [""]),
        ("pfedsv-privacy", False, {"num-clients": 4}, ["sigma-0", "sigma-1", "sigma-2"]),
        ("pfedsv-privacy", False, {"privacy.noise-multiplier": 1.5}, ["sigma-0", "sigma-1"]),
        ("shapleyfl-heart", False, {"attack.clients": "1"}, ["all-honest", "one-random"]),
        ("shapleyfl-cifar10", True, {"attack.kind": "open-set"}, ["open-set"]),
    ):
        assert list(PRESETS[name].chosen_cells(quick, given)) == expected, (name, given)
        assert set(expected) <= {"", *cells[name]}
    arguments = ["compare", "--preset", "pfedsv-table1", "--quick", "--task", "digits", "--strategies", "local"]
    arguments += ["--num-server-rounds", "1", "--num-clients", "6", "--model", "linear", "--workers", "0"]
    rows = command([*arguments, "--test-fraction", "0.2"], tmp_path / "run")["rows"]
    assert list(rows) == [""] and (tmp_path / "run" / "local-seed1" / "result.json").exists()


def test_a_table_has_the_metric_and_the_clients_by_their_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = ["a,b,label,owner"]
    for ward, flip in (("north", 0), ("south", 1)):
        lines += [f"{x:.3f},{y:.3f},{int(x > 0.8) ^ (flip * int(y > 0))},{ward}" for x, y in rng.normal(size=(150, 2))]
    (tmp_path / "wards.csv").write_text("\n".join(lines) + "\n")
    compared = coterie.compare(
        ["local", "fedavg"],
        task="own",
        data=str(tmp_path / "wards.csv"),
        model="linear",
        num_server_rounds=2,
        run_dir=tmp_path / "run",
        settings={"shapleyfl.metric": "balanced-accuracy"},
        workers=0,
        progress=False,
    )
    table = compared.tables[0]
    first = list(table.head).index("north")
    assert table.title.startswith("Test balanced-accuracy on own") and table.head[first + 1] == "south"
    for run, shown in zip(compared.runs, table.rows, strict=True):
        tested = [row["personal.balanced-accuracy"] for row in run.clients]  # north first, as in the file
        assert [float(text) for text in shown[first : first + 2]] == pytest.approx(
            [100 * value for value in tested], abs=0.006
        )
        assert float(shown[1]) == pytest.approx(100 * np.mean(tested), abs=0.006)
        assert float(shown[3]) == pytest.approx(100 * min(tested), abs=0.006)
        assert tested != [row["personal.accuracy"] for row in run.clients]
