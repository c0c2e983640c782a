"""Each client judges its own model, and what it gains over training alone; and `metric` is what models are chosen by."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score
from torch import nn

import coterie
from coterie.client.data import load_client_data
from coterie.strategies import judging
from coterie.strategies.judging import check_figures
from coterie.strategies.pfedocf.mixing import best_mixture, sample_losses
from coterie.strategies.pfedsv import game
from coterie.strategies.registry import parse_config
from coterie.tasks.coalition_models import CoalitionModels
from coterie.tasks.models import Network
from coterie.tasks.training import Samples, evaluate
from coterie.wire.errors import Refused

SMALL = {"num_server_rounds": 2, "num_clients": 3, "local_epochs": 1, "model": "mlp", "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> coterie.Run:
    return coterie.run("local", run_dir=tmp_path_factory.mktemp("alone") / "run", baseline="local", **SMALL)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> coterie.Run:
    return coterie.run("fedavg", run_dir=tmp_path_factory.mktemp("together") / "run", **SMALL)


def test_whoever_trains_alone_gains_nothing_over_it(alone):
    for told in alone.result["judged"].values():
        assert told["gain"] == 0.0 and told["local"] == told["own"] and told["verdict"] == "cannot tell"


def test_the_baseline_is_what_strategy_local_comes_to(alone, together):
    assert together.config["baseline"] == "auto" and together.result["baseline"] == "local"  # digits are cheap
    base, own = (run.result["models"]["personal"]["clients"] for run in (alone, together))
    for client, told in together.result["judged"].items():
        assert told["local"] == pytest.approx(base[client]["accuracy"])
        assert told["own"] == pytest.approx(own[client]["accuracy"])
        assert told["gain"] == pytest.approx(told["own"] - told["local"])
        excluded = told["gain-low"] > 0 or told["gain-high"] < 0
        assert (told["verdict"] != "cannot tell") == excluded
        row = next(row for row in together.clients if row["client"] == client)
        assert (row["local"], row["gain"], row["verdict"]) == (told["local"], told["gain"], told["verdict"])
    table = together.gain_table()
    assert table is not None and [row[0] for row in table.rows] == ["0", "1", "2"]
    assert "What did each gain?" in together.report().read_text()


def test_who_is_slow_trains_alone_in_portions_and_comes_to_the_same(together, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "SHARE_OF_TIMEOUT", 0.0)  # a round at a time
    again = coterie.run("fedavg", run_dir=tmp_path / "run", **SMALL)
    assert again.result == together.result


def test_without_a_baseline_results_are_the_same_but_for_it(together, tmp_path):
    plain = coterie.run("fedavg", run_dir=tmp_path / "run", baseline="none", **SMALL)
    assert plain.gain_table() is None and "gain" not in plain.clients[0]
    left = {"baseline", "judged"}
    assert {k: v for k, v in plain.result.items() if k not in left} == {
        k: v for k, v in together.result.items() if k not in left
    }
    for client, told in plain.result["judged"].items():
        assert told["metrics"] == together.result["judged"][client]["metrics"]


def write_hospitals(path, rows=60) -> str:
    """Three tables; `west` has ill patients only."""
    rng = np.random.default_rng(5)
    for name in ("north", "south", "west"):
        age, chol = rng.normal(60, 10, rows), rng.normal(200, 30, rows)
        ill = (age + rng.normal(0, 8, rows) > 58) | (name == "west")
        lines = [f"{a:.1f},{c:.1f},{'yes' if i else 'no'}" for a, c, i in zip(age, chol, ill, strict=True)]
        (path / f"{name}.csv").write_text("\n".join(["age,chol,ill", *lines]) + "\n")
    return ",".join(str(path / f"{name}.csv") for name in ("north", "south", "west"))


def test_a_run_on_tables_by_auroc(tmp_path, monkeypatch):
    """pFedSV's game is played on 1 - AUROC of the validation samples, the result has AUROC as scikit-learn finds it, and who has
    one label only is judged by what is defined."""
    judged_by: list[tuple[str, float, float]] = []
    original = game.validation_error

    def noted(network, samples):
        error = original(network, samples)
        with torch.inference_mode():
            out = network.eval()(samples.x)
        truth = samples.y.numpy()
        one_label = len(set(truth.tolist())) == 1
        loss = nn.functional.cross_entropy(out, samples.y).item()
        expected = loss if one_label else 1 - roc_auc_score(truth, (out[:, 1] - out[:, 0]).numpy())
        judged_by.append((samples.metric, error, expected))
        return error

    monkeypatch.setattr(game, "validation_error", noted)
    keys = {"num_server_rounds": 2, "validation_fraction": 0.3, "workers": 0, "progress": False}
    run = coterie.run(
        "pfedsv",
        task="own",
        data=write_hospitals(tmp_path),
        label="ill",
        metric="auroc",
        run_dir=tmp_path / "r",
        **keys,
    )
    assert judged_by and {name for name, *_ in judged_by} == {"auroc"}
    for _, error, expected in judged_by:
        assert error == pytest.approx(expected, abs=1e-6)

    assert run.result["metric"] == "auroc"
    config, _ = parse_config(run.config | {"table-schema": (run.path / "schema.json").read_text()})
    for i, name in enumerate(("north", "south")):
        model = run.model(name)
        mine = load_client_data({"partition-id": i, "num-partitions": 3}, config, name)
        test = mine.samples(mine.split.test, "cpu")
        with torch.inference_mode():
            p = model.network.eval()(test.x).softmax(dim=1)[:, 1].double().numpy()
        told = run.result["judged"][name]
        assert told["metrics"]["auroc"]["value"] == pytest.approx(roc_auc_score(test.y, p))
        assert told["metrics"]["auprc"]["value"] == pytest.approx(average_precision_score(test.y, p))
        assert told["metrics"]["auroc"]["low"] <= told["metrics"]["auroc"]["value"] <= told["metrics"]["auroc"]["high"]
        assert told["confusion"] == confusion_matrix(test.y, p > 0.5).tolist()
        assert told["samples"] == len(test) == sum(told["label-counts"])
        assert run.result["models"]["personal"]["clients"][name]["auroc"] == pytest.approx(roc_auc_score(test.y, p))
    west = run.result["judged"]["west"]
    assert "auroc" not in west["metrics"] and "gain" not in west and "accuracy" in west["metrics"]
    of_two = [run.result["models"]["personal"]["clients"][name]["auroc"] for name in ("north", "south")]
    assert run.result["models"]["personal"]["mean"]["auroc"] == pytest.approx(np.mean(of_two))


def two_models() -> tuple[Network, dict, dict]:
    """One input. `ranks` orders all samples rightly, with a bias that makes its loss large; `guesses` hardly looks at them."""
    network = Network(nn.Identity(), nn.Linear(1, 2))
    ranks = {"classifier": np.array([0, 1, 0, 6], np.float32)}  # weights of both outputs, then biases
    guesses = {"classifier": np.array([0.1, 0, 0, 0], np.float32)}
    return network, ranks, guesses


def test_auroc_and_loss_choose_differently():
    network, ranks, guesses = two_models()
    x, y = torch.linspace(-1, 1, 12)[:, None], torch.tensor([0] * 6 + [1] * 6)
    by_loss = best_mixture(network, [guesses, ranks], Samples(x, y))
    network.load(guesses)
    guessed = evaluate(network, Samples(x, y, "auroc"))
    assert guessed["auroc"] == pytest.approx(0.0) and guessed["loss"] < 1
    by_auroc = best_mixture(network, [guesses, ranks], Samples(x, y, "auroc"))
    assert by_loss[0] > 0.8 and by_auroc[1] > 0.8
    network.load(ranks)
    assert sample_losses(network, Samples(x, y, "auroc")).mean() == pytest.approx(0.0)
    assert (game.loss_of(network, Samples(x, y)) > 2) and game.loss_of(network, Samples(x, y, "auroc")) == 0.0


def test_the_servers_game_is_played_on_the_metric():
    network, ranks, guesses = two_models()
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.normal(size=(40, 1)), dtype=torch.float32), torch.tensor(rng.integers(0, 2, 40))
    mixtures = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    worth = CoalitionModels(network, Samples(x, y, "auroc"), "auroc").utilities([ranks, guesses], mixtures)
    slopes = [1.0, -0.1, 0.45]  # of what speaks for the second label
    assert worth == pytest.approx([roc_auc_score(y, slope * x[:, 0]) for slope in slopes])


def test_a_metric_that_the_task_does_not_have_is_refused(tmp_path):
    with pytest.raises(coterie.CoterieError, match="metric = 'r2': task 'digits' has labels; choose one of auto, acc"):
        coterie.run("fedavg", metric="r2", run_dir=tmp_path / "r", **SMALL)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "told",
    [
        {"auroc": [0.5, 0.4]},
        {"label-counts": [3.0, 4.0], "confusion": [1.0, 2.0, 3.0]},
        {"local": 0.5, "own": 0.5, "gain": [0.1, 0.2]},
        {"label-counts": [3.0, 4.0, 5.0]},
        {"num-samples": -1},
        {"auroc": [float("nan")]},
    ],
)
def test_figures_of_a_stranger_are_checked(told):
    reply = Message(
        RecordDict({"metrics": MetricRecord({"num-samples": 7, **told})}), dst_node_id=1, message_type="evaluate"
    )
    with pytest.raises(Refused):
        check_figures(reply, 2)


def test_compare_sorts_by_the_metric(tmp_path):
    compared = coterie.compare(
        ["fedavg", "local"],
        [1],
        run_dir=tmp_path / "c",
        metric="balanced-accuracy",
        **{**SMALL, "num_server_rounds": 1},
    )
    figures = [row["personal.balanced-accuracy"]["mean"] for row in compared.rows]
    assert figures == sorted(figures, reverse=True) and figures[0] > figures[1]
    assert "balanced-accuracy" in compared.tables[0].title
    assert json.loads((compared.runs[0].path / "result.json").read_text())["baseline"] == "none"
