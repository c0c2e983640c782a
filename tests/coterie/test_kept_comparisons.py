"""A comparison is a directory that can be gone on with; its cells, its sweeps, and its tables as files."""

import csv
import json
import os
import signal

import numpy as np
import pytest

import coterie
from coterie.cli.options import parse_sweep
from coterie.comparison import combinations

SMALL = {
    **{"task": "digits", "num_clients": 3, "model": "linear", "local_epochs": 1, "num_server_rounds": 2},
    **{"test_fraction": 0.8, "workers": 0, "progress": False},
}


def stamps(path):
    return {
        run.name: (run / "result.json").stat().st_mtime_ns for run in path.iterdir() if (run / "result.json").exists()
    }


def figures(path):
    """What a comparison came to, without times."""
    rows = json.loads((path / "comparison.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def killed_in(number: int, path) -> None:
    """Begin the comparison in a process that is killed in the last round of the run with this number."""

    class Killing(coterie.Observer):
        def progress(self, server_round, phase, done, total):
            if server_round == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        from coterie import keeping

        whole, begun = keeping.simulate, []

        def simulate(config, place, pool, progress):
            begun.append(place)
            return whole(config, place, pool, progress, [Killing()] if len(begun) == number else [])

        keeping.simulate = simulate
        coterie.compare(["local", "fedavg"], [1], run_dir=path, **SMALL)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def test_a_second_start_after_a_kill_does_what_is_left_and_ends_alike(tmp_path):
    whole = coterie.compare(["local", "fedavg"], [1], run_dir=tmp_path / "whole", **SMALL)
    path = tmp_path / "killed"
    killed_in(2, path)
    done = stamps(path)
    assert list(done) == ["local-seed1"] and not (path / "comparison.json").exists()
    assert len(coterie.open_run(path / "fedavg-seed1").events) == 1
    began = (path / "fedavg-seed1" / "events.jsonl").read_bytes()
    again = coterie.compare(["local", "fedavg"], [1], run_dir=path, **SMALL)
    assert (path / "fedavg-seed1" / "events.jsonl").read_bytes().startswith(began)  # it went on, and did not begin anew
    assert figures(path) == figures(whole.path)
    assert [run.path.name for run in again.runs] == ["local-seed1", "fedavg-seed1"]
    both = stamps(path)
    assert both["local-seed1"] == done["local-seed1"]
    more = coterie.compare(["local", "fedavg"], [1, 2], run_dir=path, **SMALL)  # as many seeds as one likes, later on
    assert {name: when for name, when in stamps(path).items() if name in both} == both and len(more.runs) == 4


def test_a_directory_of_other_runs_is_refused(tmp_path):
    coterie.compare(["local"], run_dir=tmp_path / "c", **SMALL)
    before = stamps(tmp_path / "c")
    with pytest.raises(
        coterie.ConfigError, match=r"learning-rate = 0\.5: the run in .*local-seed1 has 0\.\d+; give that"
    ):
        coterie.compare(["local"], run_dir=tmp_path / "c", learning_rate=0.5, **SMALL)
    with pytest.raises(coterie.ConfigError, match=r"num-server-rounds = 3: the run in .* has 2"):
        coterie.compare(["local"], run_dir=tmp_path / "c", **{**SMALL, "num_server_rounds": 3})
    with pytest.raises(
        coterie.ConfigError, match=r"run-dir = .*: has a comparison of no preset, this one is of preset 'h"
    ):
        coterie.compare(["local"], preset="heterogeneity", cell="iid", run_dir=tmp_path / "c", **SMALL)
    (tmp_path / "mine").mkdir()
    with pytest.raises(coterie.ConfigError, match="exists already"):
        coterie.compare(["local"], run_dir=tmp_path / "mine", **SMALL)
    assert stamps(tmp_path / "c") == before and list((tmp_path / "mine").iterdir()) == []


def test_runs_by_other_code_are_kept_and_told_of(tmp_path, capfd):
    path = coterie.compare(["local"], run_dir=tmp_path / "c", **SMALL).path
    told = path / "local-seed1" / "checkpoint" / "state.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"code": "0123456789ab"}))
    capfd.readouterr()
    coterie.compare(["local"], run_dir=path, **{**SMALL, "progress": True})
    assert "local, seed 1: done before, with other code (fingerprint 0123456789ab, now" in capfd.readouterr().err


def test_one_cell(tmp_path):
    more = {key: value for key, value in SMALL.items() if key != "num_clients"}
    found = coterie.compare(["local"], [1], preset="heterogeneity", cell="two", run_dir=tmp_path / "c", **more)
    assert found.rows.column("cell") == ["two"] and found.runs[0].config["partition"] == "pathological"
    assert (tmp_path / "c" / "two" / "local-seed1" / "result.json").is_file()
    with pytest.raises(coterie.ConfigError, match="cell = 'twoo': unknown, did you mean 'two'"):
        coterie.compare(["local"], preset="heterogeneity", cell="twoo", **SMALL)
    with pytest.raises(coterie.ConfigError, match="cell = 'two': is for presets"):
        coterie.compare(["local"], cell="two", **SMALL)


def test_a_sweep_is_a_column_for_each_value(tmp_path):
    sweep = {"fedprox.mu": [0.0, 9.0]}
    found = coterie.compare(["fedprox", "local"], [1, 2], sweep=sweep, run_dir=tmp_path / "c", **SMALL)
    cells = ["fedprox.mu=0.0", "fedprox.mu=9.0"]
    assert list(dict.fromkeys(found.rows.column("cell"))) == cells
    (table,) = found.tables
    assert list(table.head) == ["strategy", *cells] and [row[0] for row in table.rows] == ["fedprox", "local"]
    for i, cell in enumerate(cells):
        runs = [coterie.open_run(tmp_path / "c" / cell / f"fedprox-seed{n}") for n in (1, 2)]
        assert [run.config["fedprox.mu"] for run in runs] == [float(cell.partition("=")[2])] * 2
        values = [100 * run.result["models"]["personal"]["mean"]["accuracy"] for run in runs]
        assert table.rows[0][1 + i] == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def test_several_keys_are_swept_in_all_combinations():
    assert combinations({"a.b": [1, 2, 1], "c": [True]}) == [{"a.b": 1, "c": True}, {"a.b": 2, "c": True}]
    assert combinations({}) == [{}]
    assert parse_sweep(["fedprox.mu=0,.25, 1", "server-data=1,2"]) == {
        "fedprox.mu": [0, 0.25, 1],
        "server-data": ["1", "2"],
    }
    with pytest.raises(coterie.ConfigError, match=r"--sweep fedprox\.mu: write KEY=A,B"):
        parse_sweep(["fedprox.mu"])


def test_a_sweep_goes_before_what_cells_say(tmp_path):
    more = {**SMALL, "num_clients": 4}
    sweep = {"shift-groups": [1, 2]}
    found = coterie.compare(
        ["local"], [1], preset="heterogeneity", cell="feat", sweep=sweep, run_dir=tmp_path / "c", **more
    )
    assert [run.config["shift-groups"] for run in found.runs] == [1, 2]
    assert {run.config["shift"] for run in found.runs} == {"rotate-invert"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"sweep": {"seed": [1, 2]}}, "sweep = 'seed': give several seeds"),
        ({"sweep": {"strategy": ["local"]}}, "sweep = 'strategy': name several strategies"),
        ({"sweep": {"fedprox.mu": []}}, r"sweep fedprox.mu = \[\]: give a list of at least one"),
        ({"sweep": {"fedprox.my": [1]}}, "fedprox.my"),
        ({"preset": "ocf-10", "sweep": {"ocf.cost": [1]}}, "sweep: preset 'ocf-10' does not compare methods"),
        ({"preset": "shapleyfl-table3", "cell": "x"}, "cell: preset 'shapleyfl-table3' does not compare methods"),
    ],
)
def test_mistakes(arguments, expected, tmp_path):
    with pytest.raises(coterie.ConfigError, match=expected):
        coterie.compare(run_dir=tmp_path / "c", workers=0, progress=False, **arguments)
    assert not (tmp_path / "c").exists()


