"""`coterie runs`, `watch` and `stop` of runs here: simulated ones, and what became of them."""

import json
import threading
import time
from pathlib import Path

import pytest

import coterie as library
from coterie.following import duration
from coterie.runtime.keys import make_keys
from coterie.server import status
from coterie.server.living import held
from coterie.server.status import StatusFile
from coterie.strategies.observer import Waiting

SMALL = {"model": "linear", "num_clients": 2, "local_epochs": 1, "workers": 0, "progress": False}


class Stops(library.Observer):
    """After the first round, somebody else looks at the run, and asks it to stop."""

    def __init__(self, path: Path, look=lambda: None) -> None:
        self.path, self.look, self.thread = path, look, None

    def round_ended(self, event, state) -> None:
        if self.thread is None:
            self.look()
            self.thread = threading.Thread(target=library.open_run(self.path).stop)
            self.thread.start()


def test_a_run_is_listed_reported_and_stopped(coterie, tmp_path):
    seen = {}

    def look() -> None:
        seen["runs"], seen["report"] = coterie("runs"), coterie("report", "runs/a")
        seen["again"] = coterie("run", "--run-dir", "runs/a", "--workers", "0")

    observer = Stops(tmp_path / "runs" / "a", look)
    with pytest.raises(library.RunFailed, match="stopped by `coterie stop`"):
        library.run(run_dir=tmp_path / "runs" / "a", num_server_rounds=100_000, observers=[observer], **SMALL)
    observer.thread.join()
    code, out, _ = seen["runs"]
    assert code == 0 and "running" in out and "of 100000" in out and "coterie on digits" in out
    code, out, err = seen["report"]
    assert code == 0 and "still running, round 2 of 100000" in err and out.strip().endswith("report.html")
    page = (tmp_path / "runs" / "a" / "report.html").read_text()
    assert "still running" in page and "did not finish" not in page
    assert seen["again"][0] == 2
    code, out, _ = coterie("runs")
    assert code == 0 and "stopped" in out and "running" not in out
    code, _, err = coterie("stop", "runs/a")
    assert code == 2 and "is not running (stopped in round" in err and "nothing to stop" in err
    code, _, err = coterie("watch", "runs/a")
    assert code == 2 and "error: " in err and "by `coterie stop`" in err
    coterie("report", "runs/a")
    assert "did not finish (stopped: by `coterie stop`)" in (tmp_path / "runs" / "a" / "report.html").read_text()


def test_a_finished_run_is_watched_to_its_end(coterie, tmp_path):
    library.run(run_dir=tmp_path / "elsewhere" / "study" / "b", num_server_rounds=2, **SMALL)
    code, out, err = coterie("watch", "elsewhere/study/b")
    assert code == 0 and "personal" in out and "finished" in err
    (listed,) = library.list_runs("elsewhere")
    assert listed.status.state == "finished" and listed.status.round == 2
    (listed.path / "status.json").unlink()  # as in a run of an older version
    assert listed.status.state == "finished"
    (listed.path / "result.json").unlink()
    code, out, _ = coterie("runs", "elsewhere")
    assert code == 0 and "unfinished" in out and "0 of 2" in out


def test_following_shows_rounds_and_waits_and_does_not_disturb(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(status, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr("coterie.following.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("coterie.server.roundlog.QUIET_SECONDS", 0.05)
    config = {"strategy": "fedper", "task": "digits", "num-server-rounds": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    wait = Waiting(("ward-[7]",), 0, "train", time.time(), time.time() + 300)
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            library.open_run(tmp_path).watch()
        except library.RunFailed as error:
            failures.append(error)

    with held(tmp_path):
        run = StatusFile(tmp_path, config)
        run.started({})
        followers = [threading.Thread(target=follow) for _ in range(2)]
        for follower in followers:
            follower.start()
        for number in (1, 2):
            time.sleep(0.2)
            event = {"round": number, "seconds": 1.0, "mean": {"personal.accuracy": number / 4}}
            with open(tmp_path / "events.jsonl", "a") as file:
                file.write(json.dumps(event) + "\n" + '{"torn')
            time.sleep(0.1)
            with open(tmp_path / "events.jsonl", "r+") as file:
                file.truncate((tmp_path / "events.jsonl").stat().st_size - len('{"torn'))
            run.round_ended(event, {})
        run.waiting(wait)
        time.sleep(0.4)
        run.failed(library.RunFailed("round 3: nobody \x1b[2Janswered"))
        for follower in followers:
            follower.join(10)
            assert not follower.is_alive()
    said = capsys.readouterr().err
    for expected in ("round 1/3 personal.accuracy 0.2500", "round 2/3 personal.accuracy 0.5000", str(wait)):
        assert said.count(expected) == 2, said
    assert [str(error) for error in failures] == [
        f"{tmp_path}: failed in round 3 of 3: round 3: nobody  [2Janswered"
    ] * 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("watch", "nowhere"), "nowhere: is not a run directory"),
        (("stop", "nowhere"), "nowhere: is not a run directory"),
        (("runs", "nowhere"), "nowhere: there is no such directory"),
        (("watch",), "no run is going on here"),
        (("stop",), "no run is going on here"),
        (("runs", "--server", "127.0.0.1:1"), "root-certificates: is needed with --server"),
        (("runs", "--server", "127.0.0.1:1", "--root-certificates", "none.crt"), "'none.crt': is not there"),
        (("stop", "12", "--server", "127.0.0.1:1", "--root-certificates", "keys/ca.crt"), "cannot be reached"),
        (("runs", "here", "--server", "127.0.0.1:1"), "here: is a directory here"),
        (("watch", "nowhere", "--web"), "nowhere: there is no such directory"),
        (("watch", "--port", "8400"), "port: is where the live page is to be; give --web, too"),
        (("run", "--host", "0.0.0.0"), "host: is where the live page is to be; give --watch, too"),
        (("watch", "1", "--web", "--server", "127.0.0.1:1"), "the page is made from a run directory"),
        (("watch", ".", "--web", "--host", "256.0.0.1"), "host = '256.0.0.1', port = 0: the page cannot be there"),
    ],
)
def test_mistakes(arguments, expected, coterie, tmp_path):
    if "keys/ca.crt" in arguments:
        make_keys(tmp_path / "keys", ["0"])
    code, out, err = coterie(*arguments)
    assert code == 2 and expected in err and not out and "Traceback" not in err


def test_no_runs(coterie):
    code, out, err = coterie("runs")
    assert (code, out) == (0, "") and "no runs in runs and server/runs here" in err


def test_durations():
    told = {0.4: "0 s", 59.4: "59 s", 61: "1 min 1 s", 3600: "1 h 0 min", 7512: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in told} == told
