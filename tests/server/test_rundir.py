"""The run directory: never an old one, whole files, whole lines, also when the disk is full."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie.server import rundir
from coterie.server.checkpoints import cut_events, newest_checkpoint, read_events, save_checkpoint, write_json
from coterie.server.results import privacy_in_words, result_of
from coterie.server.rundir import RunDirectory, new_run_dir
from coterie.wire import files
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.files import alone_in, append_line, flush, flush_below, waiting_for_room
from coterie.wire.messages import Hello

CONFIG = {"run-dir": "", "strategy": "fedavg", "task": "digits", "seed": 1}


def test_a_new_directory(tmp_path, monkeypatch):
    assert new_run_dir(CONFIG | {"run-dir": str(tmp_path / "deep" / "a")}) == tmp_path / "deep" / "a"
    monkeypatch.chdir(tmp_path)
    made = new_run_dir(CONFIG)
    assert made.is_dir() and made.parent == tmp_path / "runs" and made.name.endswith("-fedavg-digits")
    assert new_run_dir(CONFIG | {"run-dir": "b"}) == tmp_path / "b"


def test_an_existing_directory_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    (path / "mine").write_text("precious")
    with pytest.raises(ConfigError, match=r"run-dir = '.*a': exists already; choose another, nothing was changed"):
        new_run_dir(CONFIG | {"run-dir": str(path)})
    assert [(p.name, p.read_text()) for p in path.iterdir()] == [("mine", "precious")]
    with pytest.raises(ConfigError, match="exists already"):
        new_run_dir(CONFIG | {"run-dir": str(path / "mine")})
    with pytest.raises(ConfigError, match="a part of this path is a file"):
        new_run_dir(CONFIG | {"run-dir": str(path / "mine" / "b")})


def test_two_runs_in_the_same_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.server.rundir.time.strftime", lambda *_: "20300101-000000")
    one, two = new_run_dir(CONFIG), new_run_dir(CONFIG)
    assert one != two and one.is_dir() and two.is_dir()


# --- checkpoints -----------------------------------------------------------------------------------------------------


def state(number: int) -> dict:
    arrays = {"a": np.full(4, number, np.float32), "n": np.array([number]), "t": np.arange(6.0).reshape(2, 3).T}
    return {"method": "fedavg", "version": 1, "round": number, "arrays": arrays, "values": {"p": {"x": 0.5}}}


def saved(path: Path) -> tuple[int, float]:
    meta = json.loads((path / "state.json").read_text())
    arrays = load_file(path / "state.safetensors")
    assert set(meta) == {"method", "version", "round", "values", "digest"} and arrays["n"].dtype == np.int64
    assert np.array_equal(arrays["t"], np.arange(6.0).reshape(2, 3).T)
    assert float(arrays["a"][0]) == meta["round"]
    return meta["round"]


def test_the_checkpoint_and_the_one_before(tmp_path):
    save_checkpoint(tmp_path, state(1))
    assert saved(tmp_path / "checkpoint") == 1 and not (tmp_path / "checkpoint.previous").exists()
    for number in (2, 3, 4):
        save_checkpoint(tmp_path, state(number))
        assert saved(tmp_path / "checkpoint") == number and saved(tmp_path / "checkpoint.previous") == number - 1
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "checkpoint.previous"}


def test_a_checkpoint_is_written_without_a_copy_of_its_arrays(tmp_path):
    arrays = {"rows": np.arange(4 * 2**20, dtype=np.float32).reshape(64, -1), "kept": np.ones((3, 2), bool)}
    tracemalloc.start()
    save_checkpoint(tmp_path, {**state(1), "arrays": arrays})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < arrays["rows"].nbytes / 4
    found = load_file(tmp_path / "checkpoint" / "state.safetensors")
    assert set(found) == set(arrays) and all(np.array_equal(found[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_a_checkpoint_that_fails_leaves_both(calls, tmp_path, monkeypatch):
    for number in (1, 2):
        save_checkpoint(tmp_path, state(number))
    real, seen = os.fsync, []

    def fsync(handle):
        seen.append(handle)
        if len(seen) == calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, state(3))
    assert saved(tmp_path / "checkpoint") == 2 and saved(tmp_path / "checkpoint.previous") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "checkpoint.previous"}


def test_what_a_killed_server_left_is_swept_away(tmp_path):
    (tmp_path / ".checkpoint.new").mkdir()
    (tmp_path / ".checkpoint.new" / "half").write_text("x")
    save_checkpoint(tmp_path, state(1))
    assert saved(tmp_path / "checkpoint") == 1 and not (tmp_path / ".checkpoint.new").exists()
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {"state.json", "state.safetensors"}


def damaged(path: Path, kind: str) -> None:
    """A checkpoint as a fault of the machine leaves it."""
    if kind == "gone":
        shutil.rmtree(path)
    elif kind == "half of the arrays":
        data = (path / "state.safetensors").read_bytes()
        (path / "state.safetensors").write_bytes(data[: len(data) // 2])
    elif kind == "one bit":
        data = bytearray((path / "state.safetensors").read_bytes())
        data[-1] ^= 1
        (path / "state.safetensors").write_bytes(data)
    elif kind == "half of the rest":
        (path / "state.json").write_text('{"method": "fed')


@pytest.mark.parametrize("events", [1, 2, 3])
@pytest.mark.parametrize("kind", ["gone", "half of the arrays", "one bit", "half of the rest"])
@pytest.mark.parametrize("whole", [1, 2, 3])
def test_the_newest_whole_checkpoint_counts(whole, kind, events, tmp_path):
    """Of rounds 1 (previous), 2 (current) and 3 (new) those after `whole` are damaged, and there are so many event lines."""
    names = {1: "checkpoint.previous", 2: "checkpoint", 3: ".checkpoint.new"}
    for number in (1, 2):
        save_checkpoint(tmp_path, state(number))
    beside = tmp_path / "beside"
    beside.mkdir()
    save_checkpoint(beside, state(3))
    (beside / "checkpoint").rename(tmp_path / names[3])
    shutil.rmtree(beside)
    for number in range(whole + 1, 4):
        damaged(tmp_path / names[number], kind)
    for number in range(1, events + 1):
        append_line(tmp_path / "events.jsonl", json.dumps({"round": number}))
    found, expected = newest_checkpoint(tmp_path), min(whole, events)
    assert found["round"] == expected and float(found["arrays"]["a"][0]) == expected and "digest" not in found
    assert saved(tmp_path / "checkpoint") == expected and not (tmp_path / ".checkpoint.new").exists()
    save_checkpoint(tmp_path, state(expected + 1))
    assert saved(tmp_path / "checkpoint") == expected + 1 and saved(tmp_path / "checkpoint.previous") == expected


def test_no_whole_checkpoint_is_the_beginning(tmp_path):
    save_checkpoint(tmp_path, state(1))
    append_line(tmp_path / "events.jsonl", '{"round": 1}')
    damaged(tmp_path / "checkpoint", "one bit")
    assert newest_checkpoint(tmp_path) is None and not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("rest", ["", '{"round": 3', '{"round": 3}', "x\n", '{"round": 4}\n'])
def test_events_are_cut_to_a_round(rest, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n' + rest)
    assert [event["round"] for event in read_events(tmp_path)] == [1, 2]
    assert cut_events(tmp_path, 2) == [{"round": 1}, {"round": 2}]
    assert path.read_text() == '{"round": 1}\n{"round": 2}\n'
    assert cut_events(tmp_path, 1) == [{"round": 1}] and path.read_text() == '{"round": 1}\n'
    assert cut_events(tmp_path, 0) == [] and path.read_text() == ""


# --- lines -----------------------------------------------------------------------------------------------------------


def test_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    append_line(path, "one")
    append_line(path, "zwölf")
    assert path.read_bytes() == "one\nzwölf\n".encode()


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    """In a process that may not write more than 100 bytes to a file: the first 85 bytes of the long line would fit."""
    path = tmp_path / "events.jsonl"
    append_line(path, "x" * 14)
    script = (
        "import sys, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from coterie.wire.files import append_line; from pathlib import Path\n"
        "try:\n    append_line(Path(sys.argv[1]), 'y' * 200)\nexcept OSError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert "No space left" in done.stdout or "File too large" in done.stdout, done
    assert path.read_bytes() == b"x" * 14 + b"\n"
    append_line(path, "z")
    assert path.read_bytes() == b"x" * 14 + b"\nz\n"


def test_a_line_that_could_not_be_flushed_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    append_line(path, "one")

    def full(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="Input/output"):
        append_line(path, "two")
    assert path.read_text() == "one\n"


# --- results ---------------------------------------------------------------------------------------------------------

EVENT = {
    "round": 7,
    "evaluate": {
        "2": {
            "num-samples": 10,
            "global.accuracy": 0.5,
            "global.loss": 1.0,
            "personal.accuracy": 0.6,
            "personal.loss": 0.9,
        },
        "10": {
            "num-samples": 30,
            "global.accuracy": 0.9,
            "global.loss": 2.0,
            "personal.accuracy": 1.0,
            "personal.loss": 0.1,
        },
        "x": {"num-samples": 0},
    },
    "not-tested": {"y": "error 2: boom"},
}


def test_result():
    result = result_of(CONFIG, ["2", "10", "x", "y", "gone"], EVENT)
    assert {key: result[key] for key in ("strategy", "task", "seed", "rounds")} == {
        "strategy": "fedavg",
        "task": "digits",
        "seed": 1,
        "rounds": 7,
    }
    assert result["mean-test-accuracy"] == pytest.approx({"global": 0.7, "personal": 0.8})
    mean = result["models"]["global"]["mean"]
    assert mean == pytest.approx({"accuracy": 0.7, "accuracy-weighted": 0.8, "loss": 1.5, "loss-weighted": 1.75})
    assert result["models"]["personal"]["clients"]["10"] == {"accuracy": 1.0, "loss": 0.1}
    assert result["not-tested"] == {"y": "error 2: boom", "gone": "not connected"}
    assert json.loads(json.dumps(result)) == result


def test_regression_has_no_accuracy():
    event = {
        "round": 1,
        "evaluate": {"a": {"num-samples": 3, "personal.loss": 0.5, "personal.r2": 0.7}},
        "not-tested": {},
    }
    result = result_of(CONFIG, ["a"], event)
    assert result["mean-test-accuracy"] == {} and result["models"]["personal"]["mean"]["r2"] == 0.7


def test_the_directory_of_a_whole_run(tmp_path):
    directory = RunDirectory(tmp_path, CONFIG)
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG
    directory.started({name: Hello(name, "c", 2, 1, 1, 1) for name in ("2", "10")})
    directory.round_ended({"round": 6}, state(6))
    directory.round_ended(EVENT, state(7))
    result = directory.finish()
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert result["clients"] == ["2", "10", "x"]  # the last one came later, and was tested
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [{"round": 6}, EVENT]
    assert {p.name for p in tmp_path.iterdir()} == {
        "config.json",
        "events.jsonl",
        "result.json",
        "checkpoint",
        "checkpoint.previous",
    }


def test_a_run_that_could_not_be_tested_has_no_result(tmp_path):
    directory = RunDirectory(tmp_path, CONFIG)
    directory.started({"a": Hello("a", "c", 1, 1, 1, 1)})
    directory.round_ended({"round": 1, "evaluate": {}, "not-tested": {"a": "error 5: gone"}}, state(1))
    with pytest.raises(RunFailed, match=r"round 1: no client could be tested\. a: error 5: gone"):
        directory.finish()
    assert not (tmp_path / "result.json").exists()


def test_json_files_are_whole(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"x": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1} and len(list(tmp_path.iterdir())) == 1


# --- going on --------------------------------------------------------------------------------------------------------

LONG = CONFIG | {"num-server-rounds": 4, "privacy.mode": "dp-sgd", "privacy.delta": 1e-5, "learning-rate": 0.1}
TESTED = {"a": {"num-samples": 3, "personal.loss": 0.5, "personal.accuracy": 0.7}}


def half_done(path: Path, code: str = "c0de") -> None:
    """Two rounds: in the first `b` trained, too, and the last evaluation was in it."""
    directory = RunDirectory(path, LONG, code)
    directory.started({name: Hello(name, "c", 2, 1, 1, 1) for name in ("a", "b")})
    train = {"a": {"epsilon": 1.0}, "b": {"epsilon": 2.0}}
    directory.round_ended({"round": 1, "train": train, "evaluate": TESTED, "not-tested": {}}, state(1))
    directory.round_ended({"round": 2, "train": {"a": {"epsilon": 3.0}}}, state(2))


def test_what_simulated_clients_keep_is_flushed_before_the_checkpoint_that_speaks_of_it(tmp_path, monkeypatch):
    steps: list[str] = []
    directory = RunDirectory(tmp_path, CONFIG)
    monkeypatch.setattr(rundir, "flush_below", lambda path: steps.append(str(path.relative_to(tmp_path))))
    monkeypatch.setattr(rundir, "save_checkpoint", lambda path, state: steps.append("checkpoint"))
    directory.round_ended({"round": 1}, state(1))
    assert steps == ["state", "checkpoint"]


def test_flushing_what_is_below(tmp_path, monkeypatch):
    flush_below(tmp_path / "not-there")
    flush_below(tmp_path)
    synced: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: synced.append(True))
    monkeypatch.setattr(files.ctypes, "CDLL", lambda _: object())  # a system without syncfs
    flush_below(tmp_path)
    assert synced == [True]


def test_what_was_before_the_end_counts_after_it(tmp_path):
    half_done(tmp_path)
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"round": 3, "tra')
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".a.safetensors.x1.tmp").touch()
    directory = RunDirectory(tmp_path, LONG, "c0de")
    assert directory.state["round"] == 2 and not list((tmp_path / "state").iterdir())
    directory.started({"a": Hello("a", "c", 2, 1, 1, 1)})  # b is away
    result = directory.finish()
    assert result["clients"] == ["a", "b"] and result["rounds"] == 1
    assert result["privacy"]["epsilon"] == {"a": 3.0, "b": 2.0}


def test_other_code_other_settings_and_fewer_rounds_are_refused_by_name(tmp_path):
    half_done(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for config, code, words in (
        (LONG, "beef", r"other code \(fingerprint c0de\) than this \(beef\)"),
        (LONG | {"learning-rate": 0.2}, "c0de", r"learning-rate = 0\.2: the run .* was begun with 0\.1"),
        (LONG | {"num-server-rounds": 1}, "c0de", r"num-server-rounds = 1: .* has 2 rounds already"),
    ):
        with pytest.raises(ConfigError, match=words):
            RunDirectory(tmp_path, config, code)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    RunDirectory(tmp_path, LONG | {"num-server-rounds": 9, "round-timeout": 1.0}, "c0de")


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    real, tries = os.fsync, []

    def fsync(handle):
        tries.append(handle)
        if len(tries) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr("coterie.wire.files.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", fsync)
    with waiting_for_room(60.0):
        append_line(tmp_path / "events.jsonl", "one")
    assert (tmp_path / "events.jsonl").read_text() == "one\n" and len(tries) > 4
    tries.clear()
    with waiting_for_room(60.0):
        write_json(tmp_path / "a.json", [1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "events.jsonl"]
    tries.clear()
    with waiting_for_room(60.0):
        flush(tmp_path, "*.json")
    assert len(tries) == 5  # three in vain, the file, its directory
    tries.clear()
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "b.json", [1])


def test_only_one_process_works_in_a_directory(tmp_path):
    with alone_in(tmp_path, ConfigError("mine")):
        with pytest.raises(ConfigError, match="yours"), alone_in(tmp_path, ConfigError("yours")):
            pass
        script = "import sys; from pathlib import Path; from coterie.wire.files import alone_in\n"
        script += "with alone_in(Path(sys.argv[1]), SystemExit(7)): pass"
        assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 7
    with alone_in(tmp_path, ConfigError("free again")):
        pass


def test_privacy_in_words_names_who_has_spent_most():
    told = {
        "mode": "dp-sgd",
        "guarantee": "(epsilon, delta)",
        "delta": 1e-5,
        "epsilon": {"north": 2.5, "south": 7.9932},
    }
    assert privacy_in_words({"privacy": told}) == ["privacy: epsilon is at most 7.99 (client south), delta 1e-05"]
    assert privacy_in_words({"privacy": {**told, "epsilon": {}}}) == ["privacy: nobody trained, delta 1e-05"]
    assert "without a guarantee" in privacy_in_words({"privacy": {"mode": "weights", "guarantee": "none"}})[0]
    assert privacy_in_words({}) == []
