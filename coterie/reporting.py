"""The report of a run, of several, or of a comparison: whatever directories are named."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.following import list_runs
from coterie.runs import Run
from coterie.server.report import write_comparison
from coterie.wire.errors import ConfigError

FILE = "report.html"


def report_of(places: Sequence[str | Path], output: str | Path = "") -> Path:
    """Make the page anew; where it is. Of one directory it lies in there, of several here, unless `output` says otherwise."""
    folders = [Path(place).expanduser().absolute() for place in places]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such directory; `coterie runs` lists those of runs")
    if len(folders) == 1 and (folders[0] / "config.json").is_file():
        return Run(folders[0]).report(output)
    runs = {run.path: _cell(run.path, folder) for folder in folders for run in sorted(list_runs(folder), key=_began)}
    page = _page_of(folders[0]) if len(folders) == 1 else {}
    if not runs and not page:
        raise ConfigError(f"{folders[0]}: is not a run directory, it has no config.json, and there is none in it")
    tested = {path: cell for path, cell in runs.items() if any("evaluate" in event for event in Run(path).events)}
    usual = folders[0] / FILE if len(folders) == 1 else Path(FILE).absolute()
    return write_comparison(Path(output).absolute() if output else usual, tested, **page)


def _began(run: Run) -> tuple[float, Path]:
    return (run.path / "config.json").stat().st_mtime, run.path


def _cell(run: Path, folder: Path) -> str:
    """In a comparison with several cells, a run lies in the folder of its cell."""
    parts = run.relative_to(folder).parts
    return parts[0] if len(parts) > 1 and (folder / "comparison.json").exists() else ""


def _page_of(folder: Path) -> dict[str, Any]:
    """What a comparison says beside its runs."""
    path = folder / "comparison.json"
    return dict(json.loads(path.read_text()).get("page", {})) if path.is_file() else {}
