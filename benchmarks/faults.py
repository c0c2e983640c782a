"""A seeded simulation of faults: each seed kills, tears or fills up a run somewhere, resumes it, and compares every byte.

    python benchmarks/faults.py --seeds 500              # seeds 0 .. 499, all methods in turn
    python benchmarks/faults.py --seeds 500 --first 1234 # seeds 1234 .. 1733
    python benchmarks/faults.py --replay 1234            # one seed, with what happened

A run makes some hundred steps that can fail: it creates, writes, flushes and renames files, and clients answer messages. A seed
chooses the method, one to three steps, and what happens there:

    kill        the process ends at once, before the step or after it
    torn        half of the bytes are written, then it ends
    full        the disk is full for a few tries, and then no longer
    full-for-good   the disk is full until the run has stopped; then there is room again
    late        the answer to a message comes after those of others

After each end the run is resumed, and meets the next fault. In the end result.json, findings.json, every personal model and every
event (but its seconds) must be those of the run that nobody disturbed, and no unfinished file may be left.
"""

import argparse
import contextlib
import errno
import functools
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie
from coterie.runtime import simulation
from coterie.strategies import pool
from coterie.strategies.registry import BUILT_IN, method_of
from coterie.wire import files

KINDS = ("kill", "kill-after", "torn", "full", "full-for-good", "late")
TINY = {
    "task": "digits",
    "num_clients": 3,
    "num_server_rounds": 3,
    "local_epochs": 1,
    "fraction_train": 0.75,
    "model": "mlp",
}
QUICK = {
    **{"spo.hidden": 8, "spo.server-steps": 2, "spo.rays": 4, "spo.search-steps": 3, "spo.local-steps": 2},
    **{"pfedhn.hidden": 8, "pfedhn.server-steps": 2, "pfedme.inner-steps": 2},
}
VARIANTS: dict[str, dict[str, Any]] = {  # beside the methods as they are
    "pfedsim on disk": {"strategy": "pfedsim", "settings": {"pfedsim.store": "disk", "pfedsim.warmup": 0.4}},
    "fedper, private": {"strategy": "fedper", "settings": {"privacy.mode": "dp-sgd"}},
    "fedavg, tested every second round": {"strategy": "fedavg", "evaluate_every": 2},
    "coterie, private": {"strategy": "coterie", "settings": {"privacy.mode": "dp-sgd"}},
}
CASES = [*BUILT_IN, *VARIANTS]


@dataclass
class Fault:
    kind: str
    step: int  # counted from the start of the process
    tries: int = 0  # for how many steps a disk stays full, or how many looks for answers one is late


