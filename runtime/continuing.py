"""An executor goes on with runs that it began and that were killed: Flower starts no run twice, so the rest is a new one.

It has the same code, settings and id, and the same directory, where the rounds that ended are. This is done when a run's process
has ended without a word, and when the executor itself is started.
"""

import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import httpx

from coterie.runtime.control import Control, bundle
from coterie.runtime.foreground import say
from coterie.wire.errors import ConfigError
from coterie.wire.files import alone_in
from coterie.wire.unfinished import Unfinished, code_in, read

MOST_FRUITLESS = 3  # so often without a finished round: it will not get better


class Continuing:
    def __init__(self, directory: Path, control: Control) -> None:
        self.directory, self.control = directory, control

    def look(self, processes: Collection[int]) -> None:
        """Submit the rest of each run that is none of these processes any more."""
        for place in sorted(self.directory.glob("*")):
            found = read(place)
            if found is None or found.process in processes or _works_on(found):
                continue
            try:
                self._go_on(place, found)
            except httpx.HTTPStatusError as error:
                if error.response.is_server_error:  # the SuperLink stumbled: once more at the next look
                    continue
                say(
                    f"run {found.run}: its rest cannot be submitted ({error.response.text}); it is left to `coterie resume`"
                )
                shutil.rmtree(place)

    def _go_on(self, place: Path, found: Unfinished) -> None:
        status = self.control.status(found.run)
        if found.process == 0 and status and status.status != "finished":
            return  # submitted already
        if status and status.sub_status == "stopped":
            say(f"run {found.run} was stopped")
            shutil.rmtree(place)
            return
        if found.fruitless >= MOST_FRUITLESS:
            say(f"run {found.run}: died {found.fruitless + 1} times in one round; it is left to `coterie resume`")
            shutil.rmtree(place)
            return
        run = self.control.submit(bundle(found.config, code_in(place)), found.config)
        fruitless = found.fruitless + (found.process == 0)
        replace(found, run=run, process=0, fruitless=fruitless).write(place)
        say(f"run {found.run} was killed; its rest is run {run}, after round {found.rounds} or later")
        if status and status.status != "finished":
            self.control.stop(found.run)  # Flower takes a minute to see that it is dead


def _works_on(found: Unfinished) -> bool:
    """Whether a process is still in the run's directory: then it is not dead yet."""
    directory = Path(str(found.config["run-dir"]))
    busy = ConfigError("busy")
    try:
        with alone_in(directory, busy):
            return False
    except FileNotFoundError:
        return False
    except ConfigError:
        return True
