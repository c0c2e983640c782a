"""The `coterie` command: what it prints and writes, and that every mistake ends in one line and a clean house."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
from safetensors.numpy import load_file

import coterie as library
from coterie.cli.main import program
from coterie.cli.options import given_values, method_keys
from coterie.presets import PRESETS
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import default_config
from coterie.wire.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb"}
QUICK = ["--num-server-rounds", "2", "--local-epochs", "1", "--model", "linear", "--workers", "0"]


def start(*arguments: object, cwd: Path, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def left_behind(process: subprocess.Popen) -> list[int]:
    """Processes of the session that the command was the leader of."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == process.pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def files(path: Path) -> set[str]:
    return {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}


# --- run -------------------------------------------------------------------------------------------------------------


def test_run(coterie, tmp_path):
    code, out, err = coterie(
        "run",
        "--strategy",
        "fedper",
        "--num-clients",
        "3",
        "--model",
        "mlp",
        *QUICK[:4],
        "--workers",
        "0",
        "--run-dir",
        "a",
    )
    assert code == 0
    assert "fedper on digits, 2 rounds, seed 1" in out and "personal" in out and "accuracy" in out
    assert f"run directory: {tmp_path / 'a'}" in err
    lines = err.splitlines()
    assert lines[0].startswith("fedper on digits: 3 clients, ")
    assert [line[:28] for line in lines[1:3]] == ["fedper on digits: round 1/2 ", "fedper on digits: round 2/2 "]
    present = files(tmp_path / "a")
    assert {
        "config.json",
        "events.jsonl",
        "result.json",
        "checkpoint/state.json",
        "checkpoint/state.safetensors",
    } <= present
    assert {f"models/{i}.safetensors" for i in range(3)} <= present and not [
        name for name in present if "tmp" in name or ".new" in name
    ]
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert set(config) == set(default_config()) and config["num-clients"] == 3 and config["local-epochs"] == 1
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    accuracy = result["mean-test-accuracy"]["personal"]
    assert f"{accuracy:.4f}" in out and 0 < accuracy <= 1
    per_client = [client["accuracy"] for client in result["models"]["personal"]["clients"].values()]
    assert len(per_client) == 3 and accuracy == pytest.approx(np.mean(per_client))


def test_the_library_does_the_same(coterie, tmp_path):
    assert coterie("run", "--strategy", "fedavg-ft", *QUICK, "--set", "fedavg-ft.epochs=2", "--run-dir", "a")[0] == 0
    keys = {"num_server_rounds": 2, "local_epochs": 1, "model": "linear"}
    library.run("fedavg-ft", run_dir="b", settings={"fedavg-ft.epochs": 2}, workers=2, progress=False, **keys)
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()


def test_run_without_a_directory_makes_one_under_runs(coterie, tmp_path):
    assert coterie("run", *QUICK)[0] == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-coterie-digits", made.name) and (made / "result.json").is_file()


