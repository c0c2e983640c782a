"""`python -m benchmarks`: one table, results to compare, and a word where a ratio got worse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def results(path: Path, **ratios: float) -> str:
    told = {name: {"ratio": ratio} for name, ratio in ratios.items()}
    path.write_text(json.dumps({"format": 1, "results": told}))
    return str(path)


@pytest.mark.parametrize(
    ("after", "code", "words"),
    [
        ({"training": 0.9, "help": 0.05}, 0, "0.50"),
        ({"training": 0.94, "help": 0.1}, 0, "1.17"),
        ({"training": 0.97, "help": 0.1}, 1, "worse by more than 20%: training"),
        ({"training": 0.8}, 0, "help: only before"),
    ],
)
def test_compare(tmp_path, after, code, words):
    before = results(tmp_path / "a", training=0.8, help=0.1)
    done = run("compare", before, results(tmp_path / "b", **after), "--margin", "0.2")
    assert done.returncode == code and words in done.stdout, done.stdout + done.stderr


def test_files_of_another_kind_are_refused_by_name(tmp_path):
    (tmp_path / "a").write_text("[]")
    done = run("compare", str(tmp_path / "a"), str(tmp_path / "a"))
    assert done.returncode == 1 and f"{tmp_path / 'a'}: not results" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_table_and_its_results(tmp_path):
    done = run("--only", "schedule,rosters", "--repeats", "1", "--json", str(tmp_path / "a.json"))
    assert done.returncode == 0 and "as they come" in done.stdout, done.stdout + done.stderr
    told = json.loads((tmp_path / "a.json").read_bytes())["results"]
    assert 0.5 <= told["schedule"]["ours"] < 0.55 < told["schedule"]["other"] < 0.75
    assert told["rosters"]["ratio"] < 0.6  # the HMACs are most of it, and are not made again
    same = run("compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert same.returncode == 0
    wrong = run("--only", "sped")
    assert wrong.returncode == 2 and "--only sped: there is no such measure" in wrong.stderr
