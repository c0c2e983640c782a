"""A place to start real processes in: all that a test starts can be found, and nothing of it outlives the test."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from coterie.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
MARK = "COTERIE_TEST"


class Sandbox:
    """Commands run in `path`, with Flower's home in it, and all their descendants carry a mark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = uuid.uuid4().hex
        self.flower_home = path / "flower-home"
        self.flower_home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "COLUMNS": "200",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(self.flower_home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, command: Sequence[str], log: str, directory: Path | None = None) -> subprocess.Popen[bytes]:
        """In a process group of its own, so that a signal to it reaches nobody else."""
        with open(self.path / log, "wb") as file:
            return subprocess.Popen(
                command,
                cwd=directory or self.path,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_coterie(self, *arguments: str, log: str = "coterie.log") -> subprocess.Popen[bytes]:
        return self.start([sys.executable, "-m", "coterie", *arguments], log)

    def run(self, command: Sequence[str], timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def coterie(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-m", "coterie", *arguments])

    def read(self, log: str) -> str:
        return (self.path / log).read_text(errors="replace")

    def wait_for(self, text: str, log: str, process: subprocess.Popen[bytes], timeout: float = 180) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.read(log):
            assert process.poll() is None, f"ended before {text!r}:\n{self.read(log)}"
            assert time.monotonic() < deadline, f"no {text!r} within {timeout} s:\n{self.read(log)}"
            time.sleep(0.1)

    def left(self) -> list[str]:
        """The command lines of all processes with our mark that are still alive."""
        found = []
        for entry in _marked(f"{MARK}={self.mark}".encode()):
            with contextlib.suppress(OSError):  # it ended just now
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        return found

    def executor(self) -> int:
        found = self._executors()
        return next(pid for pid, parent in found.items() if parent not in found)

    def methods_process(self) -> int:
        """The process that runs the method: a child of the executor, and forked from it."""
        found = self._executors()
        return next(pid for pid, parent in found.items() if parent in found)

    def _executors(self) -> dict[int, int]:
        """The executor and what it forked, with the parent of each."""
        executors: dict[int, int] = {}
        for entry in _marked(f"{MARK}={self.mark}".encode()):
            with contextlib.suppress(OSError):
                if b"coterie.runtime.executor" in (entry / "cmdline").read_bytes():
                    executors[int(entry.name)] = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
        return executors

    def end(self) -> None:
        wanted = f"{MARK}={self.mark}".encode()
        deadline = time.monotonic() + 30
        while (entries := _marked(wanted)) and time.monotonic() < deadline:
            for entry in entries:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
            time.sleep(0.1)


def _marked(wanted: bytes) -> list[Path]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry)
    return found


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path / "sandbox")
    yield box
    box.end()


@pytest.fixture(scope="module")
def make_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Sandbox]]:
    """For what several tests of a module look at."""
    boxes: list[Sandbox] = []

    def make() -> Sandbox:
        boxes.append(Sandbox(tmp_path_factory.mktemp("module") / "sandbox"))
        return boxes[-1]

    yield make
    for box in boxes:
        box.end()


@pytest.fixture
def coterie(tmp_path, monkeypatch, capsys):
    """Run the command in an empty directory, in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str, str]:
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call
