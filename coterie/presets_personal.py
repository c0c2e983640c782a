"""Experiments of pFedSV and pFedSim. What the papers do not say was chosen here: batch size of pFedSV, mu of FedProx there, the
learning rate for CIFAR-100."""

from coterie.papers import (
    PFEDSIM_CELLS,
    PFEDSIM_TABLE3,
    PFEDSV_CELLS,
    PFEDSV_TABLE1,
    PFEDSV_TABLE2,
    PFEDSV_TABLE3,
    PFEDSV_TABLE4,
    PFEDSV_TABLE4_CELLS,
    RHOS,
    by_cell,
    pfedsim_table6,
)
from coterie.preset import Methods, Preset
from coterie.wire.config import Value

FIVE = (1, 2, 3, 4, 5)
PFEDSV = "Wu et al. 2022, arXiv:2202.02502"
PFEDSV_VALUES: dict[str, Value] = {
    "model": "cnn",
    "num-clients": 10,
    "num-server-rounds": 20,
    "fraction-train": 1.0,
    "local-epochs": 5,
    "batch-size": 32,
    "evaluate-every": 5,
    "fedprox.mu": 0.1,
    "fedfomo.models": 5,
    "pfedsv.top-k": 5,
}
PFEDSV_QUICK: dict[str, Value] = {
    **{"num-server-rounds": 3, "local-epochs": 1, "evaluate-every": 3},
    **{"batch-size": 10, "test-fraction": 0.9},  # few samples to train with, and as many steps as they allow
}
HUNDRED: dict[str, Value] = {"num-clients": 100, "fraction-train": 0.1, "num-server-rounds": 100, "evaluate-every": 20}
PATHOLOGICAL: dict[str, Value] = {"partition": "pathological", "labels-per-client": 2}
DIRICHLET: dict[str, Value] = {"partition": "dirichlet", "dirichlet-alpha": 0.1}
PRIVATE: dict[str, Value] = {"privacy.mode": "dp-sgd", "privacy.delta": 1e-5}


def _pfedsv_cells(more: dict[str, Value]) -> dict[str, dict[str, Value]]:
    """Ten clients, all taking part, and (`-100`) a hundred, ten of them in a round; `more` is for CIFAR-100."""
    cells: dict[str, dict[str, Value]] = {}
    for task, cell in PFEDSV_CELLS:
        rate = 0.1 if task.startswith("cifar") else 0.01
        scale = HUNDRED if cell.endswith("-100") else {}
        cells[cell] = {"task": task, "learning-rate": rate, **scale, **(more if task == "cifar100" else {})}
    return cells


PFEDSV_RIVALS = "local,fedavg,fedprox,ifca,fedavg-ft,pfedme,fedfomo,fedamp,pfedhn,pfedsv"

PFEDSIM = "Tan et al. 2023, arXiv:2305.15706"
PFEDSIM_VALUES: dict[str, Value] = {
    "task": "cifar10",
    "model": "lenet5",
    "num-clients": 100,
    "partition": "dirichlet",
    "dirichlet-balanced": True,  # comes nearest to the sizes of clients in the paper's Table 4
    "test-fraction": 0.5,
    "validation-fraction": 0.0,
    "num-server-rounds": 200,
    "fraction-train": 0.1,
    "local-epochs": 5,
    "batch-size": 32,
    "learning-rate": 0.01,
    "evaluate-every": 20,
    "fedprox.mu": 1.0,
    "feddyn.alpha": 0.01,
    "fedfomo.models": 5,
    "pfedsim.warmup": 0.5,
    "pfedsim.hand-over": "global",
    "pfedsim.self-weight": 1.0,
}
PFEDSIM_METHODS: dict[str, dict[str, Value]] = {
    "fedfomo": {"validation-fraction": 0.2},
    "fedrep": {"local-epochs": 1, "fedrep.head-epochs": 4},  # of the extractor, and of the classifier: five in all
    "per-fedavg": {"per-fedavg.alpha": 0.01, "learning-rate": 0.001},
}
PFEDSIM_QUICK: dict[str, Value] = {"num-server-rounds": 20, "local-epochs": 2, "evaluate-every": 10}


def _pfedsim_cells() -> dict[str, dict[str, Value]]:
    cells: dict[str, dict[str, Value]] = {}
    for task, cell in PFEDSIM_CELLS:
        where: dict[str, Value] = {} if task == "cifar10" else {"task": task}
        model: dict[str, Value] = {"model": "mobilenet-v2"} if task == "tiny-imagenet" else {}
        cells[cell] = {"dirichlet-alpha": float(cell.rpartition("-")[2]), **where, **model}
    return cells


