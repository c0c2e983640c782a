"""The report: what is in it, that nothing of a stranger's gets through unescaped, and that half a run can be reported."""

import json
import re

import pytest

from coterie.cli.main import main
from coterie.server.report import write_report
from coterie.wire.errors import ConfigError


def test_every_run_has_a_report_with_its_figures(federate):
    run = federate(strategy="fedper", names=["a<b>", "b", "c", "d"])
    page = (run.path / "report.html").read_text()
    assert "a&lt;b&gt;" in page and "a<b>" not in page
    mean = run.result["models"]["personal"]["mean"]
    for name in ("accuracy", "accuracy-weighted", "loss"):
        assert f"<td>{mean[name]:.4f}</td>" in page
    for client, metrics in run.result["models"]["personal"]["clients"].items():
        assert f"{metrics['accuracy']:.4f}" in page, client
    assert page.count("data:image/png;base64,") == 1 and "did not finish" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)  # needs nothing from elsewhere


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
