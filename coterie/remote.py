"""The runs of a server, from wherever its control port can be reached: which there are, following one, ending one.

What it knows of a run is its configuration, its state, and its log.
"""

from pathlib import Path

from coterie.deploy import PATIENCE_SECONDS, connect, follow, plain
from coterie.following import Listed
from coterie.progress import Shown, progress_of
from coterie.runtime.control import FlowerRun
from coterie.server.roundlog import status_in
from coterie.server.status import Status
from coterie.wire.errors import ConfigError, RunFailed

SHOWN = 20  # runs, the newest
STATES = {"completed": "finished", "failed": "failed", "stopped": "stopped"}
STOP_SECONDS = 30.0


class Remote:
    def __init__(self, server: str, authority: Path) -> None:
        self.server = server
        self.control = connect(server, authority)

    def runs(self) -> list[Listed]:
        """The newest ones, the newest first."""
        return [Listed(str(run.number), _title(run), self._status(run)) for run in self.control.runs()[:SHOWN]]

    def number(self, run: str) -> int:
        """The run that the user means; without a number, the one that is going on."""
        known = self.control.runs()
        if not run:
            going = [one.number for one in known if one.state != "finished"]
            if len(going) != 1:
                said = f"{len(going)} runs are going on" if going else "no run is going on"
                raise ConfigError(f"RUN: {said} at {self.server}; give the number of one, `coterie runs` lists them")
            return going[0]
        if not run.isdecimal() or int(run) not in [one.number for one in known]:
            raise ConfigError(
                f"RUN = {run!r}: {self.server} has no such run; `coterie runs --server {self.server}` lists their numbers"
            )
        return int(run)

    def watch(self, number: int, progress: Shown = True) -> None:
        """Show its log so far and as it comes, until the run ends; raises `RunFailed` if that is not its end."""
        run = self._find(number)
        with progress_of(progress, _title(run), run.config) as shown:
            follow(self.control.log(number, PATIENCE_SECONDS), shown)
        if failure := self.control.failure(number):
            raise RunFailed(failure)

    def stop(self, number: int) -> str:
        run = self._find(number)
        if run.state == "finished":
            raise ConfigError(f"run {number}: is not running ({run.ending}); there is nothing to stop")
        self.control.stop(number)
        self.control.wait_for_end(number, STOP_SECONDS)
        return self._find(number).ending

    def _find(self, number: int) -> FlowerRun:
        return next(run for run in self.control.runs() if run.number == number)

    def _status(self, run: FlowerRun) -> Status:
        if run.state in ("pending", "starting"):
            return Status("pending", rounds=int(run.config.get("num-server-rounds", 0)), began=run.submitted)
        status = status_in(plain(line) for line in self.control.log_so_far(run.number))
        status.rounds = status.rounds or int(run.config.get("num-server-rounds", 0))
        status.began, status.round_began = run.submitted, run.now
        if run.state == "finished":
            status.state = STATES.get(run.ending, "failed")  # type: ignore[assignment]
            status.round, status.why = min(status.round, status.rounds), "" if run.ending == "completed" else run.why
        return status


def _title(run: FlowerRun) -> str:
    return f"{run.config['strategy']} on {run.config['task']}" if {"strategy", "task"} <= run.config.keys() else "a run"
