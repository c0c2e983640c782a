"""Processes that are forked: how they end, and that they do."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from coterie.runtime.forks import End, Ending, end, fork, living


@pytest.mark.parametrize(("error", "code"), [(None, 0), (SystemExit(3), 3), (SystemExit("no"), 1), (KeyError("k"), 1)])
def test_the_code_tells_how_the_child_ended(error: BaseException | None, code: int) -> None:
    def child() -> None:
        if error:
            raise error

    _, status = os.waitpid(fork(child), 0)
    assert os.waitstatus_to_exitcode(status) == code


def test_a_child_that_is_deaf_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runtime.forks.GRACE_SECONDS", 0.2)

    def deaf() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "deaf").touch()
        time.sleep(600)

    pid = fork(deaf)
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    assert living({pid}) == {pid}
    started = time.monotonic()
    end(pid)
    assert time.monotonic() - started >= 0.2
    with pytest.raises(ChildProcessError):  # it was waited for
        os.waitpid(pid, 0)


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    told = tmp_path / "grandchild"

    def parent() -> None:
        pid = fork(lambda: time.sleep(600))
        told.write_text(str(pid))
        time.sleep(600)

    pid = fork(parent)
    while not told.exists() or not told.read_text():
        time.sleep(0.01)
    time.sleep(0.1)  # until the grandchild has asked for it
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 10
    while _runs(int(told.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(int(told.read_text()))


def _runs(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_what_a_node_says_at_its_end() -> None:
    told = End(Ending.REFUSED, 'the key "0" is unknown')
    assert End.of(told.to_bytes()) == told
    assert End.of(b"").kind is Ending.LOST