def test_tables_as_files(tmp_path):
    found = coterie.compare(["local", "fedavg"], [1, 2], run_dir=tmp_path / "c", **SMALL)
    with (tmp_path / "c" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["strategy"] for row in rows] == ["local", "fedavg"]
    told = found.rows[1]
    assert float(rows[1]["personal.accuracy"]) == told["personal.accuracy"]["mean"]
    assert float(rows[1]["personal.accuracy-std"]) == told["personal.accuracy"]["std"]
    assert float(rows[1]["gain.mean"]) == told["gain"]["mean"]
    ours = f"{100 * told['personal.accuracy']['mean']:.2f}"
    spread = f"{100 * told['personal.accuracy']['std']:.2f}"
    markdown = (tmp_path / "c" / "comparison.md").read_text()
    assert f"| fedavg | {ours} ± {spread} |" in markdown and markdown.startswith(
        "**Test accuracy on digits, mean ± std"
    )
    assert {line.count("|") for line in markdown.splitlines() if line.startswith("|")} == {
        len(found.tables[0].head) + 1
    }
    latex = (tmp_path / "c" / "comparison.tex").read_text()
    assert rf"fedavg & {ours} $\pm$ {spread} & " in latex and latex.count(r"\begin{tabular}") == 1


def test_letters_that_mean_something_to_latex():
    from coterie.rows import Table
    from coterie.written import in_latex, in_markdown

    table = Table("50 % of a_b", ["a|b", "c & d"], [["1 ± 2", "{x}^2 ~ $3 #4 \\"]])
    latex = in_latex([table])
    assert r"\caption{50 \% of a\_b}" in latex and r"a|b & c \& d \\" in latex
    assert r"1 $\pm$ 2 & \{x\}\textasciicircum{}2 \textasciitilde{} \$3 \#4 \textbackslash{} \\" in latex
    assert r"| a\|b | c & d |" in in_markdown([table])


def test_mechanisms_and_games_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.mechanisms.GAMES", 2)
    monkeypatch.setattr("coterie.estimators.DRAWS", 2)
    more = {"workers": 0, "progress": False, "run_dir": tmp_path / "m"}
    first = coterie.compare(preset="ocf-10", seeds=[1], num_clients=4, **more)
    before = stamps(tmp_path / "m")
    again = coterie.compare(preset="ocf-10", seeds=[1], num_clients=4, **more)
    assert len(before) == 5 and stamps(tmp_path / "m") == before and again.rows == first.rows
    assert (tmp_path / "m" / "comparison.tex").read_text().count("tabular") == 6
    game = {"preset": "shapleyfl-table3", "quick": True, "num_clients": 3, "num_server_rounds": 1, "local_epochs": 1}
    more["run_dir"] = tmp_path / "g"
    first = coterie.compare(**game, **more)
    monkeypatch.setattr("coterie.estimators.game_of", None)
    assert coterie.compare(**game, **more).rows == first.rows
    with pytest.raises(coterie.ConfigError, match=r"batch-size = 7: the run in .* has"):
        coterie.compare(**game, **more, batch_size=7)
