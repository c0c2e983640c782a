"""What Prometheus is told: the format, the figures of run directories, and the dashboard that is drawn from them."""

import json
import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.runtime.metrics import MOST_REQUESTS, WHAT, Metrics, Rounds, Tally, served
from coterie.wire.errors import ConfigError

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "grafana.json"
LINE = re.compile(r'(coterie_\w+)(?:\{(\w+)="([^"\\\n]*)"\})? (\S+)')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """By the text format's grammar as far as it is used here; anything else is an error."""
    found, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            name, _, value, number = LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            assert name in kinds and (kinds[name] == "counter") == name.endswith("_total")
            assert (name, value or "") not in found
            found[name, value or ""] = float(number)
    return found


def event(number: int, **more: Any) -> str:
    told = {"round": number, "seconds": 2.0, "evaluate-seconds": 0.5, "left-out": {}}
    return json.dumps({**told, "bytes-down": {"a": 100, "b": 50}, "bytes-up": {"a": 7}, **more}) + "\n"


def test_rounds_are_read_once_whatever_becomes_of_their_files(tmp_path: Path) -> None:
    one, other = tmp_path / "runs" / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir(parents=True)
    (one / "events.jsonl").write_text(event(1) + event(2, **{"left-out": {"b": "no answer"}}) + event(3)[:20])
    (other / "events.jsonl").write_text(event(1) + "nonsense\n" + "[]\n")
    rounds = Rounds(tmp_path)
    told = rounds.look()
    assert told["coterie_rounds_total", ""] == 3 and told["coterie_left_out_total", ""] == 1
    assert told["coterie_seconds_total", 'part="training"'] == 6.0
    assert told["coterie_seconds_total", 'part="testing"'] == 1.5
    assert told["coterie_bytes_total", 'direction="down"'] == 450
    assert told["coterie_bytes_total", 'direction="up"'] == 21
    assert told["coterie_last_round_timestamp_seconds", ""] == max(
        folder.joinpath("events.jsonl").stat().st_mtime for folder in (one, other)
    )
    (one / "events.jsonl").write_text(event(1))  # killed, and cut to where it goes on
    assert rounds.look()["coterie_rounds_total", ""] == 3
    (one / "events.jsonl").write_text(event(1) + event(2) + event(3))
    assert rounds.look()["coterie_rounds_total", ""] == 4
    assert Rounds(tmp_path).look()["coterie_rounds_total", ""] == 4  # another server


def test_it_is_read_over_http_in_prometheus_format(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, lambda: {"superlink": os.getpid()})
    nodes = [SimpleNamespace(status=status) for status in ("online", "online", "offline", "registered", "unregistered")]
    runs = [SimpleNamespace(state="finished", ending="failed"), SimpleNamespace(state="running", ending="")]
    metrics.tell(nodes, runs, restarts=2)
    tally = Tally(tmp_path / "refused.count")  # as the SuperLink has it
    for _ in range(3):
        tally.add()
    with served(metrics, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/../../etc/passwd")
        with pytest.raises(ConfigError, match=f"metrics-port = {port}: .*choose others"):
            served(metrics, "127.0.0.1", port).__enter__()
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_REQUESTS)]
        with socket.create_connection(("127.0.0.1", port), timeout=10) as late:
            assert late.recv(1) == b""  # turned away, and not kept waiting
        for one in idle:
            one.close()
    told = parsed(text)
    assert {name for name, _ in told} == set(WHAT)
    clients = [told["coterie_clients", state] for state in ("connected", "away", "revoked")]
    assert clients == [2, 2, 1]
    assert (
        told["coterie_runs", "failed"] == told["coterie_runs", "running"] == 1 and told["coterie_runs", "stopped"] == 0
    )
    assert told["coterie_requests_refused_total", ""] == 3 and told["coterie_restarts_total", ""] == 2
    assert told["coterie_memory_bytes", "superlink"] > 10 * 2**20


def test_the_dashboard_draws_what_there_is() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    asked = {
        name for panel in panels for target in panel["targets"] for name in re.findall(r"coterie_\w+", target["expr"])
    }
    assert asked == set(WHAT)  # all of them, and nothing else
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    known = {"$" + "{source}"}
    assert {panel["datasource"]["uid"] for panel in panels} == known
    assert [one["name"] for one in board["templating"]["list"]] == ["source"]
