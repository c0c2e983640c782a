"""Each preset against the paper's settings, which are written down here once more, from the papers and not from the presets."""

import re

import numpy as np
import pytest

import coterie
from coterie import papers
from coterie.cli.main import main
from coterie.presets import PRESETS, Methods
from coterie.tasks.partitions import partition
from coterie.tasks.samples import Dataset
from coterie.wire.config import RunConfig

# preset, cell, strategy -> what the paper says
SAID = {
    # pFedSV, section 6.1: McMahan's CNN; 10 clients all taking part, 20 rounds; 5 epochs; 0.01 for MNIST and FMNIST, 0.1 for
    # CIFAR-10; k = 5; two labels, 20 of CIFAR-100; five repetitions
    ("pfedsv-table1", "mnist", "pfedsv"): """task=mnist model=cnn num-clients=10 fraction-train=1.0 num-server-rounds=20
        local-epochs=5 learning-rate=0.01 partition=pathological labels-per-client=2 pfedsv.top-k=5""",
    ("pfedsv-table1", "fashion-mnist", "fedavg"): "task=fashion-mnist learning-rate=0.01 model=cnn num-clients=10",
    ("pfedsv-table1", "cifar10", "fedavg"): "task=cifar10 learning-rate=0.1 labels-per-client=2 num-server-rounds=20",
    ("pfedsv-table1", "cifar100", "fedavg"): "task=cifar100 labels-per-client=20 num-clients=10",
    ("pfedsv-table1", "cifar10-100", "pfedsv"): """task=cifar10 num-clients=100 fraction-train=0.1 num-server-rounds=100
        local-epochs=5 learning-rate=0.1""",
    ("pfedsv-table2", "mnist", "pfedsv"): """partition=dirichlet dirichlet-alpha=0.1 model=cnn num-clients=10
        num-server-rounds=20 local-epochs=5 learning-rate=0.01""",
    ("pfedsv-table2", "cifar100-100", "pfedsv"): "partition=dirichlet num-clients=100 fraction-train=0.1",
    # pFedSV, section 6.3: as Table 2 with sigma = 1; Table 4 two labels, sigma 0, 1, 2, delta 1e-5
    ("pfedsv-table3", "cifar10", "pfedsv"): """partition=dirichlet dirichlet-alpha=0.1 privacy.mode=dp-sgd
        privacy.noise-multiplier=1.0 num-clients=10 model=cnn""",
    ("pfedsv-table4", "cifar10-sigma-2", "pfedsv"): """task=cifar10 partition=pathological privacy.mode=dp-sgd
        privacy.noise-multiplier=2.0 privacy.delta=1e-05 num-clients=10 fraction-train=1.0 learning-rate=0.1""",
    ("pfedsv-table4", "cifar100-sigma-1", "fedavg"): "task=cifar100 labels-per-client=20 privacy.noise-multiplier=1.0",
    (
        "pfedsv-communication",
        "whole-models",
        "pfedsv",
    ): "model=lenet5 num-server-rounds=20 num-clients=10 partition=pathological",
    # pFedSim, section 5.1 and A.5: 100 clients, halves for training and test, SGD 0.01, 10 % of them, 200 rounds, 5 epochs, 32
    ("pfedsim-table3", "dirichlet-0.1", "pfedsim"): """task=cifar10 model=lenet5 num-clients=100 partition=dirichlet
        dirichlet-alpha=0.1 test-fraction=0.5 validation-fraction=0.0 learning-rate=0.01 fraction-train=0.1
        num-server-rounds=200 local-epochs=5 batch-size=32 pfedsim.warmup=0.5 pfedsim.self-weight=1.0
        pfedsim.hand-over=global""",
    ("pfedsim-table3", "dirichlet-0.5", "fedprox"): "dirichlet-alpha=0.5 fedprox.mu=1.0 local-epochs=5",
    ("pfedsim-table3", "dirichlet-0.1", "feddyn"): "feddyn.alpha=0.01 local-epochs=5 validation-fraction=0.0",
    ("pfedsim-table3", "dirichlet-0.1", "per-fedavg"): "per-fedavg.alpha=0.01 learning-rate=0.001",
    ("pfedsim-table3", "dirichlet-0.1", "fedrep"): "local-epochs=1",
    ("pfedsim-table3", "dirichlet-0.1", "fedfomo"): "fedfomo.models=5 validation-fraction=0.2 test-fraction=0.5",
    ("pfedsim-table3", "cinic10-0.5", "pfedsim"): "task=cinic10 model=lenet5 dirichlet-alpha=0.5",
    ("pfedsim-table3", "emnist-0.1", "pfedsim"): "task=emnist-byclass model=lenet5 dirichlet-alpha=0.1",
    ("pfedsim-table3", "tiny-imagenet-0.1", "pfedsim"): "task=tiny-imagenet model=mobilenet-v2 dirichlet-alpha=0.1",
    (
        "pfedsim-table6",
        "dirichlet-0.5-rho-0.9",
        "pfedsim",
    ): "dirichlet-alpha=0.5 pfedsim.warmup=0.9 num-server-rounds=200",
    (
        "pfedsim-table7",
        "cifar10",
        "pfedsim",
    ): "dirichlet-alpha=0.1 num-server-rounds=20 fraction-train=0.1 local-epochs=5",
    # ShapleyFL, 6.2, B.2 to B.4: 100 clients, 200 shards, 10 %, 150 rounds, 2000 of the tests for validation, beta 0.3
    (
        "shapleyfl-cifar10",
        "open-set",
        "afedsv-plus",
    ): """task=cifar10 num-clients=100 partition=shards fraction-train=0.1
        num-server-rounds=150 server-data=2000 test-data=published shapleyfl.beta=0.3 attack.kind=open-set
        attack.strength=0.5""",
    ("shapleyfl-fashion-mnist", "closed-set", "rfa"): "task=fashion-mnist attack.kind=closed-set num-server-rounds=150",
    (
        "shapleyfl-table2",
        "beta-0.7",
        "afedsv-plus",
    ): "task=cifar10 attack.kind=open-set shapleyfl.beta=0.7 num-clients=100",
    # SPO, 5.1 and 5.2: Adult, logistic regression, 17 % of the training data choose; CIFAR-10, ten clients, two classes each
    ("spo-adult", "adult", "spo"): "task=adult model=linear validation-fraction=0.17",
    (
        "spo-cifar10",
        "cifar10",
        "spo",
    ): "task=cifar10 num-clients=10 partition=pathological labels-per-client=2 validation-fraction=0.17",
}
SEEDS = {
    "pfedsv-table1": 5,
    "pfedsv-table2": 5,
    "pfedsv-table3": 5,
    "pfedsv-table4": 5,
    "shapleyfl-cifar10": 5,
    "pfedsim-table3": 5,
}


