"""Networks and tasks from outside, as entry points."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import coterie
from coterie.tasks.datasets import load_dataset
from coterie.tasks.installed import task_names
from coterie.tasks.models import MODELS, build_network, model_names
from coterie.tasks.resolve import task_spec
from coterie.tasks.spec import TASKS, TaskSpec
from coterie.wire.errors import CoterieError

FEW = {"num_server_rounds": 1, "local_epochs": 1, "workers": 0, "progress": False}
SPEC = TaskSpec("towns", "Two towns", "classification", (3,), 2, natural_clients=("north", "south"))


def build(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.Tanh()), nn.Linear(5, num_outputs)


def towns(data_root):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(int), "owner": np.repeat(["north", "south"], 30)}


def test_a_network(install, tmp_path):
    install("coterie.models", tiny=build)
    assert model_names() == [*MODELS, "tiny"]
    run = coterie.run("fedper", model="tiny", num_clients=3, run_dir=tmp_path / "run", **FEW)
    assert run.config["model"] == "tiny" and run.model("1").predict(np.zeros((2, 1, 8, 8), np.float32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (ImportError("no torch-geometric"), r"the entry point 'outside:thing' of coterie.models cannot be loaded"),
        (lambda shape, outputs: None, r"build\(\) must return \(extractor, classifier\)"),
        (lambda shape, outputs: (nn.Flatten(), nn.Linear(64, 3)), "the classifier has 3 outputs, this task has 10"),
        (lambda shape, outputs: 1 / 0, "model = 'tiny': failed with ZeroDivisionError"),
    ],
)
def test_a_network_that_will_not_do(found, complaint, install):
    install("coterie.models", tiny=found)
    with pytest.raises(CoterieError, match=complaint):
        build_network("tiny", (1, 8, 8), 10, seed=1)


def test_nobody_takes_the_name_of_a_network_of_ours(install):
    install("coterie.models", linear=build)
    assert model_names() == list(MODELS) and "extractor" not in build_network("linear", (4,), 2, seed=1).parts


def test_a_task(install, tmp_path):
    install("coterie.data", towns=SimpleNamespace(spec=SPEC, load=towns))
    assert task_names() == [*TASKS, "towns"] and task_spec("towns") is SPEC
    run = coterie.run("fedavg", task="towns", run_dir=tmp_path / "run", **FEW)
    assert run.config["num-clients"] == 2 and run.config["model"] == "mlp"
    assert load_dataset("towns", tmp_path).owners == ("north", "south")
    with pytest.raises(CoterieError, match=r"task = 'town': unknown. Did you mean 'towns'"):
        coterie.run("fedavg", task="town", run_dir=tmp_path / "other", **FEW)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (SimpleNamespace(load=towns), "has no `spec`, a TaskSpec with the name 'towns'"),
        (SimpleNamespace(spec=TASKS["digits"], load=towns), "has no `spec`, a TaskSpec with the name 'towns'"),
        (SimpleNamespace(spec=SPEC, load=lambda root: 1 / 0), r"load\(\) failed with ZeroDivisionError"),
        (SimpleNamespace(spec=SPEC, load=lambda root: [1]), r"load\(\) must return a mapping with x and y"),
        (SimpleNamespace(spec=SPEC, load=lambda root: {"x": np.zeros((2, 4)), "y": [0, 1]}), "a sample has shape"),
    ],
)
def test_a_task_that_will_not_do(found, complaint, install, tmp_path):
    install("coterie.data", towns=found)
    with pytest.raises(CoterieError, match=complaint):
        coterie.run("fedavg", task="towns", run_dir=tmp_path / "run", data_root=str(tmp_path), **FEW)
    assert not (tmp_path / "run").exists()
