"""A real Docker Engine, the image built once, and federations of containers that leave nothing behind."""

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "coterie-test"
PATIENCE = 300.0  # seconds; for a busy machine, no test waits for it to pass


def output_of(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What the command prints; fails with all that it said."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def docker(*arguments: str) -> str:
    return output_of(["docker", *arguments])


def wait_until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.2)


class Compose:
    """`docker compose` for one federation, under a name of its own."""

    docker = staticmethod(docker)
    wait_until = staticmethod(wait_until)

    def __init__(self, runs: Path, *files: str, **variables: str) -> None:
        self.runs, self.project = runs, f"coterie-test-{uuid.uuid4().hex[:8]}"
        runs.mkdir()
        files = ("compose.yaml", *files)
        self.command = ["docker", "compose", "-p", self.project, *(part for file in files for part in ("-f", file))]
        # As the user who runs the tests, so that what is written to `runs` can be removed; root's are written by 1000.
        owner = {"OWNER": f"{os.getuid()}:{os.getgid()}"} if os.getuid() else {}
        self.environment = {**os.environ, "COTERIE_IMAGE": IMAGE, "RUNS": str(runs), **owner, **variables}
        self.environment.setdefault("PAGE_PORT", "0")  # a free one

    def __call__(self, *arguments: str) -> str:
        return output_of([*self.command, *arguments], self.environment)

    def code(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and all that was said."""
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def inside(self, service: str, *command: str) -> tuple[int, str]:
        """Run a command in a new container of that service, beside those that are up."""
        program, *arguments = command
        return self.code("run", "--rm", "--no-deps", "-T", "--entrypoint", program, service, *arguments)

    def container(self, service: str, number: int = 1) -> str:
        return f"{self.project}-{service}-{number}"

    def health(self, service: str, number: int = 1) -> str:
        return docker("inspect", "--format", "{{.State.Health.Status}}", self.container(service, number)).strip()

    def left(self) -> list[str]:
        """All that the engine still has of this federation."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = (("ps", "-a"), ("volume", "ls"), ("network", "ls"))
        return [line for kind in kinds for line in docker(*kind, "-q", "--filter", label).splitlines()]

    def start_run(self, name: str, *options: str) -> "Run":
        return Run(self, name, options)

    def end(self) -> None:
        self.code("kill")
        self("down", "-v", "--remove-orphans")


class Run:
    """A run that was submitted to a federation of containers."""

    def __init__(self, compose: Compose, name: str, options: Sequence[str]) -> None:
        self.path, self.container = compose.runs / name, f"{compose.project}-{name}"
        where = ("--server", "control:8000", "--root-certificates", "/keys/ca.crt", "--run-dir", f"runs/{name}")
        small = ("--model", "linear", "--strategy", "fedper")
        start = ("run", "--rm", "--no-deps", "-T", "--name", self.container, "run")
        self.process = subprocess.Popen(
            [*compose.command, *start, "submit", *where, *small, *options],
            cwd=ROOT,
            env=compose.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    @property
    def events(self) -> list[dict[str, Any]]:
        file = self.path / "events.jsonl"
        written, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")  # whole lines
        return [json.loads(line) for line in written.splitlines()]

    def wait_for(self, true: Callable[[dict[str, Any]], bool], what: str, after: int = 0) -> int:
        """Wait for a round after `after` of which that is true; its number."""

        def found() -> list[int]:
            ended = self.process.poll() is not None  # asked before the events are read
            rounds = [event["round"] for event in self.events if event["round"] > after and true(event)]
            assert rounds or not ended, f"the run ended before {what}:\n{self.said()}\n{self.events[-3:]}"
            return rounds

        wait_until(found, what)
        return found()[0]

    def wait_for_round(self, number: int) -> int:
        return self.wait_for(lambda event: True, f"round {number}", after=number - 1)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def stop(self) -> None:
        """As Ctrl-C does: the server stops it, too."""
        docker("kill", "--signal", "INT", self.container)
        said = self.said()
        assert self.process.wait() == 130, said

    def finish(self) -> dict[str, Any]:
        """Its result; it must complete."""
        said = self.said()
        assert self.process.wait() == 0, said
        return json.loads((self.path / "result.json").read_text())


@pytest.fixture(scope="session")
def engine() -> None:
    """`docker compose`, or a reason to skip; where COTERIE_DOCKER=required there must be one."""
    if shutil.which("docker") is None:
        problem = "there is no docker command"
    else:
        tries = [["docker", "info"], ["docker", "compose", "version"]]
        failed = [t for t in tries if subprocess.run(t, capture_output=True).returncode]
        problem = f"`{' '.join(failed[0])}` fails" if failed else ""
    if problem and os.environ.get("COTERIE_DOCKER") == "required":
        pytest.fail(f"COTERIE_DOCKER=required, but {problem}")
    if problem:
        pytest.skip(f"needs a Docker Engine with Compose: {problem}")


@pytest.fixture(scope="session")
def image(engine: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built from this very tree. Without an extra index: pip's own has what a test needs."""
    index = os.environ.get("PIP_EXTRA_INDEX_URL", "")
    compose = Compose(tmp_path_factory.mktemp("build") / "runs", PIP_EXTRA_INDEX_URL=index)
    compose("build")
    return IMAGE


@pytest.fixture(scope="session")
def federation(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """A server and four clients, with the memory of a Raspberry Pi each, ready for runs. Whoever hurts it heals it."""
    limits = tmp_path_factory.mktemp("limits") / "memory.yaml"
    limits.write_text("services: {client: {mem_limit: 1g}}\n")
    compose = Compose(tmp_path_factory.mktemp("federation") / "runs", str(limits))
    try:
        compose("up", "-d", "--wait", "executor", "client")
        yield compose
    finally:
        compose.end()


@pytest.fixture
def make_compose(image: str, tmp_path: Path) -> Iterator[Callable[..., Compose]]:
    made: list[Compose] = []

    def make(*files: str, **variables: str) -> Compose:
        made.append(Compose(tmp_path / f"runs-{len(made)}", *files, **variables))
        return made[-1]

    yield make
    for compose in made:
        compose.end()
