"""The report: what is in it, that nothing of a stranger's gets through unescaped, and that half a run can be reported."""

import json
import re
import shlex

import numpy as np
import pytest

from coterie.cli.main import COMMANDS, main
from coterie.cli.options import given_values
from coterie.server.report import write_report
from coterie.simulate import prepare
from coterie.wire.errors import ConfigError


def test_every_run_has_a_report_with_its_figures(federate, data_of):
    run = federate(strategy="fedper", names=["a<b>", "b", "c", "d"])
    page = (run.path / "report.html").read_text()
    assert "a<b>" not in page and "a\\u003cb>" in page and "did not finish" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # needs nothing from elsewhere
    told = data_of(run.path / "report.html")["runs"][0]
    clients = run.result["models"]["personal"]["clients"]
    assert told["clients"] == list(clients)
    assert told["personal"] == [metrics["accuracy"] for metrics in clients.values()]
    assert told["cost"]["bytes-up"] == [sum(event["bytes-up"][name] for event in run.events) for name in clients]
    assert [row[1] for row in told["curves"]["personal"]["quantiles"]] == [
        np.median([values["personal.accuracy"] for values in event["evaluate"].values()]) for event in run.events
    ]


def test_the_command_in_a_report_runs_it_again(federate, data_of):
    run = federate(strategy="fedprox", **{"fedprox.mu": 0.25, "client-samples": "20-30"})
    command = shlex.split(data_of(run.path / "report.html")["command"])
    assert command[:2] == ["coterie", "run"]
    context = next(c for c in COMMANDS if c.name == "run").make_context("run", command[2:])
    settings = context.params.pop("settings")
    for name in ("workers", "watch", "host", "port", "json", "quiet"):
        context.params.pop(name)
    given = given_values(context.params, settings)
    again, config = prepare(given), json.loads((run.path / "config.json").read_text())
    own = ("run-dir", "run-id", "data-root")
    assert {k: v for k, v in again.items() if k not in own} == {k: v for k, v in config.items() if k not in own}


def test_half_a_run_can_be_reported(federate, capsys):
    run = federate(strategy="fedavg")
    (run.path / "result.json").unlink()
    events = (run.path / "events.jsonl").read_text().splitlines()
    first = json.loads(events[0])
    first["left-out"] = {"3": "no answer within 9 seconds"}
    (run.path / "events.jsonl").write_text(json.dumps(first) + "\n")
    with pytest.raises(SystemExit) as end:
        main(["report", str(run.path)])
    assert end.value.code == 0
    page = (run.path / "report.html").read_text()
    assert "did not finish" in page and "no answer within 9 seconds" in page and "1 of 2 rounds" in page


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        write_report(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="nothing to report"):
        write_report(tmp_path)
