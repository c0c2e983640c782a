"""A run that was killed, or stopped by a full disk, and resumed: every byte as if nothing had happened."""

import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest

import coterie
from coterie.wire.files import alone_in

PATH = Path(__file__).parents[2] / "benchmarks" / "faults.py"
SMALL = {"task": "digits", "num_clients": 3, "model": "linear", "local_epochs": 1, "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def faults():
    spec = importlib.util.spec_from_file_location("faults", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def undisturbed(faults, tmp_path):
    return faults.Undisturbed(tmp_path)


def steps_of(faults, case: str, path: Path) -> list[str]:
    """What an undisturbed run does, step by step."""
    seen = []
    steps = faults.Steps()
    at = steps.at

    def noted(what, *rest):
        seen.append(what)
        return at(what, *rest)

    steps.at = noted
    faults.begin(case, path, steps)
    return seen


def killed_and_resumed(faults, case: str, path: Path, kind: str, step: int) -> dict:
    fault = faults.Fault(kind, step)
    assert faults.in_child(lambda: faults.begin(case, path, faults.Steps(fault))) == signal.SIGKILL
    assert faults.in_child(lambda: faults.go_on(case, path, faults.Steps())) == 0
    return faults.outcome(path)


def test_killed_at_every_step_of_a_checkpoint(faults, undisturbed, tmp_path):
    """Before and after each rename that the end of a round makes, and with half of the event line."""
    seen = steps_of(faults, "local", tmp_path / "noted")
    end = [i for i, what in enumerate(seen) if what.endswith("events.jsonl") or "checkpoint" in what]
    end = end[len(end) // 3 : 2 * len(end) // 3]  # of the second round of three: with both renames
    assert any("rename" in seen[i] for i in end) and any("events" in seen[i] for i in end)
    expected = undisturbed("local")[0]
    for number, i in enumerate(end):
        kind = "torn" if seen[i].startswith("write") else ("kill", "kill-after")[number % 2]
        assert killed_and_resumed(faults, "local", tmp_path / str(i), kind, i) == expected, (seen[i], kind)


@pytest.mark.parametrize("case", ["local", pytest.param("fedper, private", marks=pytest.mark.slow)])
def test_killed_after_the_last_checkpoint(case, faults, undisturbed, tmp_path):
    """What the rounds before came to is there: the last test, who took part, and what privacy each has spent."""
    seen = steps_of(faults, case, tmp_path / "noted")
    last = max(i for i, what in enumerate(seen) if what.startswith("rename") and what.endswith("/checkpoint"))
    (written,) = [i for i, what in enumerate(seen) if what.startswith("replace") and what.endswith("/result.json")]
    judged = next(i for i in range(last, len(seen)) if seen[i] == "message")
    expected = undisturbed(case)[0]
    result = json.loads(expected["result.json"])
    assert len(result["clients"]) == 3 and ("privacy" in result) == (case != "local")
    for kind, step in (("kill-after", last), ("kill-after", judged), ("kill", written), ("kill-after", written)):
        assert killed_and_resumed(faults, case, tmp_path / f"{kind}-{step}", kind, step) == expected, (kind, seen[step])


@pytest.mark.parametrize("seed", [10, 11, 28])  # pfedsv, lg-fedavg, pfedsim on disk
def test_seeds(seed, faults, undisturbed):
    assert faults.try_seed(seed, undisturbed) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1032))  # every method once
def test_more_seeds(seed, faults, undisturbed):
    assert faults.try_seed(seed, undisturbed) == []


def test_a_finished_run_is_prolonged_and_ends_like_a_longer_one(tmp_path):
    long = coterie.run("fedper", run_dir=tmp_path / "long", num_server_rounds=4, **SMALL)
    short = coterie.run("fedper", run_dir=tmp_path / "short", num_server_rounds=2, **SMALL)
    assert coterie.resume(short.path, workers=0, progress=False).result["rounds"] == 2  # nothing to do
    again = coterie.resume(short.path, 4, workers=0, progress=False)
    assert again.result == long.result and again.config["num-server-rounds"] == 4
    assert files_of(short.path / "models") == files_of(long.path / "models")
    with pytest.raises(coterie.ConfigError, match=r"num-server-rounds = 3: .* has 4 rounds already"):
        coterie.resume(short.path, 3, workers=0, progress=False)
    assert again.result == long.result


def test_a_run_that_goes_on_is_not_resumed_beside_it(tmp_path, monkeypatch):
    run = coterie.run("local", run_dir=tmp_path / "a", num_server_rounds=1, **SMALL)
    monkeypatch.setattr("coterie.server.living.PATIENCE_SECONDS", 0.0)
    before = files_of(run.path)
    with (
        alone_in(run.path, AssertionError()),
        pytest.raises(coterie.ConfigError, match="another process works on this run"),
    ):
        coterie.resume(run.path, 2, workers=0, progress=False)
    assert files_of(run.path) == before


def test_settings_that_were_changed_in_between_are_named(tmp_path):
    run = coterie.run("local", run_dir=tmp_path / "a", num_server_rounds=1, **SMALL)
    config = run.config | {"seed": 9}
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(coterie.ConfigError, match=r"seed = 9: the run in .* was begun with 1"):
        coterie.resume(run.path, workers=0, progress=False)


def test_a_run_of_a_server_is_resumed_there(tmp_path):
    run = coterie.run("local", run_dir=tmp_path / "a", num_server_rounds=1, **SMALL)
    (run.path / "config.json").write_text(json.dumps(run.config | {"run-id": "a1"}))
    with pytest.raises(coterie.ConfigError, match="--server HOST:PORT"):
        coterie.resume(run.path)


def test_workers_of_a_killed_run_end_with_it(tmp_path):
    """Or they would write where the resumed run writes."""

    class Killing(coterie.Observer):
        def progress(self, server_round, phase, done, total):
            if server_round == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        more = {**SMALL, "workers": 2}
        coterie.run("fedper", run_dir=tmp_path / "a", num_server_rounds=3, observers=[Killing()], **more)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    whole = coterie.run("fedper", run_dir=tmp_path / "b", num_server_rounds=3, **SMALL)
    assert coterie.resume(tmp_path / "a", workers=2, progress=False).result == whole.result
