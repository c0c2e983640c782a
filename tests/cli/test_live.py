"""The live page in a real browser, beside real runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

chromium = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(chromium is None, reason="chromium is not installed: apt-get install chromium"),
]
PATIENCE = 180_000  # milliseconds, for what must come at some time
HOSTILE = "<img src=x onerror=alert(1)>"
METHOD = """
import time
from pathlib import Path
from coterie.strategies.fedavg import FedAvg

class Slow(FedAvg):
    name = "slow"

    def round(self, round):
        while round.number == 3 and not Path({go!r}).exists():
            time.sleep(0.05)
        super().round(round)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser) -> Iterator[Any]:
    """Open a page; whatever it says in the console, whatever it asks of another host, is an error."""
    seen: list[str] = []
    contexts = []

    def go(address: str, width: int = 1400, **how: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: seen.append(dialog.message))
        ours = (address, "data:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(ours) else seen.append(asked.url))
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert seen == []


def address_in(box: Any, process: subprocess.Popen[bytes], log: str = "coterie.log") -> str:
    box.wait_for("live page: ", log, process)
    return re.search(r"live page: (http://127\.0\.0\.1:\d+/)", box.read(log))[1]


def says(page: Any, where: str, text: str) -> None:
    page.locator(where, has_text=re.compile(text)).first.wait_for(timeout=PATIENCE)


def until(page: Any, true: str) -> None:
    """Asked from here: the page's policy lets nobody evaluate a text."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(true):
        assert time.monotonic() < deadline, (true, page.evaluate("[DATA.live, DATA.who]"))
        page.wait_for_timeout(100)


def told_of(page: Any, client: str) -> dict[str, Any]:
    return page.evaluate("(name) => standings().find((row) => row.name === name)", client)


def axe(page: Any) -> list[Any]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]


def client_process(run_dir: Path, name: str) -> int:
    key = str(run_dir / "keys" / "clients" / name).encode()
    found = [int(e.name) for e in Path("/proc").glob("[0-9]*") if key in _words(e) and b"client" in _words(e)]
    return min(found)


def _words(entry: Path) -> list[bytes]:
    try:
        return (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_it_follows_real_processes_with_a_client_killed_and_back(sandbox, show):
    options = (
        "--clients",
        "3",
        "--model",
        "linear",
        "--strategy",
        "fedper",
        "--round-timeout",
        "5",
        "--baseline",
        "none",
    )
    up = sandbox.start_coterie("up", *options, "--num-server-rounds", "100000", "--run-dir", "run", "--watch")
    address = address_in(sandbox, up)
    page, phone = show(address), show(address, width=400, color_scheme="dark")
    for one in (page, phone):
        says(one, "#sentence", r"^Running, round \d+ of 100000, 3 clients.* Clients: ")
        until(one, "DATA.who.rounds.length > 2 && standings().length === 3")
    assert axe(page) == [] and axe(phone) == []
    assert phone.evaluate("document.documentElement.scrollWidth") <= 400
    page.locator("#now .actions button", has_text="Table").click()
    page.locator("#clients input").fill("2")
    killed = client_process(sandbox.path / "run", "1")
    command, environment = _words(Path(f"/proc/{killed}"))[:-1], (Path(f"/proc/{killed}/environ").read_bytes())
    os.killpg(killed, signal.SIGKILL)
    until(page, "'lx'.includes(standings().find((row) => row.name === '1').state)")
    says(page, "#now tbody", "left out|away")
    picture_of(page, "away")
    sandbox.environment |= dict(
        word.split("=", 1) for word in environment.decode().split("\0") if word.startswith("COTERIE")
    )
    again = sandbox.start([word.decode() for word in command], "again.log")
    sandbox.wait_for("connected to", "again.log", again)
    until(page, "/[lx]+a+$/.test(standings().find((row) => row.name === '1').letters)")
    assert told_of(page, "1")["state"] in "aw" and told_of(page, "2")["letters"].strip("a") == ""
    assert page.locator("#now tbody tr").count() == 3  # what was opened and typed stays through the rounds
    assert page.locator("#clients input").input_value() == "2"
    picture_of(page, "back")
    picture_of(phone, "phone")
    assert sandbox.coterie("stop", "run").returncode == 0
    for one in (page, phone):
        says(one, "#sentence", r"^Stopped in round \d+ of 100000: by `coterie stop`\.")
        says(one, "#now .warn", "This live page has ended")
    again.kill()
    assert up.wait(timeout=60) == 2
    assert sandbox.left() == []


def picture_of(page: Any, name: str) -> None:
    """Kept where LIVE_PICTURES says, to look at."""
    if place := os.environ.get("LIVE_PICTURES"):
        page.screenshot(path=f"{place}/{name}.png", full_page=True)


def test_it_ends_with_the_report_and_the_command_ends_as_always(sandbox, show):
    (sandbox.path / "slow.py").write_text(METHOD.format(go=str(sandbox.path / "go")))
    options = ("--strategy", "slow.py", "--model", "linear", "--num-clients", "4", "--num-server-rounds", "4")
    run = sandbox.start_coterie("run", *options, "--workers", "1", "--run-dir", "run", "--watch")
    address = address_in(sandbox, run)
    first = show(address)
    says(first, "#sentence", r"^Running, round 3 of 4, 4 clients")
    first.close()  # closed and opened at any time
    page, other = show(address), show(address)
    says(page, "#now", "2 of 4|3 of 4")
    (sandbox.path / "go").touch()
    for one in (page, other):
        says(one, "#now .warn", "The run has ended, and with it this live page")
    assert run.wait(timeout=60) == 0, sandbox.read("coterie.log")
    assert "fedavg" not in sandbox.read("coterie.log") and "4 rounds, seed 1" in sandbox.read("coterie.log")
    assert sandbox.left() == []
    report = (sandbox.path / "run" / "report.html").read_text()
    sentence = page.locator("#sentence").text_content()
    assert f'<h1 id="sentence">{sentence}</h1>' in report
    assert page.evaluate("DATA.runs[0].cost.rounds") == [1, 2, 3, 4]


def test_a_hostile_name_is_text_and_a_new_run_takes_the_place_of_the_old(sandbox, show):
    place = sandbox.path / "runs"
    make(place / "one", [HOSTILE, "b"])
    watch = sandbox.start_coterie("watch", "runs", "--web")
    page = show(address_in(sandbox, watch))
    says(page, "#now", re.escape(HOSTILE[:13]))
    assert HOSTILE in page.locator("#clients").text_content() and page.locator("img").count() == 0
    page.locator("#now figure").press("ArrowDown")
    assert page.locator("#one h2").text_content() == HOSTILE
    assert axe(page) == []
    make(place / "two", ["c", "</script><b>"])
    says(page, "#clients", "</script><b>")
    assert page.locator("b", has_text="c").count() == 0 and page.locator("img").count() == 0
    watch.send_signal(signal.SIGINT)
    says(page, "#now .warn", "This live page has ended")
    assert watch.wait(timeout=30) == 0 and "the run is not touched" in sandbox.read("coterie.log")
    assert sorted(path.name for path in (place / "one").iterdir()) == ["config.json", "events.jsonl"]


def make(path: Path, names: list[str]) -> None:
    path.mkdir(parents=True)
    tested = {name: {"num-samples": 9, "personal.accuracy": 0.5, "personal.loss": 1.0} for name in names}
    event = {"round": 1, "seconds": 1.0, "train": tested, "evaluate": tested, "left-out": {names[0]: HOSTILE}}
    (path / "events.jsonl").write_text(json.dumps({**event, "mean": {"personal.accuracy": 0.5}}) + "\n")
    config = {"strategy": "fedper", "task": "digits", "seed": 1, "num-server-rounds": 3}
    (path / "config.json").write_text(json.dumps(config))
