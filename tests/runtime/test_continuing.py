"""Runs that were killed are gone on with, once each, whatever the SuperLink says in between."""

from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from coterie.runtime import continuing
from coterie.runtime.continuing import MOST_FRUITLESS, Continuing
from coterie.wire.files import alone_in
from coterie.wire.unfinished import Unfinished, read


class Link:
    """The SuperLink: runs with a state each; `broken` is the code that it answers everything with."""

    def __init__(self) -> None:
        self.states = {1: SimpleNamespace(status="running", sub_status="")}
        self.submitted: list[dict] = []
        self.stopped: list[int] = []
        self.broken = 0

    def status(self, run: int):
        self.answer()
        return self.states.get(run)

    def submit(self, bundle: bytes, config: dict) -> int:
        self.answer()
        self.submitted.append(config)
        self.states[run := len(self.states) + 1] = SimpleNamespace(status="pending", sub_status="")
        return run

    def stop(self, run: int) -> None:
        self.stopped.append(run)

    def answer(self) -> None:
        if self.broken:
            request = httpx.Request("POST", "https://localhost")
            raise httpx.HTTPStatusError("", request=request, response=httpx.Response(self.broken, request=request))


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """A run that was killed: its note, the SuperLink, and who looks for such runs."""
    monkeypatch.setattr(continuing, "bundle", lambda config, code: b"")
    place, run_dir = tmp_path / "unfinished" / "a", tmp_path / "run"
    run_dir.mkdir()
    Unfinished(1, {"run-dir": str(run_dir), "run-id": "a"}, 3, 0, 4711).write(place)
    link = Link()
    return place, link, Continuing(place.parent, link)


def test_its_rest_is_submitted_once(killed, capsys):
    place, link, looking = killed
    for _ in range(3):
        looking.look(set())
    assert [config["run-id"] for config in link.submitted] == ["a"] and link.stopped == [1]
    assert (read(place).run, read(place).process) == (2, 0)
    assert "run 1 was killed; its rest is run 2, after round 3 or later" in capsys.readouterr().err


def test_a_run_whose_process_is_there_is_left_alone(killed):
    place, link, looking = killed
    looking.look({4711})
    with alone_in(Path(read(place).config["run-dir"]), AssertionError()):
        looking.look(set())
    assert link.submitted == []


def test_a_superlink_that_stumbles_is_asked_again(killed, capsys):
    """Neither forgotten nor submitted twice."""
    place, link, looking = killed
    link.broken = 503
    looking.look(set())
    assert read(place).run == 1 and link.submitted == []
    link.broken = 0
    looking.look(set())
    link.broken = 500
    looking.look(set())
    assert len(link.submitted) == 1 and read(place).run == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"broken": 400}, "run 1: its rest cannot be submitted"),
        ({"states": {1: SimpleNamespace(status="finished", sub_status="stopped")}}, "run 1 was stopped"),
    ],
)
def test_what_cannot_or_must_not_go_on_is_forgotten(change, words, killed, capsys):
    place, link, looking = killed
    vars(link).update(change)
    looking.look(set())
    assert not place.exists() and link.submitted == [] and words in capsys.readouterr().err


def test_a_run_that_dies_again_and_again_in_one_round_is_left_to_its_owner(killed, capsys):
    place, link, looking = killed
    before = read(place)
    Unfinished(before.run, before.config, 3, MOST_FRUITLESS, 4711).write(place)
    looking.look(set())
    assert not place.exists() and link.submitted == []
    assert f"died {MOST_FRUITLESS + 1} times in one round; it is left to `coterie resume`" in capsys.readouterr().err