def test_python_dash_m_and_the_command_are_the_same_program(tmp_path, coterie):
    process = start("run", *QUICK, "--run-dir", "a", cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert not left_behind(process)
    code, same, _ = coterie("run", *QUICK, "--run-dir", "b")
    assert code == 0
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()
    assert out == same


def test_workers_leave_nothing_behind(tmp_path):
    process = start("run", *QUICK[:-1], "2", "--run-dir", "a", cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 0 and not left_behind(process), err
    assert "Traceback" not in err and "Warning" not in err


def test_settings_of_a_method(coterie, tmp_path):
    arguments = ["run", "--strategy", "fedprox", *QUICK, "--run-dir"]
    assert coterie(*arguments, "a", "--set", "fedprox.mu=0.25", "--set", "fedfomo.models=2")[0] == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["fedprox.mu"] == 0.25 and config["fedfomo.models"] == 2


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare(data_of, coterie, tmp_path):
    code, out, err = coterie("compare", "--strategies", "local,fedavg", "--seeds", "1,2", *QUICK, "--run-dir", "c")
    assert code == 0, err
    assert {path.name for path in (tmp_path / "c").iterdir()} == {
        *("plan.json", "comparison.json", "comparison.csv", "comparison.md", "comparison.tex", "report.html")
    } | {f"{s}-seed{n}" for s in ("local", "fedavg") for n in (1, 2)}
    assert "Test accuracy on digits, mean ± std over seeds 1, 2" in out
    table = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert table["seeds"] == [1, 2] and [row["strategy"] for row in table["rows"]] == ["local", "fedavg"]
    for row in table["rows"]:
        results = [
            json.loads((tmp_path / "c" / f"{row['strategy']}-seed{n}" / "result.json").read_text()) for n in (1, 2)
        ]
        values = [result["models"]["personal"]["mean"]["accuracy"] for result in results]
        assert row["personal.accuracy"]["mean"] == pytest.approx(np.mean(values))
        assert row["personal.accuracy"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        worst = [min(c["accuracy"] for c in result["models"]["personal"]["clients"].values()) for result in results]
        assert row["personal.worst-accuracy"]["mean"] == pytest.approx(np.mean(worst))
        assert f"{100 * np.mean(values):.2f} ± " in out
    assert "global.accuracy" in table["rows"][1] and "global.accuracy" not in table["rows"][0]
    report = (tmp_path / "c" / "report.html").read_text()
    assert (
        "Test accuracy on digits, mean ± std over seeds 1, 2" in report and f"{100 * np.mean(values):.2f} ± " in report
    )
    shown = data_of(tmp_path / "c" / "report.html")
    assert [row["name"] for row in shown["methods"][0]["rows"]] == ["local", "fedavg"] and len(shown["runs"]) == 4
    assert shown["methods"][0]["rows"][1]["mean"] == pytest.approx(np.mean(values))
    assert "seed" not in dict(shown["settings"])
    (tmp_path / "c" / "report.html").unlink()
    assert coterie("report", "c")[0] == 0 and data_of(tmp_path / "c" / "report.html") == shown  # from the files alone
    local = next(line for line in out.splitlines() if re.match(r"│ local\b", line))
    assert re.search(r"│\s+-\s+│", local)  # no global model


def test_compare_one_seed_and_a_regression(coterie, tmp_path):
    code, out, _ = coterie("compare", "--strategies", "fedavg", "--task", "synthetic-linear", *QUICK, "--run-dir", "c")
    assert code == 0 and "Test loss on synthetic-linear, seed 1" in out and "±" not in out
    assert "Test loss on synthetic-linear, seed 1" in (tmp_path / "c" / "report.html").read_text()
    row = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"][0]
    result = json.loads((tmp_path / "c" / "fedavg-seed1" / "result.json").read_text())
    assert row["personal.worst-loss"]["mean"] == max(
        c["loss"] for c in result["models"]["personal"]["clients"].values()
    )


def test_compare_goes_on_when_a_run_fails(coterie, tmp_path):
    useless = ("--set", "attack.kind=nan", "--set", "attack.fraction=1.0")  # clients of `local` send nothing
    code, out, err = coterie("compare", "--strategies", "fedavg,local", *QUICK, *useless, "--run-dir", "c")
    assert code == 0 and "1 of 1 failed" in out and "fedavg, seed 1: failed: round 1: 0 of" in err
    broken, whole = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    assert "quorum" in broken["failed"]["1"] and "personal.accuracy" in whole and "failed" not in whole
    assert "1 of 1 failed" in (tmp_path / "c" / "report.html").read_text()
    assert not (tmp_path / "c" / "fedavg-seed1" / "result.json").exists()  # by which the curves leave it out
    code, _, err = coterie("compare", "--strategies", "fedavg,fedprox", *QUICK, *useless, "--run-dir", "d")
    assert code == 2 and "no run came to its end. The first one: round 1: 0 of" in err


def test_what_travels_is_told_of_runs_that_ended(coterie, tmp_path):
    useless = ("--set", "attack.kind=nan", "--set", "attack.fraction=1.0")
    preset = ("--preset", "pfedsv-communication", "--quick", "--task", "digits", "--test-fraction", "0.2")
    code, out, err = coterie("compare", *preset, "--strategies", "fedavg,local", *QUICK, *useless, "--run-dir", "c")
    assert code == 0, err
    told = json.loads((tmp_path / "c" / "communication.json").read_text())
    assert told and not [row for row in told if row["method"].startswith("fedavg")] and "failed" in out


def test_compare_is_the_same_as_run(coterie, tmp_path):
    assert coterie("compare", "--strategies", "local,fedper", "--seeds", "3", *QUICK, "--run-dir", "c")[0] == 0
    alike = ("--seed", "3", "--baseline", "none", *QUICK)
    assert coterie("run", "--strategy", "fedper", *alike, "--run-dir", "r")[0] == 0
    assert (tmp_path / "c" / "fedper-seed3" / "result.json").read_bytes() == (
        tmp_path / "r" / "result.json"
    ).read_bytes()


# --- data ------------------------------------------------------------------------------------------------------------


def test_data_lists_what_is_there(coterie, tmp_path):
    code, out, _ = coterie("data", "--data-root", tmp_path / "none")
    assert code == 0
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "1797 samples" in rows["digits"] and "1x8x8" in rows["digits"] and " no " in rows["heart"]
    assert not (tmp_path / "none").exists() and files(tmp_path) == set()


def test_data_shows_who_gets_what(coterie, tmp_path):
    code, out, err = coterie(
        "data", "--task", "digits", "--num-clients", "5", "--labels-per-client", "2", "--plot", "labels.svg"
    )
    assert code == 0 and "digits, pathological partition, seed 1" in out
    rows = [line for line in out.splitlines() if re.match(r"│ \d ", line)]
    assert len(rows) == 5 and sum(int(row.split("│")[2]) for row in rows) <= 1797
    for row in rows:
        labels = dict(pair.split(": ") for pair in row.split("│")[3].strip().split(", "))
        assert len(labels) == 2 and sum(map(int, labels.values())) == int(row.split("│")[2])
    assert (tmp_path / "labels.svg").read_text().startswith("<?xml") and "labels.svg" in err
    assert files(tmp_path) == {"labels.svg"}


def test_data_of_natural_clients(coterie):
    code, out, _ = coterie("data", "--task", "synthetic-linear")
    assert code == 0 and "│ a-1 " in out and "│ b-3 " in out and out.count("200") >= 6
    quick = (
        "--num-server-rounds",
        "1",
        "--workers",
        "0",
        "--set",
        "attack.kind=sign-flip",
        "--set",
        "attack.clients=b-3",
    )
    code, out, _ = coterie("run", "--task", "synthetic-linear", "--strategy", "local", "--run-dir", "r", *quick)
    assert code == 0 and library.open_run("r").clients.column("client") == ["a-1", "a-2", "a-3", "b-1", "b-2", "b-3"]
    with pytest.raises(ConfigError, match="there is no client '5'; take a-1, a-2"):
        library.run(task="synthetic-linear", progress=False, settings={"attack.kind": "nan", "attack.clients": "5"})


# --- own data --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).round(3)
    y = (x[:, 0] > 0).astype(int)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    rows = [
        ",".join(map(str, row)) + f",{'high' if label else 'low'}"
        for row, label in zip(x.tolist(), y.tolist(), strict=True)
    ]
    (tmp_path / "mine.csv").write_text("a,b,c,d,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "target.csv").write_text(
        "a,b,target\n" + "\n".join(f"{r[0]},{r[1]},{r[0] * 2 + r[1] / 2 + 1}" for r in x.tolist()) + "\n"
    )
    images = rng.integers(0, 255, (40, 9, 9), dtype=np.uint8)
    np.savez(
        tmp_path / "images.npz", x=images, y=np.arange(40) % 4, owner=np.repeat(["north", "south", "west", "east"], 10)
    )
    return tmp_path


@pytest.mark.parametrize("name", ["mine.npz", "mine.csv"])
def test_own_data(name, own, coterie):
    code, _, err = coterie(
        "run",
        "--task",
        "own",
        "--data",
        name,
        "--num-clients",
        "4",
        "--partition",
        "iid",
        "--num-server-rounds",
        "8",
        "--learning-rate",
        "0.5",
        "--model",
        "linear",
        "--workers",
        "0",
        "--run-dir",
        "a",
    )
    assert code == 0, err
    assert json.loads((own / "a" / "result.json").read_text())["mean-test-accuracy"]["global"] > 0.8
    assert load_file(own / "a" / "models" / "0.safetensors")["classifier.weight"].shape == (2, 4)
    assert coterie("data", "--task", "own", "--data", name, "--num-clients", "4")[0] == 0


def test_own_data_of_real_numbers(own, coterie):
    code, out, err = coterie(
        "run",
        "--task",
        "own",
        "--data",
        "target.csv",
        "--num-clients",
        "4",
        "--num-server-rounds",
        "10",
        "--workers",
        "0",
        "--run-dir",
        "a",
    )
    assert code == 0 and "r2" in out, err
    assert json.loads((own / "a" / "result.json").read_text())["models"]["global"]["mean"]["r2"] > 0.9


def test_own_images_with_owners(own, coterie):
    code, _, err = coterie(
        "run", "--task", "own", "--data", "images.npz", *QUICK[:4], "--workers", "0", "--run-dir", "a"
    )
    assert code == 0, err
    config = json.loads((own / "a" / "config.json").read_text())
    assert (config["partition"], config["num-clients"], config["model"]) == ("natural", 4, "lenet5")


def test_own_network(own, coterie):
    (own / "net.py").write_text(
        "from torch import nn\ndef build(shape, outputs):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 3), nn.ReLU()), nn.Linear(3, outputs)\n"
    )
    code, _, err = coterie(
        "run",
        "--task",
        "own",
        "--data",
        "mine.csv",
        *QUICK,
        "--model",
        "net.py",
        "--num-clients",
        "3",
        "--run-dir",
        "a",
    )
    assert code == 0, err
    assert load_file(own / "a" / "models" / "0.safetensors")["extractor.0.weight"].shape == (3, 4)


# --- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    (["--strategy", "fedavgg"], "strategy = 'fedavgg': unknown, did you mean 'fedavg'?"),
    (["--task", "digts"], "task = 'digts': unknown. Did you mean 'digits'?"),
    (["--model", "lenet"], "model = 'lenet': unknown. Did you mean 'lenet5'?"),
    (["--model", "nowhere.py"], "model = 'nowhere.py': there is no such file"),
    (["--partition", "dirichle"], "partition = 'dirichle': must be 'auto', 'iid', 'dirichlet'"),
    (["--partition", "natural"], "natural"),
    (["--partition", "dirichlet", "--dirichlet-alpha", "0"], "dirichlet-alpha = 0.0: must be greater than 0"),
    (["--labels-per-client", "11"], "labels-per-client is 11; the data has 10 labels"),
    (["--num-server-rounds", "0"], "num-server-rounds = 0: must be greater than or equal to 1"),
    (["--num-clients", "1798", "--partition", "iid"], "num-clients is 1798, but there are only 1797 samples"),
    (["--learning-rate", "nan"], "learning-rate = nan: must be a finite number"),
    (["--device", "gpu"], "device = 'gpu': must be auto, cpu"),
    (["--set", "fedprox.mu"], "--set fedprox.mu: write KEY=VALUE"),
    (["--set", "fedprox.mu=-1"], "fedprox.mu = -1: must be greater than or equal to 0"),
    (["--set", "fedprox.nu=1"], "fedprox.nu: there is no such key, did you mean 'fedprox.mu'?"),
    (["--set", "nothing.mu=1"], "nothing.mu: no method has keys under 'nothing'"),
    (["--task", "own"], "task = 'own': say where your data are"),
    (["--task", "own", "--data", "nowhere.csv"], "nowhere.csv: there is no such file"),
    (["--data", "x.csv"], "data = 'x.csv': is for your own data; add --task own"),
    (["--task", "synthetic-linear", "--model", "lenet5"], "model = 'lenet5': needs images"),
    (["--task", "heart", "--data-root", "nowhere"], "nowhere/heart/processed.cleveland.data"),
    (["--device", "cuda"], "device = 'cuda'"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), MISTAKES, ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None
)
def test_mistakes(arguments, expected, coterie, tmp_path):
    code, out, err = coterie("run", "--workers", "0", "--run-dir", "a", *arguments)
    assert code == 2 and out == ""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and expected in errors[0] and "Traceback" not in err
    assert err.splitlines() == errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--bogus", "3"], ["--seed", "x"], ["--workers", "-1"], ["extra"]])
def test_options_that_are_none(arguments, coterie, tmp_path):
    code, _, err = coterie("run", *arguments)
    assert code == 2 and arguments[0] in err and "Traceback" not in err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--strategies", "local,fedavgg"], "strategies = 'fedavgg': unknown, did you mean 'fedavg'?"),
        (["--strategies", " , "], "strategies = ' , ': name at least one"),
        (["--seeds", "1,x"], "seeds = '1,x': write whole numbers"),
        (["--seeds", "1,-2"], "seeds = '1,-2': write whole numbers"),
        (["--strategies", "local,fedprox", "--set", "fedprox.mu=-1"], "fedprox.mu = -1"),
        (["--quick"], "--quick: is for presets"),
        (["--preset", "ocf-1"], "preset = 'ocf-1': unknown, did you mean 'ocf-10'?"),
        (["--preset", "ocf-10", "--strategies", "local"], "strategies: preset 'ocf-10' does not compare methods"),
        (["--preset", "shapleyfl-table3", "--seeds", "1,2"], "seeds = [1, 2]: this preset plays one game"),
    ],
)
def test_mistakes_in_a_comparison(arguments, expected, coterie, tmp_path):
    code, _, err = coterie("compare", *arguments, *QUICK, "--run-dir", "c")
    assert code == 2 and err.startswith("error: ") and expected in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_mistakes_in_data(coterie, tmp_path):
    code, _, err = coterie("data", "--task", "digits", "--plot", "labels.xyz")
    assert code != 0 and "labels.xyz" in err and "Traceback" not in err and list(tmp_path.iterdir()) == []
    code, _, err = coterie("data", "--task", "digits", "--plot", "no/such/place/labels.png")
    assert "Traceback" not in err


