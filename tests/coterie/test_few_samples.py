"""Runs with few and unequal samples: patience, folds, class weights."""

import json
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.cli.main import main
from coterie.folds import pooled
from coterie.tasks.tensors import stored_arrays
from coterie.wire.errors import ConfigError

QUIET = {"workers": 0, "progress": False}


@pytest.fixture
def wards(tmp_path) -> str:
    """Two small sites whose rare label depends on two of ten columns."""
    rng = np.random.default_rng(3)
    for name in ("north", "south"):
        x = rng.normal(size=(60, 10)).round(3)
        x[:, 9] = 1
        ill = np.where(x[:, 0] + x[:, 1] + rng.normal(size=60) > 1.8, "yes", "no")
        lines = [",".join([*(f"c{i}" for i in range(10)), "ill"])]
        lines += [",".join([*map(str, row), label]) for row, label in zip(x.tolist(), ill, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return f"{tmp_path / 'north.csv'},{tmp_path / 'south.csv'}"


def test_patience_keeps_the_best_model_and_ends_the_run(wards, tmp_path):
    keys = {
        "label": "ill",
        "num_server_rounds": 25,
        "learning_rate": 1.0,
        "model": "linear",
        "validation_fraction": 0.3,
        **QUIET,
    }
    free = coterie.run("local", "own", wards, run_dir=tmp_path / "free", **keys)
    done = coterie.run("local", "own", wards, run_dir=tmp_path / "run", patience=3, **keys)
    assert done.result["rounds"] < 25 == free.result["rounds"]
    since = [[told["rounds-since-best"] for told in event["evaluate"].values()] for event in done.events]
    assert min(since[-1]) == 3 and all(min(told) < 3 for told in since[:-1])
    for name in ("north", "south"):
        told = [event["evaluate"][name] for event in done.events]
        best = done.result["rounds"] - 1 - int(told[-1]["rounds-since-best"])
        assert told[best]["rounds-since-best"] == 0  # then it was the model of that round, as without patience
        assert (
            told[-1]["personal.loss"]
            == told[best]["personal.loss"]
            == free.events[best]["evaluate"][name]["personal.loss"]
        )
        kept = stored_arrays(done.path / "state" / "best" / f"{name}.safetensors")[1]
        assert int(kept["best"]) == best + 1
    again = coterie.run(
        "local", "own", wards, run_dir=tmp_path / "again", patience=3, **{**keys, "num_server_rounds": 2}
    )
    again = coterie.resume(again.path, num_server_rounds=25, workers=0, progress=False)
    assert again.result["models"] == done.result["models"]


def test_folds_test_every_row_once(wards, tmp_path, capsys):
    main_options = [
        "run",
        "--task",
        "own",
        "--data",
        wards,
        "--label",
        "ill",
        "--num-server-rounds",
        "1",
        "--workers",
        "0",
    ]
    run_with(main_options, "--run-dir", str(tmp_path / "run"), "--folds", "3", "--class-weights", "balanced")
    shown, err = capsys.readouterr()
    assert err.count("column c9") == 1 and "fold 3" in err  # what all folds would say again is said once
    done = coterie.open_run(tmp_path / "run")
    assert [(row["client"], row["test-samples"], row["folds"]) for row in done.folds] == [
        ("north", 60, 3),
        ("south", 60, 3),
    ]
    assert "Every sample tested once, in 3 folds" in shown and " ± " in shown
    runs = [coterie.open_run(tmp_path / "run" / "folds" / str(i)) for i in (1, 2, 3)]
    hits = sum(
        row["personal.accuracy"] * row["test-samples"]
        for run in runs
        for row in run.clients
        if row["client"] == "north"
    )
    assert done.folds[0]["personal.accuracy"]["mean"] == pytest.approx(hits / 60)
    assert done.result["models"] and json.loads((tmp_path / "run" / "config.json").read_text())["folds"] == 0
    run_with(main_options, "--run-dir", str(tmp_path / "plain"))
    assert "few test samples: north (12), south (12); --folds 5" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="was run without folds"):
        _ = coterie.open_run(tmp_path / "plain").folds


def run_with(*options: list[str] | str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*options[0], *options[1:]])
    assert not ended.value.code


def test_pooled_figures_count_samples_and_say_how_far_folds_differ():
    folds = [[{"client": "a", "test-samples": n, "personal.accuracy": v}] for n, v in ((10, 0.5), (30, 0.9))]
    (row,) = pooled(folds)
    assert row["personal.accuracy"]["mean"] == pytest.approx(0.8)
    assert row["personal.accuracy"]["standard-error"] == pytest.approx(0.2)
    assert "gain" not in row


def test_the_gain_over_all_folds_is_surer_than_that_of_one():
    def fold(samples: int, low: float | None, high: float | None) -> list[dict[str, object]]:
        row = {"client": "a", "test-samples": samples, "local": 0.6, "gain": 0.1, "gain-low": low, "gain-high": high}
        return [{**row, "verdict": "cannot tell"}]

    (row,) = pooled([fold(10, -0.02, 0.18)] * 4)
    assert (row["local"], row["gain"], row["verdict"]) == (pytest.approx(0.6), pytest.approx(0.1), "gains")
    assert (row["gain-low"], row["gain-high"]) == (pytest.approx(0.08 - 0.05), pytest.approx(0.08 + 0.05))
    (row,) = pooled([fold(10, -0.3, 0.3), fold(30, 0.0, 0.2)])  # middles 0 and 0.1, halves 0.3 and 0.1
    half = ((0.25 * 0.3) ** 2 + (0.75 * 0.1) ** 2) ** 0.5
    assert (row["gain-low"], row["gain-high"]) == (pytest.approx(0.075 - half), pytest.approx(0.075 + half))
    (row,) = pooled([fold(10, 0.1, 0.2), fold(1, None, None)])
    assert row["gain-low"] is None and row["verdict"] == "cannot tell"


def test_class_weights_find_more_of_the_rare(wards, tmp_path):
    found = {}
    for weights in ("none", "balanced", "client"):
        path = tmp_path / weights
        keys = {"label": "ill", "num_server_rounds": 5, "model": "linear", "class_weights": weights, **QUIET}
        done = coterie.run("fedavg", "own", wards, run_dir=path, **keys)
        found[weights] = done.model("north").predict(Path(wards.split(",")[1]))[:, 1].mean()
    assert found["balanced"] > found["none"] + 0.05 and found["client"] > found["none"] + 0.05
    schema = json.loads((tmp_path / "balanced" / "schema.json").read_text())
    assert (
        sum(schema["class_counts"]) == schema["facts"]["rows"] and schema["class_counts"][0] > schema["class_counts"][1]
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"class_weights": "balanced"},
            "class-weights = 'balanced': goes by the labels that the clients of tables tell",
        ),
        (
            {"class_weights": "client", "settings": {"privacy.mode": "dp-sgd"}},
            "leave it out with privacy.mode='dp-sgd'",
        ),
        ({"patience": 2, "validation_fraction": 0.0}, "patience = 2: needs validation samples"),
        ({"folds": 1}, "folds = 1, fold = 0: take 2 folds or more"),
        ({"folds": 3, "fold": 4}, "folds = 3, fold = 4"),
        ({"dropout": 0.2}, "dropout = 0.2: is for the model 'mlp', and this run has 'lenet5'"),
    ],
)
def test_what_does_not_go_together_is_refused(keys, message):
    with pytest.raises(coterie.CoterieError, match=message):
        coterie.run("fedavg", "digits", num_server_rounds=1, **keys, **QUIET)