PERSONAL: dict[str, Preset] = {
    "pfedsv-table1": Methods(
        title="pFedSV, Table 1: two labels per client, ten clients, or ten of a hundred in a round",
        source=f"{PFEDSV}, Table 1",
        strategies=PFEDSV_RIVALS,
        seeds=FIVE,
        values={**PFEDSV_VALUES, **PATHOLOGICAL},
        cells=_pfedsv_cells({"labels-per-client": 20}),
        quick=PFEDSV_QUICK,
        quick_cells=("mnist",),
        paper=by_cell(PFEDSV_TABLE1, PFEDSV_CELLS),
    ),
    "pfedsv-table2": Methods(
        title="pFedSV, Table 2: Dirichlet partitions with alpha = 0.1, ten clients, or ten of a hundred in a round",
        source=f"{PFEDSV}, Table 2",
        strategies=PFEDSV_RIVALS,
        seeds=FIVE,
        values={**PFEDSV_VALUES, **DIRICHLET},
        cells=_pfedsv_cells({}),
        quick=PFEDSV_QUICK,
        quick_cells=("mnist",),
        paper=by_cell(PFEDSV_TABLE2, PFEDSV_CELLS),
    ),
    "pfedsv-table3": Methods(
        title="pFedSV, Table 3: with DP-SGD, Dirichlet partitions with alpha = 0.1",
        source=f"{PFEDSV}, Table 3, pFedSV+DP",
        strategies="pfedsv",
        seeds=FIVE,
        values={**PFEDSV_VALUES, **DIRICHLET, **PRIVATE, "privacy.noise-multiplier": 1.0},
        cells=_pfedsv_cells({}),
        quick=PFEDSV_QUICK,
        quick_cells=("mnist",),
        paper=by_cell(PFEDSV_TABLE3, PFEDSV_CELLS),
    ),
    "pfedsv-table4": Methods(
        title="pFedSV, Table 4: DP-SGD with noise multiplier 0 (off), 1 and 2, two labels per client",
        source=f"{PFEDSV}, Table 4",
        strategies="fedavg,pfedsv",
        seeds=FIVE,
        values={**PFEDSV_VALUES, **PATHOLOGICAL, "learning-rate": 0.1},
        cells={
            cell: {
                "task": task,
                **({"labels-per-client": 20} if task == "cifar100" else {}),
                **({} if cell.endswith("0") else {**PRIVATE, "privacy.noise-multiplier": float(cell[-1])}),
            }
            for task, cell in PFEDSV_TABLE4_CELLS
        },
        quick=PFEDSV_QUICK,
        quick_cells=("cifar10-sigma-0", "cifar10-sigma-1"),
        paper=by_cell(PFEDSV_TABLE4, PFEDSV_TABLE4_CELLS),
    ),
    "pfedsv-communication": Methods(
        title="pFedSV, what travels: measured with LeNet-5, counted for ResNet-34 and VGG-19",
        source=PFEDSV,
        strategies="fedavg,fedamp,fedfomo,pfedsv",
        values={
            **PFEDSV_VALUES,
            "model": "lenet5",
            "task": "mnist",
            "learning-rate": 0.01,
            "partition": "pathological",
        },
        cells={"whole-models": {}, "shared-extractor": {"pfedsv.shared-extractor": True}},
        quick=PFEDSV_QUICK,
        communication=True,
    ),
    "pfedsv-privacy": Methods(
        title="pFedSV with DP-SGD: noise multiplier 0 (off), 1 and 2",
        source=PFEDSV,
        strategies="local,fedavg,pfedsv",
        seeds=(1, 2, 3),
        values={**PFEDSV_VALUES, "model": "lenet5", "task": "mnist", "learning-rate": 0.1, "partition": "pathological"},
        cells={
            "sigma-0": {},
            "sigma-1": {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 1.0},
            "sigma-2": {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 2.0},
        },
        quick=PFEDSV_QUICK,
    ),
    "pfedsim-table3": Methods(
        title="pFedSim, Table 3: 100 clients, Dirichlet partitions",
        source=f"{PFEDSIM}, Table 3",
        strategies="local,fedavg,fedprox,feddyn,fedbn,per-fedavg,fedper,fedrep,fedfomo,pfedsim",
        seeds=FIVE,
        values=PFEDSIM_VALUES,
        cells=_pfedsim_cells(),
        of_methods=PFEDSIM_METHODS,
        quick=PFEDSIM_QUICK,
        quick_cells=("dirichlet-0.1", "dirichlet-0.5"),
        metric="accuracy-weighted",
        paper=by_cell(PFEDSIM_TABLE3, PFEDSIM_CELLS),
    ),
    "pfedsim-table6": Methods(
        title="pFedSim, Table 6: the share of rounds that are FedAvg",
        source=f"{PFEDSIM}, Table 6",
        strategies="pfedsim",
        seeds=FIVE,
        values=PFEDSIM_VALUES,
        cells={
            f"dirichlet-{alpha}-rho-{rho}": {"dirichlet-alpha": alpha, "pfedsim.warmup": rho}
            for alpha in (0.1, 0.5)
            for rho in RHOS
        },
        quick=PFEDSIM_QUICK,
        quick_cells=("dirichlet-0.1-rho-0.0", "dirichlet-0.1-rho-0.5", "dirichlet-0.1-rho-1.0"),
        metric="accuracy-weighted",
        paper=pfedsim_table6(),
    ),
    "pfedsim-table7": Methods(
        title="pFedSim, Table 7: what training costs, 20 rounds",
        source=f"{PFEDSIM}, Table 7, has 1e-4 s per sample on a GPU: FedAvg 8.68, FedFomo 11.28, pFedSim 8.69",
        strategies="fedavg,fedfomo,pfedsim",
        seeds=FIVE,
        values={**PFEDSIM_VALUES, "num-server-rounds": 20, "dirichlet-alpha": 0.1},
        cells={"cifar10": {}},
        of_methods=PFEDSIM_METHODS,
        quick={**PFEDSIM_QUICK, "num-server-rounds": 4, "evaluate-every": 4},
        metric="accuracy-weighted",
        costs=True,
    ),
}
