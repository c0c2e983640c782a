"""`report.html`: one page that needs nothing else, made from the files of a run directory, or of several.

The page is `page.html` with its style, its script and its data inside. Names and reasons come from strangers: the
sentences are escaped, and the data are JSON without a `<`, which the script writes as text only.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from coterie.server.report.command import command_of
from coterie.server.report.data import read_run, run_data
from coterie.server.report.several import beside_local, best_run, in_words, methods
from coterie.server.report.words import summary
from coterie.wire.errors import CoterieError
from coterie.wire.files import write_atomically

__all__ = [
    "best_of",
    "chart",
    "command_of",
    "content_of",
    "page_text",
    "read_run",
    "run_data",
    "write_comparison",
    "write_page",
    "write_report",
]

LIVE = "live.js"
SCRIPTS = ("base.js", "charts.js", "matrix.js", LIVE, "page.js")
MOST_BYTES = (
    3_000_000  # of the runs of a comparison; of those beyond, the page has no matrices and no curves of clients
)


class NoPage(CoterieError):
    """The files that a page is made of are not here: Flower's own bundles have none but Python's."""


def write_report(run_dir: Path, output: Path | None = None) -> Path:
    """Make `report.html` anew from what is in the run directory, there or elsewhere."""
    return write_page(output or run_dir / "report.html", **content_of(run_dir))


def content_of(run_dir: Path) -> dict[str, Any]:
    """What the page of a run has in it."""
    run = run_data(run_dir)
    config, _ = read_run(run_dir)
    done, planned = run["rounds-done"], run["rounds-planned"]
    return {
        "title": f"{run['strategy']} on {run['task']}",
        "about": f"{done} of {planned} rounds, {len(run['clients'])} clients, seed {run['seed']}",
        "sentences": summary(run),
        "runs": [run],
        "command": command_of(config),
    }


def write_comparison(
    path: Path,
    runs: Mapping[Path, str],
    *,
    title: str = "",
    tables: Sequence[Mapping[str, Any]] = (),
    charts: Sequence[Mapping[str, Any]] = (),
    settings: Sequence[tuple[str, Any]] = (),
    command: str = "",
) -> Path:
    """A page about several runs, each in a cell of the comparison; more tables and charts come after them."""
    told, size = [], 0
    for run_dir, cell in runs.items():
        run = {**run_data(run_dir), "cell": cell}
        run["command"] = command_of(read_run(run_dir)[0])
        size += len(json.dumps(run))
        told.append(run if size <= MOST_BYTES else _without_details(run))
    beside_local(told)
    cells = list(dict.fromkeys(run["cell"] for run in told))
    first = [run for run in told if run["cell"] == (cells[0] if cells else "")]
    names = list(dict.fromkeys(run["strategy"] for run in told))
    seeds = list(dict.fromkeys(str(run["seed"]) for run in told))
    return write_page(
        path,
        title=title or f"{', '.join(names)} on {', '.join(dict.fromkeys(run['task'] for run in told))}",
        about=f"{len(told)} runs: {len(names)} methods, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}",
        sentences=in_words(first) if told else [],
        runs=told,
        first=best_run(first) if told else 0,
        methods=[{"cell": cell, "rows": methods([run for run in told if run["cell"] == cell])} for cell in cells],
        tables=[{"title": t["title"], "head": t["head"], "rows": t["rows"], "caption": t["caption"]} for t in tables],
        charts=charts,
        settings=settings,
        command=command,
    )


def best_of(runs: Mapping[Path, str]) -> tuple[list[str], dict[str, Any]]:
    """What a page about these runs says first, and the run that it shows first."""
    told = [{**run_data(run_dir), "cell": cell} for run_dir, cell in runs.items()]
    beside_local(told)
    return in_words(told), told[best_run(told)]


def _without_details(run: dict[str, Any]) -> dict[str, Any]:
    curves = {kind: curve and {**curve, "clients": None} for kind, curve in run["curves"].items()}
    return {**run, "matrices": [], "curves": curves, "lighter": True}


def chart(title: str, x: str, y: str, lines: Mapping[str, tuple[Any, Any]], **how: Any) -> dict[str, Any]:
    """Lines for a page: name -> (x, y). `how`: log-x, log-y."""
    drawn = [{"name": name, "x": list(map(float, xs)), "y": list(map(float, ys))} for name, (xs, ys) in lines.items()]
    return {"title": title, "x": x, "y": y, "lines": drawn, **how}


def write_page(path: Path, **content: Any) -> Path:
    write_atomically(path, page_text(**content).encode("utf-8", "replace"))
    return path


def page_text(*, title: str, about: str, sentences: Sequence[str] = (), **content: Any) -> str:
    """One page with this title and content; `content` is what page.js reads. With `live`, live.js follows a run."""
    data = json.dumps({"title": title, "about": about, **content}, ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": escape(title),
        "about": escape(about),
        "sentence": escape(" ".join(sentences) or title),
        "style": _file("page.css"),
        "data": data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        "script": "\n".join(_file(name) for name in SCRIPTS if name != LIVE or "live" in content),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))


def _file(name: str) -> str:
    for folder in _folders():
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise NoPage(f"report.html: {name} is not here; make the page with `coterie report RUN` where Coterie is installed")


def _folders() -> Iterator[Path]:
    """Beside this code; where this is a bundle of Flower's, in the Coterie that is installed."""
    yield Path(__file__).parent
    for installed in metadata.distributions(name="coterie"):
        yield Path(str(installed.locate_file("coterie/server/report")))
        yield Path(str(installed.locate_file("server/report")))  # beside its metadata, in a directory of sources
        origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
        if origin.startswith("file:"):  # installed for development
            yield Path(unquote(urlparse(origin).path)) / "server" / "report"
