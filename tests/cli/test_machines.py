"""`--json` and `--quiet`: what machines read, and what people are spared."""

import io
import json
import time

import pytest
from rich.console import Console

from coterie.progress import JsonProgress, LineProgress, RunProgress, TerminalProgress
from coterie.server.roundlog import round_in
from coterie.strategies.observer import Waiting

SMALL = ["--model", "linear", "--num-clients", "3", "--local-epochs", "1", "--num-server-rounds", "2", "--workers", "0"]


def lines(text: str) -> list[dict]:
    """Fails where a line is not JSON, as NaN is not."""
    return [
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) for line in text.splitlines()
    ]


def test_run_for_machines(coterie, tmp_path):
    code, out, err = coterie("run", "--strategy", "fedper", *SMALL, "--run-dir", "a", "--json")
    told = lines(out)
    assert code == 0 and not err
    assert [line["event"] for line in told] == ["started", "round", "round", "result"]
    assert told[0] == {"event": "started", "run": "fedper on digits", "rounds": 2, "clients": 3, "samples": 777}
    first = told[1]
    assert (first["round"], first["rounds"], first["answered"], first["asked"], first["left-out"]) == (1, 2, 3, 3, {})
    assert first["best"] == first["mean"]["personal.accuracy"] and first["seconds"] >= 0
    assert told[3]["result"] == json.loads((tmp_path / "a" / "result.json").read_text())
    assert told[3]["run-dir"] == str(tmp_path / "a") and told[3]["suspects"] is None

    code, out, err = coterie("watch", "a", "--json")
    assert code == 0 and not err and lines(out)[2:] == told[3:]
    assert [line["round"] for line in lines(out)[:2]] == [1, 2]

    code, out, err = coterie("resume", "a", "--num-server-rounds", "3", "--workers", "0", "--json")
    assert code == 0 and not err and [line.get("round") for line in lines(out)] == [None, 3, None]


def test_result_only(coterie):
    code, out, err = coterie("run", "--strategy", "fedper", *SMALL, "--run-dir", "a", "--quiet")
    assert code == 0 and not err and "fedper on digits, 2 rounds" in out
    code, out, err = coterie("run", "--strategy", "fedper", *SMALL, "--run-dir", "b", "--quiet", "--json")
    assert code == 0 and not err and [line["event"] for line in lines(out)] == ["result"]


def test_compare_for_machines(coterie, tmp_path):
    code, out, err = coterie("compare", "--strategies", "local,fedper", *SMALL, "--run-dir", "a", "--json")
    told = lines(out)
    assert code == 0 and not err
    assert [line["run"] for line in told if line["event"] == "started"] == ["local, seed 1", "fedper, seed 1"]
    assert [row["strategy"] for row in told[-1]["rows"]] == ["local", "fedper"]
    assert told[-1]["report"] == str(tmp_path / "a" / "report.html")


def test_mistakes_stay_on_standard_error(coterie):
    code, out, err = coterie("run", "--strategy", "fedavgg", "--json")
    assert code == 2 and not out and err.count("did you mean") == 1


EVENT = {"round": 1, "seconds": 2.0, "left-out": {"c": "no answer"}, "train": {"a": {}, "b": {}}}


def test_lines_have_answers_best_and_time_left(capsys):
    progress = LineProgress("t", 3)
    progress.console = Console(stderr=True, width=200)
    for number, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625)):
        progress.round_ended({**EVENT, "round": number, "mean": {"personal.accuracy": accuracy}}, {})
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "t: round 1/3 personal.accuracy 0.5000, 2/3 clients, best 0.5000 in round 1, about 4 s left"
    assert told[1].endswith("best 0.7500 in round 2, about 2 s left")
    assert told[2].endswith("best 0.7500 in round 2")


def test_least_loss_is_best_where_there_is_no_accuracy():
    progress = RunProgress("t", 2)
    for loss in (2.0, 1.0, 3.0):
        progress.note({**EVENT, "mean": {"personal.loss": loss}})
    assert progress.best_value == 1.0


def test_best_is_by_the_metric_of_the_run():
    for metric, best in (("auroc", 0.9), ("brier", 0.1), ("auto", 0.8)):
        progress = RunProgress("t", 2, metric)
        for auroc, brier, accuracy in ((0.9, 0.3, 0.7), (0.6, 0.1, 0.8)):
            mean = {"personal.auroc": auroc, "personal.brier": brier, "personal.accuracy": accuracy}
            progress.note({**EVENT, "mean": mean})
        assert progress.best_value == best


def test_terminal_shows_who_is_late():
    progress = TerminalProgress("t", 2)
    progress.console = Console(file=io.StringIO(), force_terminal=True, width=200)
    long_ago = time.time() - 1000
    with progress:
        progress.waiting(Waiting(("c",), 1, "train", long_ago, long_ago + 2000))
        progress.progress(1, "train", 1, 3)
        assert progress.bar.tasks[0].fields["doing"] == "train 1/3 clients, 2 late"
        progress.shown_at = 0.0
        progress.progress(1, "train", 2, 3)
        assert progress.bar.tasks[0].fields["doing"] == "train 2/3 clients, 1 late"
        progress.round_ended({**EVENT, "mean": {"personal.accuracy": 0.5}}, {})
        assert progress.late == 0 and progress.bar.tasks[0].fields["best"] == "best 0.5000 in round 1"


def test_rounds_from_a_log(capsys):
    event = round_in("round 2/7: global.accuracy 0.9000, personal.loss 0.1000, 1.5 s")
    assert event == {"round": 2, "seconds": 1.5, "mean": {"global.accuracy": 0.9, "personal.loss": 0.1}}
    assert round_in("round 1/7: 1.5 s") == {"round": 1, "seconds": 1.5, "mean": {}}
    assert round_in("round 1: client a is left out: late") is None
    JsonProgress("t", 7).round_told({**event, "mean": {"personal.loss": float("nan")}})
    told = lines(capsys.readouterr().out)
    assert told[0]["mean"] == {"personal.loss": None} and "answered" not in told[0]