@pytest.mark.parametrize("place", SAID, ids="/".join)
def test_a_preset_has_the_papers_settings(place):
    name, cell, strategy = place
    preset = PRESETS[name]
    assert isinstance(preset, Methods) and strategy in preset.strategies.split(",")
    values = {**preset.values, **preset.cells[cell], **preset.of_methods.get(strategy, {})}
    usual = {key.replace("_", "-"): field.default for key, field in RunConfig.model_fields.items()}
    for said in SAID[place].split():
        key, _, value = said.partition("=")
        found = values.get(key, usual.get(key))
        assert str(found) == value, (place, key)
    assert len(preset.seeds) == SEEDS.get(name, len(preset.seeds))


def test_all_numbers_of_the_papers_have_a_place():
    """The cells and methods that numbers stand beside exist, and none is printed beside another task's."""
    with_numbers = [name for name, preset in PRESETS.items() if isinstance(preset, Methods) and preset.paper]
    assert with_numbers == [
        *("pfedsv-table1", "pfedsv-table2", "pfedsv-table3", "pfedsv-table4", "pfedsim-table3", "pfedsim-table6"),
        *("shapleyfl-cifar10", "shapleyfl-table2", "spo-adult", "spo-cifar10"),
    ]
    for name in with_numbers:
        preset = PRESETS[name]
        for task, cell, strategy in preset.paper:
            assert {**preset.values, **preset.cells[cell]}["task"] == task, (name, cell)
            assert strategy in preset.strategies.split(","), (name, strategy)


