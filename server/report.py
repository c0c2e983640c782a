"""`report.html`: a run on one page that needs nothing else, made from the files of its directory.

Names and reasons come from clients, so everything is escaped.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment

from coterie.server.benefits import benefit_graph
from coterie.server.checkpoints import read_events
from coterie.server.coalitions import circles
from coterie.server.findings import found
from coterie.server.pictures import client_lines, curves, heatmaps
from coterie.server.status import Status, read_status
from coterie.strategies.findings import Finding
from coterie.wire.errors import ConfigError
from coterie.wire.files import write_atomically

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
  h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
  p.about { color: #5a6475; margin-top: .2rem; }
  .scroll { overflow-x: auto; }
  table { border-collapse: collapse; } th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #e3e7ee; }
  th { font-weight: 600; background: #f5f7fa; } th:first-child, td:first-child, td.text { text-align: left; }
  img { max-width: 100%; height: auto; } .bad { color: #a4262c; }
  details { margin-top: 2rem; } code { background: #f5f7fa; padding: 0 .2rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="about">{{ about }}</p>
{% if not finished %}<p class="bad">{{ unfinished }}: the figures are those of its last evaluation.</p>{% endif %}
{% for table in tables %}
<h2>{{ table.title }}</h2>
<div class="scroll"><table>
<tr>{% for name in table.head %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in table.rows %}
<tr>{% for cell in row %}<td{% if table.text_last and loop.last %} class="text"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% if table.caption %}<p class="about">{{ table.caption }}</p>{% endif %}
{% endfor %}
{% for name, data in pictures %}
<h2>{{ name }}</h2>
<img alt="{{ name }}" src="data:{{ data }}">
{% endfor %}
<details><summary>All settings</summary><table>
{% for key, value in settings %}<tr><td><code>{{ key }}</code></td><td class="text">{{ value }}</td></tr>{% endfor %}
</table></details>
</body>
</html>
"""


def write_report(run_dir: Path) -> Path:
    """Make `report.html` anew from what is in the run directory."""
    config, events = read_run(run_dir)
    tested = [event for event in events if "evaluate" in event]
    if not tested:
        raise ConfigError(f"{run_dir}: no round of this run was evaluated, so there is nothing to report yet")
    last = tested[-1]
    pictures = [("Over the rounds", encoded(curves(tested)))]
    findings = found(run_dir)
    pictures += _drawn(findings)
    bad = findings["suspects"].facts.get("bad-clients", []) if "suspects" in findings else []
    for key, name in (
        ("contribution", "Contributions"),
        ("explained", "Share of each update that right labels explain"),
    ):
        told = [event for event in events if key in event]
        if told:
            pictures.append((name, encoded(client_lines(told, key, bad))))
    clients = sum(1 for _ in last["evaluate"])
    return write_page(
        run_dir,
        title=f"{config['strategy']} on {config['task']}",
        about=f"{len(events)} of {config['num-server-rounds']} rounds, {clients} clients tested, seed {config['seed']}",
        finished=(run_dir / "result.json").exists(),
        unfinished=_unfinished(read_status(run_dir)),
        tables=[
            _means(last),
            *_suspects(findings),
            *_links(findings),
            _clients(events, last),
            *_privacy(config, events),
            *_left_out(events),
            *_rolled_back(events),
        ],
        pictures=pictures,
        settings=sorted(config.items()),
    )


def write_page(directory: Path, **content: Any) -> Path:
    """`report.html` with this title, text, tables, pictures and settings."""
    path = directory / "report.html"
    write_atomically(path, Environment(autoescape=True).from_string(PAGE).render(content).encode())
    return path