def test_data_with_a_hole(coterie, tmp_path):
    x = np.ones((20, 3))
    x[7, 1] = np.nan
    np.savez(tmp_path / "hole.npz", x=x, y=np.arange(20) % 2)
    code, _, err = coterie("run", "--task", "own", "--data", "hole.npz", *QUICK, "--run-dir", "a")
    assert (
        code == 2
        and err.startswith("error: ")
        and "hole.npz: x has nan in row 7, column 1" in err
        and err.count("\n") == 1
    )
    assert files(tmp_path) == {"hole.npz"}


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_directory_that_exists(command, coterie, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").write_text("precious")
    code, _, err = coterie(command, *QUICK, "--run-dir", "a")
    assert code == 2 and err == "error: run-dir = 'a': exists already; choose another, nothing was changed\n"
    assert files(tmp_path) == {"a/mine"} and (tmp_path / "a" / "mine").read_text() == "precious"


def test_a_place_where_nothing_may_be_written(coterie):
    code, _, err = coterie("run", *QUICK, "--run-dir", "/proc/coterie/a")
    assert code != 0 and err.startswith("error: ") and "/proc/coterie" in err and err.count("\n") == 1


@pytest.mark.parametrize("size", [0, 40, 200])
@pytest.mark.parametrize("strategy", ["fedavg", "fedper"])
def test_a_full_disk(size, strategy, tmp_path):
    """A file system with room for `size` KiB: full at once, in the middle of round 1, or some rounds later."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size + 8}k", "none", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        (disk / "ballast").write_bytes(bytes(8 * 1024))
        process = start(
            "run",
            "--strategy",
            strategy,
            "--num-clients",
            "3",
            "--num-server-rounds",
            "200",
            "--local-epochs",
            "1",
            "--evaluate-every",
            "100",
            "--round-retries",
            "0",
            "--workers",
            "1",
            "--disk-patience",
            "0.5",
            "--run-dir",
            disk / "a",
            cwd=tmp_path,
        )
        _, err = process.communicate()
        assert process.returncode in (1, 2) and not left_behind(process)
        assert "error: the disk is full" in err and "Traceback" not in err, err
        assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
        run_dir = disk / "a"
        assert not (run_dir / "result.json").exists()
        names = files(run_dir)
        assert not [name for name in names if Path(name).name.startswith(".")], names
        if "events.jsonl" in names:
            text = (run_dir / "events.jsonl").read_text()
            assert text == "" or text.endswith("\n")
            rounds = [json.loads(line)["round"] for line in text.splitlines()]
            assert rounds == list(range(1, len(rounds) + 1))
        for name in ("config.json", "checkpoint/state.json"):
            if name in names:
                json.loads((run_dir / name).read_text())
        for name in names:
            if name.endswith(".safetensors") and not name.startswith(".checkpoint.new"):
                load_file(run_dir / name)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_control_c_in_round_2(workers, tmp_path):
    process = start(
        "run", "--num-clients", "4", "--num-server-rounds", "5000", "--workers", workers, "--run-dir", "a", cwd=tmp_path
    )
    events = tmp_path / "a" / "events.jsonl"
    while not (tmp_path / "a" / "checkpoint" / "state.json").exists():  # the end of round 1
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "error: stopped by SIGINT; finished rounds are in the run directory" in err
    assert library.open_run(tmp_path / "a").status.state == "stopped"
    assert not left_behind(process)
    names = files(tmp_path / "a")
    assert "result.json" not in names and not [name for name in names if Path(name).name.startswith(".")], names
    rounds = [json.loads(line)["round"] for line in events.read_text().splitlines()]
    state = json.loads((tmp_path / "a" / "checkpoint" / "state.json").read_text())
    assert rounds == list(range(1, len(rounds) + 1)) and state["round"] in (len(rounds), len(rounds) - 1)
    load_file(tmp_path / "a" / "checkpoint" / "state.safetensors")


def test_a_killed_worker_ends_the_run_with_a_message(tmp_path):
    process = start(
        "run", "--num-clients", "4", "--num-server-rounds", "5000", "--workers", "2", "--run-dir", "a", cwd=tmp_path
    )
    events = tmp_path / "a" / "events.jsonl"
    while not events.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    worker = next(pid for pid in left_behind(process) if pid != process.pid)
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None) and "Traceback" not in err and "error: a worker process" in err, err
    assert not left_behind(process)
    assert library.open_run(tmp_path / "a").status.state == "failed"


# --- help ------------------------------------------------------------------------------------------------------------


def test_help(coterie):
    code, out, _ = coterie("--help")
    assert code == 0 and all(command in out for command in ("run", "compare", "data"))
    assert coterie("comparr")[2].count("Did you mean") == 1
    assert "runs/TIME-STRATEGY-TASK" in coterie("run", "--help")[1]


def test_the_list_of_commands_loads_none_of_them(tmp_path):
    """So it is there at once; torch alone takes more than a second."""
    heavy = "import sys; from coterie.cli.entry import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    heavy += "print({'torch', 'flwr', 'httpx', 'numpy', 'pydantic'} & set(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", heavy], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "set()\n" and "watch" in done.stdout


def test_help_promises_no_numbers_that_are_not_there(coterie):
    _, out, _ = coterie("compare", "--help")
    with_numbers = [name for name, preset in PRESETS.items() if getattr(preset, "paper", None)]
    (promised,) = re.findall(r"With the paper's numbers: ([^.]*)", " ".join(out.replace("│", " ").split()))
    assert promised.split(", ") == with_numbers


def test_version(coterie):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert coterie("--version") == (0, f"coterie {version}\n", "")


@pytest.mark.parametrize("command", ["run", "compare", "data"])
def test_help_has_every_key(command, coterie):
    code, out, _ = coterie(command, "--help")
    assert code == 0
    top = {key for key in default_config() if "." not in key}
    missing = {key for key in top if not re.search(rf"--{key}\b", out)}
    without = {"run": set(), "compare": {"strategy", "seed"}}
    if command == "data":
        assert {"num-server-rounds", "learning-rate", "strategy"} <= missing
        assert not missing & {
            "task",
            "partition",
            "dirichlet-alpha",
            "labels-per-client",
            "num-clients",
            "seed",
            "data",
            "data-root",
        }
    else:
        assert missing - without[command] == set()
        assert all(key in out for key in method_keys()) and "--workers" in out
    assert "Example" in out


def test_every_option_says_something():
    for command in program.commands.values():
        assert command.help
        for parameter in command.get_params(click.Context(command)):
            assert parameter.param_type_name == "argument" or parameter.help, parameter.name


def test_help_names_all_strategies(coterie):
    _, out, _ = coterie("run", "--help")
    assert all(name in out for name in METHODS)


def test_values():
    assert given_values(
        {"seed": 3, "batch_size": None}, ["fedprox.mu=0.5", "a.b=text", "a.c=true", "a.d= 7 ", "a.e=[1]"]
    ) == {
        "seed": 3,
        "fedprox.mu": 0.5,
        "a.b": "text",
        "a.c": True,
        "a.d": 7,
        "a.e": "[1]",
    }
    texts = given_values({}, ["attack.clients=3", 'attack.kind="huge"'])  # these settings are texts
    assert texts == {"attack.clients": "3", "attack.kind": "huge"}
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        given_values({}, ["fedprox.mu"])