def test_some_numbers_read_once_more():
    """Corners of each table, so that a shifted row or column shows."""
    figures = {name: preset.paper for name, preset in PRESETS.items() if isinstance(preset, Methods)}
    for place, expected in {
        ("pfedsv-table1", "mnist", "mnist", "local"): (96.11, 0.28),
        ("pfedsv-table1", "cifar100", "cifar100-100", "pfedsv"): (72.61, 4.73),
        ("pfedsv-table1", "cifar10", "cifar10", "ifca"): (71.69, 3.25),
        ("pfedsv-table1", "cifar10", "cifar10-100", "pfedhn"): (76.62, 3.05),
        ("pfedsv-table2", "mnist", "mnist", "fedprox"): (47.49, 4.18),
        ("pfedsv-table2", "cifar100", "cifar100-100", "pfedsv"): (42.25, 3.13),
        ("pfedsv-table3", "cifar10", "cifar10", "pfedsv"): (57.94, 2.53),
        ("pfedsv-table4", "cifar10", "cifar10-sigma-1", "pfedsv"): (82.16, 1.55),
        ("pfedsim-table3", "cifar10", "dirichlet-0.1", "pfedsim"): (86.76, 0.84),
        ("pfedsim-table3", "cifar10", "dirichlet-0.5", "feddyn"): (44.27, 1.25),
        ("pfedsim-table3", "emnist-byclass", "emnist-0.5", "pfedsim"): (90.18, 0.11),
        ("pfedsim-table3", "tiny-imagenet", "tiny-imagenet-0.1", "fedrep"): (57.28, 0.63),
        ("pfedsim-table6", "cifar10", "dirichlet-0.5-rho-0.7", "pfedsim"): (68.09, 0.62),
        ("spo-cifar10", "cifar10", "cifar10", "spo"): (92.47, 4.80),
    }.items():
        assert figures[place[0]][place[1:]] == expected, place
    assert ("mnist", "mnist", "fedavg") not in figures["pfedsv-table1"]  # cannot be read
    assert all(sum(row) == 100 for row in papers.OCF_TABLE1.values())


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    small = {"num_clients": 3, "num_server_rounds": 1, "local_epochs": 1, "workers": 0, "progress": False}
    given = {"model": "linear", "validation_fraction": 0.2, "test_fraction": 0.9, "data_root": tmp_path}
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.integers(0, 255, (400, 28, 28)), "x_test": rng.integers(0, 255, (50, 28, 28))}
    labels = {"y_train": np.arange(400) % 10, "y_test": np.arange(50) % 10}
    np.savez(tmp_path / "mnist.npz", **{name: value.astype(np.uint8) for name, value in (arrays | labels).items()})
    found = coterie.compare(
        ["local", "fedavg"], [1], preset="pfedsv-table1", cell="mnist", run_dir=tmp_path / "c", **small, **given
    )
    (table,) = found.tables
    place = list(table.head).index("paper")
    assert [row[place] for row in table.rows] == ["96.11 ± 0.28", "-"]
    assert found.rows[0]["paper"] == {"mean": pytest.approx(0.9611), "std": pytest.approx(0.0028)}
    head, local = (tmp_path / "c" / "comparison.csv").read_text().splitlines()[:2]
    assert float(local.split(",")[head.split(",").index("paper")]) == pytest.approx(0.9611)
    assert re.search(r"local & .* & 96\.11 \$\\pm\$ 0\.28 & ", (tmp_path / "c" / "comparison.tex").read_text())


@pytest.mark.parametrize(("alpha", "paper"), [pytest.param(0.1, 487, marks=pytest.mark.slow), (0.5, 170)])
def test_balanced_dirichlet_comes_near_to_the_papers_sizes(alpha, paper):
    """pFedSim, Table 4: the standard deviation of 100 clients' sizes on CIFAR-10."""
    y = np.repeat(np.arange(10), 6000)
    dataset = Dataset(np.zeros((60000, 1), np.uint8), y, 10, np.zeros(1), np.ones(1))
    spread = {}
    for balanced in (False, True):
        parts = partition(dataset, 100, kind="dirichlet", seed=2, dirichlet_alpha=alpha, dirichlet_balanced=balanced)
        assert sorted(np.concatenate(parts)) == list(range(60000))
        spread[balanced] = np.std([len(part) for part in parts])
    assert abs(spread[True] - paper) < 0.1 * paper < abs(spread[False] - paper)


def test_balanced_shares_by_the_command(capsys):
    """A truth value among the options of the same name."""
    with pytest.raises(SystemExit) as end:
        main(
            [
                "data",
                "--task",
                "digits",
                "--partition",
                "dirichlet",
                "--num-clients",
                "4",
                "--dirichlet-balanced",
                "true",
            ]
        )
    assert end.value.code == 0
    sizes = [int(size) for size in re.findall(r"│ [0-3]\s+│\s+(\d+) │", capsys.readouterr().out)]
    assert sum(sizes) == 1797 and len(sizes) == 4