def read_run(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings and the events of a run."""
    if not (run_dir / "config.json").is_file():
        raise ConfigError(f"{run_dir}: is not a run directory, it has no config.json")
    config = json.loads((run_dir / "config.json").read_text())
    return config, read_events(run_dir)


def _unfinished(status: Status) -> str:
    if status.state == "running":
        return f"This run is still running, in round {status.round} of {status.rounds}"
    return "This run did not finish" + (f" ({status.state}: {status.why})" if status.why else "")


def encoded(picture: bytes, suffix: str = ".png") -> str:
    kind = "svg+xml" if suffix == ".svg" else "png"
    return f"image/{kind};base64,{base64.b64encode(picture).decode()}"


def _means(last: Mapping[str, Any]) -> dict[str, Any]:
    mean: Mapping[str, float] = last["mean"]
    names = sorted({name.split(".", 1)[1] for name in mean if not name.endswith("-weighted")})
    kinds = sorted({name.split(".", 1)[0] for name in mean})
    rows = []
    for kind in kinds:
        rows.append([f"{kind}, mean over clients", *[_number(mean.get(f"{kind}.{name}")) for name in names]])
        rows.append([f"{kind}, by samples", *[_number(mean.get(f"{kind}.{name}-weighted")) for name in names]])
    return {"title": f"After round {last['round']}", "head": ["model", *names], "rows": rows}


def _clients(events: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> dict[str, Any]:
    """Every client: how often it trained, what it sent and received, how its models do."""
    metrics: Mapping[str, Mapping[str, float]] = last["evaluate"]
    names = list(dict.fromkeys(name for values in metrics.values() for name in values if name != "num-samples"))
    rows = []
    for client, values in metrics.items():
        trained = sum(client in event["train"] for event in events)
        down, up = (sum(event[key].get(client, 0) for event in events) / 2**20 for key in ("bytes-down", "bytes-up"))
        figures = [_number(values.get(name)) for name in names]
        rows.append([client, values["num-samples"], trained, f"{down:.2f}", f"{up:.2f}", *figures])
    head = ["client", "test samples", "rounds trained", "MB down", "MB up", *names]
    return {"title": "Clients", "head": head, "rows": rows}


def _privacy(config: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What every client has spent, or that nothing is guaranteed."""
    mode = config.get("privacy.mode", "off")
    if mode == "off":
        return []
    if mode == "weights":
        rows = [["noise on uploaded weights", "no formal guarantee"]]
        return [{"title": "Privacy", "head": ["mode", "guarantee"], "rows": rows, "text_last": True}]
    spent: dict[str, float] = {}
    for event in events:
        spent |= {client: told["epsilon"] for client, told in event["train"].items() if "epsilon" in told}
    rows = [[client, f"{epsilon:.3f}", f"{config['privacy.delta']:g}"] for client, epsilon in spent.items()]
    return [{"title": "Privacy (DP-SGD)", "head": ["client", "epsilon", "delta"], "rows": rows}]


def _drawn(findings: Mapping[str, Finding]) -> list[tuple[str, str]]:
    """A picture of every finding that there is one for."""
    groups = findings["coalitions"].values if "coalitions" in findings else []
    pictures = []
    for name, finding in findings.items():
        if finding.kind == "pairs" and finding.clients:
            shown = {name: finding.values}
            if "label-overlap" in finding.facts:
                shown["label overlap"] = np.array(finding.facts["label-overlap"])
            pictures.append((name, encoded(heatmaps(shown, finding.clients))))
        elif finding.kind == "links":
            pictures.append(("who helps whom", encoded(benefit_graph(finding.values, groups), ".svg")))
        elif finding.kind == "places":
            pictures.append(("coalitions", encoded(circles(finding.values, groups))))
    return pictures


def _suspects(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Every client whose score is below the bound, and whether it is bad, where that is known."""
    if "suspects" not in findings:
        return []
    scores, facts = findings["suspects"].values, findings["suspects"].facts
    bad = facts.get("bad-clients")
    rates = [f"{name} {facts[name]:.2f}" for name in ("precision", "recall") if facts.get(name) is not None]
    rows = [
        [client, f"{scores[client]:.1f}", "not known" if bad is None else "yes" if client in bad else "no"]
        for client in facts["suspects"]
    ]
    title = "; ".join([f"Suspects: score below {facts['score-below']:g}", *rates])
    return [{"title": title, "head": ["client", "score", "is it bad?"], "rows": rows}]


def _links(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Who is helped by whom, who trains together, and which coalitions break an axiom."""
    tables: list[dict[str, Any]] = []
    if "collaborators" in findings:
        rows = [[client, ", ".join(others)] for client, others in findings["collaborators"].values.items()]
        tables.append({"title": "Collaborators", "head": ["client", "is helped by"], "rows": rows, "text_last": True})
    if "coalitions" in findings:
        told = findings["coalitions"]
        rows = [[str(i), ", ".join(members)] for i, members in enumerate(told.values, start=1)]
        title = ": ".join(["Coalitions", *([told.facts["in-words"]] if "in-words" in told.facts else [])])
        tables.append({"title": title, "head": ["number", "clients"], "rows": rows, "text_last": True})
        if "violations" in told.facts:
            broken = [[violation["axiom"], ", ".join(violation["clients"])] for violation in told.facts["violations"]]
            up_to = told.facts["axioms-checked-up-to"]
            title = f"Axioms, tried with coalitions of up to {up_to}: {len(broken)} violations"
            tables.append({"title": title, "head": ["axiom", "coalition"], "rows": broken, "text_last": True})
    return tables


def _left_out(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = [
        [event["round"], client, reason]
        for event in events
        for key in ("left-out", "not-tested", "not-admitted")
        for client, reason in event.get(key, {}).items()
        if key != "not-tested" or client not in event["left-out"]
    ]
    return [{"title": "Left out", "head": ["round", "client", "why"], "rows": rows, "text_last": True}] if rows else []


def _rolled_back(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    back = [(event["round"], event["rolled-back"]) for event in events if "rolled-back" in event]
    rows = [[number, told["to-round"], told["why"]] for number, told in back]
    title, head = "Rounds that ruined the models and were rolled back", ["round", "to round", "why"]
    return [{"title": title, "head": head, "rows": rows, "text_last": True}] if rows else []


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
