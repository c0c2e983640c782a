"""The status of a run: what is told of it, that the dead are told from the living, and that it ends when it is asked to."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.following import in_words
from coterie.server import roundlog, status
from coterie.server.living import held, is_held
from coterie.server.roundlog import RoundLog, status_in
from coterie.server.status import Status, StatusFile, ask_to_stop, read_status, told_first
from coterie.strategies.observer import Waiting
from coterie.wire.errors import ConfigError, NoQuorum, RunStopped
from coterie.wire.messages import Hello

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"num-server-rounds": 10}
CLIENTS = {name: Hello(name, "", 2, 10, 1, 2) for name in ("ward-7", "ward-8")}
WAIT = Waiting(("ward-7",), 0, "train", 1_000_000.0, 1_000_300.0)


@pytest.fixture
def running(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "WRITE_SECONDS", 0.0)
    with held(tmp_path):
        yield StatusFile(tmp_path, CONFIG)


def ended(number: int, seconds: float) -> dict:
    return {"round": number, "seconds": seconds * 0.75, "evaluate-seconds": seconds * 0.25, "train": {}}


def test_it_says_how_far_the_run_is(running, tmp_path):
    assert (read_status(tmp_path).state, read_status(tmp_path).round) == ("running", 0)
    running.progress(0, "describe", 1, 2)  # tables: before the first round
    assert in_words(read_status(tmp_path)) == "running, its clients agree on columns, 1 of 2 told theirs"
    running.started(CLIENTS)
    assert read_status(tmp_path).seconds_left is None
    for number in range(1, 5):
        running.round_ended(ended(number, 2.0), {})
    running.progress(5, "train", 1, 2)
    running.waiting(WAIT)
    told = read_status(tmp_path)
    assert (told.round, told.rounds, told.clients, told.phase, told.answered, told.asked) == (5, 10, 2, "train", 1, 2)
    assert told.waiting == WAIT and told.pid == os.getpid()
    assert 10 < told.seconds_left <= 12  # six rounds of two seconds, of which the first has just begun
    running.progress(5, "train", 2, 2)
    assert read_status(tmp_path).waiting is None


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (None, "finished", ""),
        (NoQuorum("round 2: nobody answered", {}), "failed", "round 2: nobody answered"),
        (KeyboardInterrupt(), "stopped", "by a signal"),
        (SystemExit(1), "stopped", "by its server"),
        (RunStopped("..."), "stopped", "by `coterie stop`"),
    ],
)
def test_every_end_is_told(error, state, why, running, tmp_path):
    running.started(CLIENTS)
    running.ended({}) if error is None else running.failed(error)
    assert (read_status(tmp_path).state, read_status(tmp_path).why) == (state, why)


def test_a_stop_is_told_before_the_server_acts_on_it(running, tmp_path):
    """Whoever handles the signal may end the process without another word."""
    script = f"""
import os, signal, sys
from pathlib import Path
from coterie.server.status import told_first
signal.signal(signal.SIGINT, lambda number, frame: os._exit(7))
with told_first(Path({str(tmp_path)!r})):
    signal.raise_signal(signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60)
    assert done.returncode == 7
    assert (read_status(tmp_path).state, read_status(tmp_path).why) == ("stopped", "by its server")


def test_a_stop_changes_nothing_of_a_run_that_has_ended(running, tmp_path):
    running.ended({})
    with pytest.raises(KeyboardInterrupt), told_first(tmp_path):
        signal.raise_signal(signal.SIGINT)
    assert read_status(tmp_path).state == "finished"


def test_it_stops_when_it_is_asked_to(running, tmp_path):
    running.waiting(WAIT)
    ask_to_stop(tmp_path)
    with pytest.raises(RunStopped) as stopped:
        running.waiting(WAIT)
    running.failed(stopped.value)
    StatusFile(tmp_path, CONFIG).waiting(WAIT)  # the next run in this directory was not asked


