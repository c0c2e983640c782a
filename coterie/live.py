"""What the live page tells of a run: how far it is, who answers, and all that its report has so far.

It is read from the run directory alone, so it is the same for a simulation, for real processes and for containers, and the
run does not notice.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.following import duration, in_words, list_runs
from coterie.runs import Run
from coterie.server.checkpoints import read_events
from coterie.server.report import content_of
from coterie.server.report.words import by_name
from coterie.server.roundlog import QUIET_SECONDS
from coterie.server.status import Status
from coterie.wire.errors import CoterieError

FILES = ("config.json", "events.jsonl", "findings.json", "result.json")  # what the page is made of, beside the status
ROUNDS_SHOWN = 60  # the last ones, for who answered
MOST_CLIENTS = 2000
LATE = 2.0  # times a usual round
ANSWERED, LEFT_OUT, REFUSED, AWAY, NOT_ASKED = "alrx-"  # a client in a round
LEFT = {"left-out": LEFT_OUT, "not-tested": LEFT_OUT, "not-admitted": REFUSED}  # keys of an event: client -> why
NOT_BEGUN = {
    "title": "No run yet",
    "about": "",
    "sentences": ["The run has not begun yet."],
    "runs": [],
    "who": {"rounds": [], "clients": [], "states": [], "why": {}},
}


class Followed:
    """A run directory, or the newest one in a directory of runs; read anew when its files have changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.seen: object = None  # of the files
        self.content: dict[str, Any] = NOT_BEGUN
        self.version = ""  # of the content
        self.now: dict[str, Any] = {"state": "pending"}
        self.next_reading = 0.0
        self._keep(NOT_BEGUN)

    def look(self, at_once: bool = False) -> None:
        """Content is read again at most for a tenth of the time, however large it is, unless `at_once`."""
        run = self._run()
        if run is None:
            return
        status = run.status
        self.now = now_of(status)
        seen = (run.path, status.state, *(_stamp(run.path / name) for name in FILES))
        began = time.monotonic()
        if seen == self.seen or (began < self.next_reading and not at_once):
            return
        try:
            self._keep(content_of_run(run, status))
            self.seen = seen
        except (CoterieError, OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # half of it is not there yet, or is not ours: what was good before stays
        self.next_reading = began + max(1.0, 10 * (time.monotonic() - began))

    def _run(self) -> Run | None:
        try:
            if (self.place / "config.json").is_file():
                return Run(self.place)
            return next(iter(list_runs(self.place)), None)
        except (CoterieError, OSError):
            return None

    def _keep(self, content: dict[str, Any]) -> None:
        self.content = content
        self.version = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size, told.st_ino


def now_of(status: Status) -> dict[str, Any]:
    """What changes all the time. Seconds count from now: the clock of who looks may be another."""
    waiting, now = status.waiting, time.time()
    told = None
    if waiting:
        waited = max(0.0, now - waiting.since)
        usual = status.seconds_per_round
        told = {
            "clients": list(waiting.clients[:MOST_CLIENTS]),
            "others": waiting.others,
            "what": waiting.what,
            "seconds": round(waited),
            "left": round(max(0.0, waiting.until - now)),
            "late": usual is not None and waited > max(QUIET_SECONDS, LATE * usual),
        }
    return {
        "state": status.state,
        "said": in_words(status),
        "round": status.round,
        "rounds": status.rounds,
        "phase": status.phase,
        "answered": status.answered,
        "asked": status.asked,
        "left": None if status.seconds_left is None else duration(status.seconds_left),
        "waiting": told,
    }


def content_of_run(run: Run, status: Status) -> dict[str, Any]:
    """The report of what is there; before a round was tested, only who answers."""
    events, config = read_events(run.path), run.config
    try:
        content = content_of(run.path)
    except CoterieError:
        about = f"{len(events)} of {config['num-server-rounds']} rounds, seed {config['seed']}"
        content = {**NOT_BEGUN, "title": run.title, "about": about, "sentences": ["No round was tested yet."]}
    if content["runs"] and status.state == "running":
        content["runs"][0]["unfinished"] = ""  # the card above says so
    return {**content, "who": who_answers(events), "figures": figures(events, content["runs"])}


def who_answers(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each client a letter for each of the last rounds, and why it was left out in the last one."""
    told = [_states(event) for event in events]
    clients = sorted({name for states in told for name in states}, key=by_name)[:MOST_CLIENTS]
    shown = list(zip(events, told, strict=True))[-ROUNDS_SHOWN:]
    absent = [AWAY if "evaluate" in event else NOT_ASKED for event, _ in shown]  # a test is for all who are there
    why = {name: reason for key in LEFT for name, reason in (events[-1].get(key, {}) if events else {}).items()}
    return {
        "rounds": [event["round"] for event, _ in shown],
        "clients": clients,
        "states": [
            "".join(states.get(name, none) for (_, states), none in zip(shown, absent, strict=True)) for name in clients
        ],
        "why": {name: str(why[name]) for name in clients if name in why},
    }


def _states(event: Mapping[str, Any]) -> dict[str, str]:
    states = {name: ANSWERED for key in ("evaluate", "train") for name in event.get(key, {})}
    for key, state in LEFT.items():
        states |= dict.fromkeys(event.get(key, {}), state)
    return states


def figures(events: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The mean over clients of what the run is judged by: last, and at its best."""
    if not runs:
        return None
    name = f"personal.{runs[0]['metric']}"
    means = [(event["mean"][name], event["round"]) for event in events if name in event.get("mean", {})]
    if not means:
        return None
    best, when = (min if runs[0]["lower"] else max)(means, key=lambda mean: mean[0])
    return {"last": means[-1][0], "best": best, "round": when}
