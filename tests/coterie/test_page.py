"""The live page: what it tells of a run that goes on, whom it answers, and that nothing in the directory harms it."""

import asyncio
import base64
import hashlib
import json
import re
import time

import httpx
import pytest

from coterie import live, page
from coterie.live import Followed, now_of, who_answers
from coterie.page import Live, beside
from coterie.server import status
from coterie.server.living import held
from coterie.server.status import Status, StatusFile
from coterie.strategies.observer import Waiting
from coterie.wire.errors import ConfigError
from coterie.wire.messages import Hello

HOSTILE = "<img src=x onerror=alert(1)>"
CONFIG = {"strategy": "fedper", "task": "digits", "seed": 1, "num-server-rounds": 3}


def round_of(number: int, names: list[str], **more) -> dict:
    tested = {name: {"num-samples": 9, "personal.accuracy": number / 4, "personal.loss": 1.0} for name in names}
    trained = {name: {"num-samples": 9, "cpu-seconds": 0.1} for name in names}
    mean = {"personal.accuracy": number / 4, "personal.loss": 1.0}
    return {"round": number, "seconds": 1.0, "train": trained, "evaluate": tested, "mean": mean, "left-out": {}, **more}


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A run that goes on: `running(event)` ends a round of it."""
    monkeypatch.setattr(status, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(page, "LOOK_SECONDS", 0.01)
    with held(tmp_path):
        told = StatusFile(tmp_path, CONFIG)
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))

        def end(event: dict) -> None:
            with open(tmp_path / "events.jsonl", "a") as file:
                file.write(json.dumps(event) + "\n")
            told.round_ended(event, {})

        end.status = told
        yield end


def asked(place, address: str = "/", host: str = "127.0.0.1:8000", method: str = "GET", **headers) -> httpx.Response:
    return asyncio.run(ask(Live(place), address, host, method, **headers))


async def ask(served: Live, address: str, host: str = "127.0.0.1", method: str = "GET", **headers) -> httpx.Response:
    told = {"host": host, **{key.replace("_", "-"): value for key, value in headers.items()}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://127.0.0.1") as client:
        return await client.request(method, address, headers=told)


def data_in(text: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found)


def heard(place, seen: str = "", then=lambda live: None) -> list[tuple[str, dict]]:
    """What a listener is told until the page is over, which is so after `then`."""

    async def listen() -> list[tuple[str, dict]]:
        followed, told = Live(place), []
        async for text in followed.news(seen):
            kind, *_, data = text.strip().splitlines()
            told.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
            if not followed.over.is_set():
                then(followed)
                followed.over.set()
        return told

    return asyncio.run(listen())


def test_it_follows_a_run_from_before_its_first_round_to_its_report(running, tmp_path):
    before = asked(tmp_path)
    assert before.status_code == 200 and "No round was tested yet." in before.text
    assert data_in(before.text)["runs"] == [] and data_in(before.text)["live"]["now"]["state"] == "running"
    running.status.started(dict.fromkeys((HOSTILE, "b"), Hello("b", "", 2, 9, 1, 2)))
    running(round_of(1, [HOSTILE, "b"]))
    running(round_of(2, [HOSTILE], **{"left-out": {"b": "no answer within 9 seconds"}}))
    text = asked(tmp_path).text
    assert HOSTILE not in text
    told = data_in(text)
    assert told["runs"][0]["clients"] == [HOSTILE, "b"] and told["runs"][0]["unfinished"] == ""
    assert told["live"]["now"]["round"] == 3 and told["live"]["now"]["left"] is not None
    assert told["who"]["states"] == ["aa", "al"] and told["who"]["why"] == {"b": "no answer within 9 seconds"}
    assert told["figures"] == {"last": 0.5, "best": 0.5, "round": 2}

    def finish(_) -> None:
        running(round_of(3, [HOSTILE, "b"]))
        running.status.ended({})

    events = heard(tmp_path, told["live"]["version"], finish)
    assert [kind for kind, _ in events] == [
        "now",
        "now",
        "run",
        "end",
    ]  # of the version it has seen nothing is said again
    assert events[1][1]["state"] == "finished" and events[2][1]["who"]["states"] == ["aaa", "ala"]
    assert not (tmp_path / "stop").exists() and {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "events.jsonl", "status.json")
    }


@pytest.mark.parametrize("end", ['{"torn": ', "[]\n", '{"round": 9}\n', '{"round": 2, "train": 7}\n', "\udcff\n"])
def test_what_is_not_whole_or_not_ours_harms_nothing(end, running, tmp_path):
    running(round_of(1, ["a"]))
    followed = Followed(tmp_path)
    followed.look()
    good = followed.version
    with open(tmp_path / "events.jsonl", "a", errors="surrogateescape") as file:
        file.write(end)
    followed.look(at_once=True)
    assert followed.version == good
    fresh = asked(tmp_path)
    assert fresh.status_code == 200


def test_a_killed_run_and_its_rest_are_told(running, tmp_path):
    running(round_of(1, ["a"]))
    followed = Followed(tmp_path)
    running.status.failed(RuntimeError("nobody \x1b[2Janswered"))
    followed.look()
    assert followed.now["state"] == "failed" and "nobody  [2Janswered" in followed.now["said"]
    assert "did not finish" in followed.content["runs"][0]["unfinished"]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "localhost:1", "[::1]:8000", "10.0.0.5:8000"])
def test_addresses_are_answered(host, tmp_path):
    assert asked(tmp_path, host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_names_that_others_own_are_refused(host, tmp_path):
    for address in ("/", "/events"):
        refused = asked(tmp_path, address, host=host)
        assert refused.status_code == 403 and "another name" in refused.text


@pytest.mark.parametrize(
    "address",
    ["/config.json", "/../config.json", "/%2e%2e/config.json", "/keys/ca.key", "/events/../config.json", "/docs"],
)
def test_no_path_of_a_request_is_opened(address, running, tmp_path):
    told = asked(tmp_path, address)
    assert told.status_code == 404 and told.text == "Not Found"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_reading_is_possible(method, tmp_path):
    assert asked(tmp_path, method=method).status_code == 405


def test_the_browser_is_told_what_it_may_do(running, tmp_path):
    running(round_of(1, ["a"]))
    told = asked(tmp_path)
    script = re.search(r"<script>(.*?)</script>", told.text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(part.strip().split(" ", 1) for part in told.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == f"'sha256-{digest}'" and policy["connect-src"] == "'self'"
    assert told.headers["cache-control"] == "no-store" and told.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in told.headers and "server" not in told.headers
    assert asked(tmp_path, "/nothing").headers["content-security-policy"].startswith("default-src 'none'")


def test_listeners_are_bounded_and_of_this_page_only(tmp_path, monkeypatch):
    assert asked(tmp_path, "/events", sec_fetch_site="cross-site").status_code == 403
    monkeypatch.setattr(page, "MOST_LISTENERS", 0)
    assert asked(tmp_path, "/events").status_code == 503


def test_a_listener_that_stays_too_long_is_let_go_and_counted_out(running, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "LISTEN_SECONDS", 0.05)
    served = Live(tmp_path)
    told = asyncio.run(ask(served, "/events"))
    assert told.status_code == 200 and told.headers["content-type"].startswith("text/event-stream")
    assert "event: run" in told.text and "event: end" not in told.text and served.listeners == 0


def test_late_is_who_takes_twice_as_long_as_a_round(monkeypatch):
    now = time.time()
    waiting = Waiting(("a",), 1, "train", now - 30, now + 60)
    for usual, late in ((None, False), (1.0, True), (14.0, True), (20.0, False)):
        told = now_of(Status("running", 2, 3, waiting=waiting, seconds_per_round=usual, round_began=now))["waiting"]
        assert told["late"] is late and told["clients"] == ["a"] and told["others"] == 1
    waiting = Waiting(("a",), 0, "train", now - 5, now + 60)
    assert not now_of(Status("running", waiting=waiting, seconds_per_round=0.1))["waiting"]["late"]


def test_who_answers_round_by_round():
    not_tested = round_of(3, ["a"])
    del not_tested["evaluate"]
    events = [round_of(1, ["a", "b", "c"]), round_of(2, ["a"], **{"not-admitted": {"d": "not its key"}}), not_tested]
    told = who_answers(events)
    assert dict(zip(told["clients"], told["states"], strict=True)) == {"a": "aaa", "b": "ax-", "c": "ax-", "d": "xr-"}
    assert told["why"] == {} and who_answers(events[:2])["why"] == {"d": "not its key"}
    assert who_answers([]) == live.NOT_BEGUN["who"]


def test_of_a_directory_of_runs_the_newest_is_shown(tmp_path):
    followed = Followed(tmp_path)
    followed.look()
    assert followed.content["title"] == "No run yet"
    for name, strategy in (("one", "fedavg"), ("two", "fedper")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**CONFIG, "strategy": strategy}))
        followed.look(at_once=True)
        assert followed.content["title"] == f"{strategy} on digits"


def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path):
    with page.Page().open() as taken:
        port = taken.getsockname()[1]
        refused = pytest.raises(ConfigError, match=f"port = {port}: the page cannot be there")
        with refused, beside(tmp_path, page.Page(port=port)):
            pytest.fail("it began")