class Steps:
    """Counts the steps of this process, and lets one of them fail."""

    def __init__(self, fault: Fault | None = None, log: Callable[[str], None] | None = None) -> None:
        self.fault, self.log, self.count, self.clock = fault, log, 0, 1.0
        self.late: Any = None  # an answer that is held back
        self.looks = 0  # for answers, since then

    def at(self, what: str, step: Callable[..., Any], half: Callable[[], Any] | None, *args: Any) -> Any:
        number, fault = self.count, self.fault
        self.count += 1
        on_disk = what != "message"
        if fault and fault.kind == "late":
            answer = step(*args)
            if number >= fault.step and not on_disk and self.late is None:
                self._say(f"late at step {number}")
                self.late = answer
            return answer
        if fault and number == fault.step:
            self._say(f"{fault.kind} at step {number}, {what}")
            if fault.kind == "torn" and half:
                half()
            if fault.kind == "kill-after":
                step(*args)
            if not fault.kind.startswith("full"):
                os.kill(os.getpid(), signal.SIGKILL)
        if fault and on_disk and fault.kind == "full" and 0 <= number - fault.step < fault.tries:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault and on_disk and fault.kind == "full-for-good" and number >= fault.step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return step(*args)

    def arrived(self, finished: Callable[[Any], list[Any]], workers: simulation.Workers) -> list[Any]:
        """The answers that are there; the late one is put back."""
        found = finished(workers)
        late = [one for one in found if self.fault and one[1] is self.late and self.looks < self.fault.tries]
        self.looks += len(late)
        workers.done.extend(late)
        return [one for one in found if one not in late]

    def monotonic(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        """Nobody waits here, and a seed goes the same way each time."""
        self.clock += seconds

    def _say(self, text: str) -> None:
        if self.log:
            self.log(text)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Within, every write, flush, rename and message of this process is a step. A full disk is looked at without waiting."""
        write, replace, rename, answer = files.write_all, os.replace, os.rename, simulation._answer
        make, sync, unlink, finished = tempfile.mkstemp, os.fsync, os.unlink, simulation.Workers.finished

        def torn_write(file: Any, data: Any) -> None:
            view = memoryview(data)
            self.at(f"write {file.name}", write, lambda: write(file, view[: len(view) // 2]), file, data)

        replaced = {
            (os, "replace"): lambda old, new: self.at(f"replace {new}", replace, None, old, new),
            (os, "rename"): lambda old, new: self.at(f"rename {new}", rename, None, old, new),
            (os, "fsync"): lambda handle: self.at("flush", sync, None, handle),
            (os, "unlink"): lambda *args, **more: self.at_end(unlink, *args, **more),
            (files.tempfile, "mkstemp"): lambda **more: self.at("create", lambda: make(**more), None),
            (files, "write_all"): torn_write,
            (pool, "write_all"): torn_write,
            (simulation, "_answer"): lambda message, context: self.at("message", answer, None, message, context),
            (simulation.Workers, "finished"): lambda workers: self.arrived(finished, workers),
            (files, "time"): self,
        }
        before = {place: getattr(*place) for place in replaced}
        for (owner, name), value in replaced.items():
            setattr(owner, name, value)
        try:
            yield
        finally:
            for (owner, name), value in before.items():
                setattr(owner, name, value)

    def at_end(self, unlink: Callable[..., None], *args: Any, **more: Any) -> None:
        """Removing files needs no room."""
        fault, self.fault = self.fault, None if self.fault and self.fault.kind.startswith("full") else self.fault
        try:
            self.at("unlink", lambda: unlink(*args, **more), None)
        finally:
            self.fault = fault or self.fault


def case_of(name: str) -> dict[str, Any]:
    case = {**TINY, "strategy": name, **VARIANTS.get(name, {})}
    if method_of(case["strategy"]).needs_server_data:
        case["server_data"] = "60"
    return case | {"settings": {**QUICK, **case.get("settings", {})}, "disk_patience": 30.0}


def in_child(action: Callable[[], None]) -> int:
    """How a new process ended that did this: 0 well, 1 with an error that names a remedy, 9 killed, 2 in any other way."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        code = 2
        logging.disable(logging.WARNING)
        try:
            action()
            code = 0
        except coterie.RunFailed as error:
            code = 1 if "resume" in str(error) else 2
            if code == 2:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def begin(case: str, path: Path, steps: Steps) -> None:
    with steps.counted():
        coterie.run(run_dir=path, workers=0, progress=False, **case_of(case))


def go_on(case: str, path: Path, steps: Steps) -> None:
    """Resume, or begin again what was killed before it had a config.json."""
    if not (path / "config.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        return begin(case, path, steps)
    with steps.counted():
        coterie.resume(path, workers=0, progress=False)


def outcome(path: Path) -> dict[str, Any]:
    """All that must be the same."""
    places = [path / "result.json", path / "findings.json", *sorted((path / "models").iterdir())]
    found: dict[str, Any] = {place.name: place.read_bytes() for place in places if place.exists()}
    lines = (path / "events.jsonl").read_text().splitlines()
    found["events.jsonl"] = [json.dumps(without_seconds(json.loads(line))) for line in lines]
    left = [str(place.relative_to(path)) for place in path.rglob("*") if place.name.endswith(files.TEMPORARY)]
    return found | {"left over": left, "report.html": (path / "report.html").exists()}


def without_seconds(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_seconds(inner) for key, inner in value.items() if not key.endswith("seconds")}


class Undisturbed:
    """What each case comes to when nothing happens, and how many steps that takes; found out once."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @functools.cache  # noqa: B019 - lives as long as the program
    def __call__(self, case: str) -> tuple[dict[str, Any], int]:
        path = self.home / f"undisturbed-{CASES.index(case)}"
        steps = Steps()
        begin(case, path, steps)
        found = outcome(path)
        shutil.rmtree(path)
        return found, steps.count


def faults_of(seed: int, steps: int) -> list[Fault]:
    rng = random.Random(seed)
    return [
        Fault(rng.choice(KINDS), int(steps * rng.random() ** (1 + turn)), rng.randint(1, 20))
        for turn in range(rng.choice((1, 1, 2, 3)))
    ]


def try_seed(seed: int, undisturbed: Undisturbed, log: Callable[[str], None] | None = None) -> list[str]:
    """What differs in the end; nothing, if all is well."""
    case = CASES[seed % len(CASES)]
    expected, count = undisturbed(case)
    path = undisturbed.home / f"seed-{seed}"
    problems = []
    for fault in (*faults_of(seed, count), None):
        code = in_child(functools.partial(go_on, case, path, Steps(fault, log)))
        if code == 2 or (code and fault is None):
            problems.append(f"ended with {code} at {fault}")
    if not problems:
        found = outcome(path)
        problems = [f"{key} differs" for key in sorted({*expected, *found}) if expected.get(key) != found.get(key)]
    if not problems:
        shutil.rmtree(path)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--replay", type=int)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="coterie-faults-"))
    undisturbed = Undisturbed(home)
    seeds = range(options.first, options.first + options.seeds) if options.replay is None else [options.replay]
    failed, started = [], time.monotonic()
    for seed in seeds:
        case = CASES[seed % len(CASES)]
        if options.replay is not None:
            print(f"seed {seed}, {case}: {undisturbed(case)[1]} steps, {faults_of(seed, undisturbed(case)[1])}")
        if problems := try_seed(seed, undisturbed, print if options.replay is not None else None):
            failed.append(seed)
            print(f"seed {seed}, {case}: {'; '.join(problems)}; its directory is {home / f'seed-{seed}'}", flush=True)
    print(f"{len(seeds)} seeds, {len(failed)} failed {failed or ''}, {time.monotonic() - started:.0f} s")
    if not failed:
        shutil.rmtree(home)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
