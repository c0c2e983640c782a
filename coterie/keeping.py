"""A comparison that is kept: its directory may be named again, and what is done there is not done twice.

A run that came to its end stays as it is, one that did not goes on after its last round, others begin. So a comparison that was
stopped, or killed, ends as if it had not been.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from coterie.progress import RunProgress
from coterie.runs import Run
from coterie.runtime.simulation import Workers
from coterie.server.checkpoints import CURRENT, REST, write_json
from coterie.server.rundir import MAY_DIFFER, new_run_dir
from coterie.simulate import simulate
from coterie.strategies.registry import method_of, parse_config
from coterie.wire.config import Value
from coterie.wire.errors import ConfigError
from coterie.wire.fingerprint import fingerprint_with

FILE = "plan.json"  # by which a directory is known as that of a comparison
MAY_DIFFER_HERE = MAY_DIFFER - {
    "num-server-rounds"
}  # a prolonged run need not be the same as one that was planned so long


def comparison_dir(config: Mapping[str, Value], preset: str) -> Path:
    """The directory that `run-dir` names, new or that of the same preset's comparison; or a new one under runs/."""
    path = Path(str(config["run-dir"])).absolute()
    if config["run-dir"] and (path / FILE).is_file():
        before = json.loads((path / FILE).read_text())["preset"]
        if before != preset:
            was, now = (f"preset {name!r}" if name else "no preset" for name in (before, preset))
            raise ConfigError(
                f"run-dir = {str(config['run-dir'])!r}: has a comparison of {was}, this one is of {now}; choose another"
            )
        return path
    path = new_run_dir({**config, "strategy": preset or "compare"})
    write_json(path / FILE, {"preset": preset})
    return path


def kept_run(config: Mapping[str, Value], place: Path, pool: Workers, progress: RunProgress) -> Run:
    """The run of this configuration, which `prepare` made, in this directory."""
    config = {**config, "run-dir": str(place)}
    if (place / "config.json").is_file():
        run = Run(place)
        check_same(run.config, config, place)
        if run.finished:
            progress.say(f"{progress.title}: done before{_by_other_code(config, place)}")
            return run
    place.mkdir(parents=True, exist_ok=True)
    return simulate(config, place, pool, progress)


def check_same(before: Mapping[str, Value], now: Mapping[str, Value], place: Path) -> None:
    for key in sorted({*before, *now} - MAY_DIFFER_HERE):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{key} = {now.get(key)!r}: the run in {place} has {before.get(key)!r}; give that, or another run-dir"
            )


def _by_other_code(config: Mapping[str, Value], place: Path) -> str:
    """A remark, if Coterie or the method has changed since the run ended."""
    settings, _ = parse_config(config)
    code = json.loads((place / CURRENT / REST).read_text())["code"]
    mine = fingerprint_with(method_of(settings.strategy, settings.strategy_file))
    return "" if code == mine else f", with other code (fingerprint {code}, now {mine}); remove {place} to run it anew"
