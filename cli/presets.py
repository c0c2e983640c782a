"""Experiments of the papers as one command: `coterie compare --preset NAME`, and with --quick a short form of it.

A preset is a set of cells, one table each, and in every cell the same methods with the same seeds. What the user gives on the
command line goes before what the preset says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.config import Value


@dataclass(frozen=True)
class Preset:
    title: str
    source: str
    strategies: str
    seeds: str
    values: Mapping[str, Value]
    cells: Mapping[str, Mapping[str, Value]]  # name -> what is different there
    quick: Mapping[str, Value]  # goes over `values`, with one seed
    metric: str = "accuracy"  # the column that the paper's numbers stand beside
    paper: Mapping[tuple[str, str, str], float] = field(default_factory=dict)  # (task, cell, strategy) -> percent


PRESETS = {
    "pfedsim-table3": Preset(
        title="pFedSim, Table 3: 100 clients, Dirichlet partitions",
        source="Tan et al. 2023, arXiv:2305.15706",
        strategies="local,fedavg,fedprox,fedbn,fedper,fedrep,fedfomo,pfedsim",
        seeds="1,2,3",
        values={
            "task": "cifar10",
            "model": "lenet5",
            "num-clients": 100,
            "partition": "dirichlet",
            "test-fraction": 0.5,
            "num-server-rounds": 200,
            "fraction-train": 0.1,
            "local-epochs": 5,
            "batch-size": 32,
            "learning-rate": 0.01,
            "evaluate-every": 20,
            "fedprox.mu": 1.0,
            "fedfomo.models": 5,
            "pfedsim.warmup": 0.5,
        },
        cells={"dirichlet-0.1": {"dirichlet-alpha": 0.1}, "dirichlet-0.5": {"dirichlet-alpha": 0.5}},
        quick={"num-server-rounds": 20, "local-epochs": 2, "evaluate-every": 10},
        metric="accuracy-weighted",
        paper={
            ("cifar10", "dirichlet-0.1", "local"): 84.30,
            ("cifar10", "dirichlet-0.1", "fedavg"): 24.77,
            ("cifar10", "dirichlet-0.1", "pfedsim"): 86.76,
        },
    ),
}