def test_a_killed_run_is_not_taken_for_one_that_goes_on(tmp_path):
    program = (
        "import os, sys, time; from pathlib import Path; from coterie.server.living import held\n"
        "from coterie.server.status import StatusFile\n"
        "with held(Path(sys.argv[1])):\n"
        "    StatusFile(Path(sys.argv[1]), {'num-server-rounds': 10}); print(flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    assert read_status(tmp_path).state == "running"
    with pytest.raises(ConfigError, match="another process works on this run"), held(tmp_path):
        pass
    assert read_status(tmp_path).state == "running"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert read_status(tmp_path).state == "died"
    with held(tmp_path):  # and it is free for another
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_lock_does_not_outlive_its_run_in_workers_that_stay(tmp_path):
    """Those of a comparison are forked in its first run and serve the others."""
    with held(tmp_path):
        worker = os.fork()
        if not worker:
            time.sleep(600)
    try:
        assert not is_held(tmp_path)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


@pytest.fixture(scope="module")
def some_place(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(sorted(Status.__dataclass_fields__))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(KEYS, JSON | st.just("running")).map(json.dumps) | st.text())
def test_any_file_can_be_read(some_place, text):
    path = some_place
    (path / "status.json").write_text(text, errors="replace")
    told = read_status(path)
    assert told.state != "running" and (told.waiting is None or "since" in str(told.waiting))
    assert told.seconds_left is None


def test_a_full_disk_or_a_directory_that_is_gone_harms_no_run(tmp_path):
    there = tmp_path / "run"
    there.mkdir()
    told = StatusFile(there, CONFIG)
    there.rename(tmp_path / "elsewhere")
    told.started(CLIENTS)
    told.ended({})


# --- the log, from which others read the same ---------------------------------------------------------------------------


@given(
    st.integers(1, 30),
    st.lists(st.floats(0, 1e4), max_size=8),
    st.dictionaries(st.sampled_from(roundlog.SHOWN), st.floats(0, 1)),
)
def test_the_log_says_what_can_be_read_from_it(clients, seconds, mean):
    rounds = 8
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("coterie.server.roundlog")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        log = RoundLog(rounds)
        log.started({str(i): CLIENTS["ward-7"] for i in range(clients)})
        for number, each in enumerate(seconds, start=1):
            log.round_ended({**ended(number, each), "mean": mean}, {})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    told = status_in(["Starting ...", *lines])
    assert (told.clients, told.round) == (clients, len(seconds) + 1)
    if seconds:
        assert told.rounds == rounds
        assert told.seconds_per_round == pytest.approx(sum(seconds[-5:]) / len(seconds[-5:]), abs=0.06)


def test_a_long_wait_is_told_once_and_again_for_others(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    clock: list[float] = []
    monkeypatch.setattr(roundlog.time, "monotonic", lambda: clock[-1])
    log = RoundLog(3)
    both = Waiting(("ward-7", "ward-8"), 0, "train", 1_000_000.0, 1_000_300.0)

    def wait_at(now: float, waiting: Waiting) -> None:
        clock.append(now)
        log.waiting(waiting)

    wait_at(100, both)
    wait_at(105, both)
    wait_at(106, WAIT)  # ward-8 has answered
    wait_at(115, WAIT)
    assert not caplog.messages  # ordinary so far
    for now in (117, 118, 200):
        wait_at(now, WAIT)
    (said,) = caplog.messages
    assert re.fullmatch(r"waiting for ward-7 \(train\) since \d\d:46:40, until \d\d:51:40 at the latest", said), said
    assert status_in([said]).why == said
    assert status_in([said, "round 1/3: 2.0 s"]).why == ""


def test_many_are_counted():
    assert "waiting for a, b, c, 9 more (join)" in str(Waiting(tuple("abcdefgh"), 4, "join", 0.0, 1.0))
    assert "waiting for 2 more (join)" in str(Waiting((), 2, "join", 0.0, 1.0))
