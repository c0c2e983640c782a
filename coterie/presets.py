"""Experiments of the papers: `coterie.compare(preset=NAME)`, and with `quick` a short form of it.

Three kinds: methods are compared, estimators of the Shapley value, or pFedOCF's mechanisms. What the user gives goes before
what the preset says.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.tasks.datasets import DataError, load_dataset
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preset:
    title: str
    source: str
    values: Mapping[str, Value]
    quick: Mapping[str, Value]  # goes over `values`, with one seed
    seeds: tuple[int, ...] = (1,)

    def chosen(self, quick: bool) -> tuple[dict[str, Value], tuple[int, ...]]:
        """Values and seeds of the long or the short form."""
        return ({**self.values, **self.quick}, (1,)) if quick else (dict(self.values), self.seeds)


@dataclass(frozen=True, kw_only=True)
class Methods(Preset):
    """A set of cells, one table each, and in every cell the same methods with the same seeds."""

    strategies: str
    cells: Mapping[str, Mapping[str, Value]]  # name -> what is different there
    quick_cells: tuple[str, ...] = ()  # the cells of the short form; () for all
    metric: str = "accuracy"  # the column that the paper's numbers stand beside
    paper: Mapping[tuple[str, str, str], float] = field(default_factory=dict)  # (task, cell, strategy) -> percent
    communication: bool = False  # also print what travels, for this model and for large ones
    costs: bool = False  # also what each run cost
    without_data: Mapping[str, Value] = field(
        default_factory=dict
    )  # goes over `values` where their task's data are missing

    def chosen_cells(self, quick: bool, given: Mapping[str, Value], cell: str = "") -> dict[str, Mapping[str, Value]]:
        """The one that is named; else those that are left when `given` goes before what they say: those that say the same; else
        none twice."""
        if cell:
            if not any(self.cells):
                raise ConfigError(f"cell = {cell!r}: is for presets, whose tables are cells; add --preset NAME")
            return {choose("cell", cell, list(self.cells)): self.cells[cell]}
        touched = {name: [key for key in own if key in given] for name, own in self.cells.items()}
        same = [name for name, keys in touched.items() if keys and all(self.cells[name][k] == given[k] for k in keys)]
        if not same and all(touched.values()):  # none of them is left: one without a name
            return {"": next(iter(self.cells.values()))}
        chosen: dict[str, Mapping[str, Value]] = {}
        for name in same or (quick and self.quick_cells) or self.cells:
            if {**self.cells[name], **given} not in [{**own, **given} for own in chosen.values()]:
                chosen[name] = self.cells[name]
        return chosen

    def with_data(
        self, values: dict[str, Value], cells: dict[str, Mapping[str, Value]], given: Sequence[str], data_root: str
    ) -> tuple[dict[str, Value], dict[str, Mapping[str, Value]]]:
        """Values and cells without tasks whose data are not here, unless the user named the task."""
        if not self.without_data or given:
            return values, cells
        if missing(str(values["task"]), data_root):
            values = {**values, **self.without_data}
        here = {
            name: own for name, own in cells.items() if "task" not in own or not missing(str(own["task"]), data_root)
        }
        return values, here or cells


def missing(task: str, data_root: str) -> bool:
    try:
        load_dataset(task, data_root)
    except DataError as error:
        log.warning("%s", error)
        return True
    return False


class Estimators(Preset):
    """Estimators of the Shapley value (coterie/estimators.py)."""


class Mechanisms(Preset):
    """pFedOCF's mechanisms (coterie/mechanisms.py)."""


FIRST = Methods(  # `coterie compare` alone: what Coterie is for
    title="",
    source="",
    values={"task": "kinds"},
    quick={},
    strategies="local,fedavg,pfedsv",
    cells={"": {}},
    seeds=(1, 2),
)
PLAIN = Methods(title="", source="", values={}, quick={}, strategies="local,fedavg,fedper,auto", cells={"": {}})

PFEDSV = "Wu et al. 2022, arXiv:2202.02502"
PFEDSV_VALUES: dict[str, Value] = {
    "model": "lenet5",
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
PFEDSV_TASKS: dict[str, dict[str, Value]] = {
    "mnist": {"task": "mnist", "learning-rate": 0.01},
    "fashion-mnist": {"task": "fashion-mnist", "learning-rate": 0.01},
    "cifar10": {"task": "cifar10", "learning-rate": 0.1},
}
PFEDSV_RIVALS = "local,fedavg,fedavg-ft,fedprox,fedfomo,fedper,pfedsv"

SCENARIOS: dict[
    str, dict[str, Value]
] = {  # ShapleyFL, appendix B.3; 30 % of the clients are bad, in a long tail nobody
    "long-tail": {"long-tail": 100.0},
    "open-set": {"attack.kind": "open-set", "attack.strength": 0.5},
    "closed-set": {"attack.kind": "closed-set"},
    "data-noise": {"attack.kind": "data-noise"},
    "gradient-poison": {"attack.kind": "gradient-poison"},
}


def _shapleyfl(task: str, quick: Mapping[str, Value]) -> Methods:
    return Methods(
        title=f"ShapleyFL on {task}: 100 clients with two label shards each, 30 % of them bad",
        source="Sun et al. 2023: AFedSV+ is the best under all five scenarios",
        strategies="fedavg,fedprox,fedsv,s-fedavg,rfa,afedsv,afedsv-plus",
        seeds=(1, 2, 3),
        values={
            "task": task,
            "model": "cnn-bn",
            "num-clients": 100,
            "partition": "shards",
            "fraction-train": 0.1,
            "num-server-rounds": 150,
            "local-epochs": 5,
            "learning-rate": 0.01,
            "evaluate-every": 10,
            "server-data": "2000",
            "test-data": "published",
            "attack.fraction": 0.3,
            "fedprox.mu": 0.1,
        },
        cells=SCENARIOS,
        quick=quick,
    )


QUICK_IMAGES: dict[str, Value] = {
    "num-clients": 20,
    "fraction-train": 0.5,
    "num-server-rounds": 10,
    "local-epochs": 1,
    "learning-rate": 0.05,
    "evaluate-every": 10,
    "test-data": "own",  # few samples to train with
    "test-fraction": 0.9,
    "server-data": "300",
    "model": "mlp",
    "shapleyfl.budget": 150,
}

HETEROGENEITY: dict[str, dict[str, Value]] = {  # how clients differ
    "dir01": {"partition": "dirichlet", "dirichlet-alpha": 0.1},
    "feat": {"shift": "rotate-invert", "shift-groups": 4},
    "conc": {"shift": "permute-labels", "shift-groups": 3},
    "flip": {"attack.kind": "closed-set", "attack.fraction": 0.3},
    "cifar": {"task": "cifar10", "partition": "dirichlet", "dirichlet-alpha": 0.1},
    "two": {"partition": "pathological"},
    "iid": {},
    "sizes": {"client-samples": "6-48"},
    "lone": {"shift": "lone"},
    "sign": {"attack.kind": "sign-flip", "attack.fraction": 0.3},
    "hundred": {"num-clients": 100, "fraction-train": 0.1, "partition": "dirichlet", "dirichlet-alpha": 0.1},
    "swap": {"shift": "swap-labels", "shift-groups": 2},
    "tilt": {"shift": "tilt", "shift-groups": 2},
}

SPO_SOURCE = "Cui et al. 2022, arXiv:2108.07926"


def _ocf(clients: int, groups: int, quick: Mapping[str, Value]) -> Mechanisms:
    return Mechanisms(
        title=f"pFedOCF: {clients} linear clients, every mechanism",
        source="pFedOCF, Table 1",
        seeds=(1, 2, 3),
        values={
            "task": "linear",
            "num-clients": clients,
            "input-shape": "5",
            "linear-groups": groups,
            "linear-deviation": 0.1,
            "linear-samples": "60-200",
            "test-fraction": 0.8,  # 12 to 40 samples for training, the others for a sharp test
            "validation-fraction": 0.0,
            "num-server-rounds": 1,
        },
        quick=quick,
    )


PRESETS: dict[str, Preset] = {
    "pfedsv-table1": Methods(
        title="pFedSV, two labels per client: 10 clients, all taking part",
        source=PFEDSV,
        strategies=PFEDSV_RIVALS,
        seeds=(1, 2, 3),
        values={**PFEDSV_VALUES, "partition": "pathological", "labels-per-client": 2},
        cells=PFEDSV_TASKS,
        quick=PFEDSV_QUICK,
        quick_cells=("mnist",),
    ),
    "pfedsv-table2": Methods(
        title="pFedSV, Dirichlet partitions with alpha = 0.1: 10 clients, all taking part",
        source=PFEDSV,
        strategies=PFEDSV_RIVALS,
        seeds=(1, 2, 3),
        values={**PFEDSV_VALUES, "partition": "dirichlet", "dirichlet-alpha": 0.1},
        cells=PFEDSV_TASKS,
        quick=PFEDSV_QUICK,
        quick_cells=("mnist",),
    ),
    "pfedsv-communication": Methods(
        title="pFedSV, what travels: measured with LeNet-5, counted for ResNet-34 and VGG-19",
        source=PFEDSV,
        strategies="fedavg,fedfomo,pfedsv",
        values={**PFEDSV_VALUES, "task": "mnist", "learning-rate": 0.01, "partition": "pathological"},
        cells={"whole-models": {}, "shared-extractor": {"pfedsv.shared-extractor": True}},
        quick=PFEDSV_QUICK,
        communication=True,
    ),
    "pfedsv-privacy": Methods(
        title="pFedSV with DP-SGD: noise multiplier 0 (off), 1 and 2",
        source=PFEDSV,
        strategies="local,fedavg,pfedsv",
        seeds=(1, 2, 3),
        values={**PFEDSV_VALUES, "task": "mnist", "learning-rate": 0.1, "partition": "pathological"},
        cells={
            "sigma-0": {},
            "sigma-1": {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 1.0},
            "sigma-2": {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 2.0},
        },
        quick=PFEDSV_QUICK,
    ),
    "heterogeneity": Methods(
        title="Kinds of heterogeneity: 20 clients with 48 samples to train and 12 to validate with",
        source="over local: paired by client and seed, honest clients only; 3 below: share of clients 3 points below it",
        strategies="local,fedavg,fedavg-ft,fedper,pfedsim,pfedsv,coterie",
        seeds=(1, 2, 3),
        values={
            "task": "fashion-mnist",
            "model": "lenet5",
            "num-clients": 20,
            "partition": "iid",
            "client-samples": "60",
            "validation-fraction": 0.2,
            "test-fraction": 0.1,
            "num-server-rounds": 30,
            "local-epochs": 3,
            "batch-size": 10,
            "evaluate-every": 30,
            "fedavg-ft.epochs": 10,
        },
        cells=HETEROGENEITY,
        quick={
            "task": "digits",
            "num-clients": 12,
            "test-fraction": 0.5,
            "num-server-rounds": 10,
            "evaluate-every": 10,
        },
        quick_cells=("feat", "conc", "iid"),
        costs=True,
        without_data={"task": "digits", "test-fraction": 0.3},
    ),
    "ocf-10": _ocf(10, 2, {}),
    "ocf-100": _ocf(100, 5, {"num-clients": 40, "linear-groups": 2}),
    "shapleyfl-cifar10": _shapleyfl("cifar10", QUICK_IMAGES),
    "shapleyfl-fashion-mnist": _shapleyfl("fashion-mnist", QUICK_IMAGES),
    "shapleyfl-heart": Methods(
        title="ShapleyFL among four hospitals, all taking part",
        source="Sun et al. 2023, whose hospitals are those of Fed-ISIC2019: random gradients do no harm to AFedSV",
        strategies="fedavg,fedprox,fedsv,s-fedavg,rfa,afedsv,afedsv-plus",
        seeds=(1, 2, 3, 4, 5),
        values={
            "task": "heart",
            "num-server-rounds": 50,
            "local-epochs": 2,
            "learning-rate": 0.02,
            "evaluate-every": 5,
            "server-data": "0.2",
            "shapleyfl.metric": "balanced-accuracy",
            "fedprox.mu": 0.1,
        },
        cells={
            "all-honest": {},
            "one-random": {"attack.kind": "random-gradient", "attack.clients": "cleveland", "attack.strength": 200.0},
            "two-random": {
                "attack.kind": "random-gradient",
                "attack.clients": "cleveland,switzerland",
                "attack.strength": 200.0,
            },
        },
        quick={"num-server-rounds": 20},
        metric="balanced-accuracy",
    ),
    "shapleyfl-table3": Estimators(
        title="ShapleyFL, Table 3: the error of estimators at equal numbers of evaluations",
        source="Sun et al. 2023",
        values={
            "task": "fashion-mnist",
            "model": "lenet5",
            "num-clients": 10,
            "partition": "shards",
            "num-server-rounds": 3,
            "local-epochs": 1,
            "server-data": "2000",
        },
        quick={"task": "digits", "server-data": "0.3", "learning-rate": 0.2, "local-epochs": 3},
    ),
    "pfedsim-table3": Methods(
        title="pFedSim, Table 3: 100 clients, Dirichlet partitions",
        source="Tan et al. 2023, arXiv:2305.15706",
        strategies="local,fedavg,fedprox,fedbn,fedper,fedrep,fedfomo,pfedsim",
        seeds=(1, 2, 3),
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
    "spo-synthetic": Methods(
        title="SPO, section 5.1: linear regression, six clients in two groups",
        source=SPO_SOURCE,
        strategies="local,fedavg,fedavg-ft,per-fedavg,pfedme,pfedhn,fedfomo,spo,ce",
        seeds=(1, 2, 3),
        values={
            "task": "linear",
            "num-clients": 6,
            "linear-groups": 2,
            "input-shape": "20",
            "num-server-rounds": 60,
            "learning-rate": 0.02,
            "evaluate-every": 60,
            "spo.local-steps": 1,
            "spo.step": 0.25,
            "spo.samples": 2000,
            "spo.fine-tune-epochs": 0,
            "spo.rays": 32,
        },
        cells={  # 100 or 2000 training samples; with 100 it pays to train with one's group, with 2000 it does not
            "few-samples": {
                "linear-deviation": 0.05,
                "linear-samples": "1200",
                "test-fraction": 0.5,
                "validation-fraction": 0.8333,
            },
            "many-samples": {
                "linear-deviation": 0.1,
                "linear-samples": "3000",
                "test-fraction": 0.1667,
                "validation-fraction": 0.2,
            },
        },
        quick={"num-server-rounds": 30, "evaluate-every": 30},
        metric="loss",
    ),
    "spo-adult": Methods(
        title="SPO on UCI Adult: people with a doctorate, and all others",
        source=SPO_SOURCE,
        strategies="local,fedavg,fedprox,fedavg-ft,per-fedavg,pfedme,pfedhn,afl,q-ffl,spo,ce",
        seeds=(1, 2, 3),
        values={
            "task": "adult",
            "model": "linear",
            "num-server-rounds": 100,
            "local-epochs": 1,
            "learning-rate": 0.05,
            "evaluate-every": 100,
            "validation-fraction": 0.25,
            "fedprox.mu": 0.1,
            "spo.local-steps": 20,
            "spo.step": 0.1,
        },
        cells={"adult": {}},
        quick={"num-server-rounds": 20, "evaluate-every": 20},
    ),
    "spo-cifar10": Methods(
        title="SPO on CIFAR-10: ten clients with two labels each",
        source=SPO_SOURCE,
        strategies="local,fedavg,fedper,fedrep,per-fedavg,lg-fedavg,pfedme,pfedhn,fedfomo,spo,ce",
        seeds=(1, 2, 3),
        values={
            "task": "cifar10",
            "model": "lenet5",
            "num-clients": 10,
            "partition": "pathological",
            "labels-per-client": 2,
            "num-server-rounds": 100,
            "local-epochs": 1,
            "learning-rate": 0.05,
            "evaluate-every": 100,
            "validation-fraction": 0.2,
            "spo.local-steps": 20,
            "spo.samples": 32,
            "spo.hidden": 50,
        },
        cells={"cifar10": {}},
        quick={
            "model": "cnn-bn",
            "num-clients": 4,
            "num-server-rounds": 6,
            "evaluate-every": 6,
            "test-fraction": 0.9,
            "spo.rays": 4,
            "spo.local-steps": 10,
            "spo.hidden": 16,
            "spo.server-steps": 10,
            "spo.search-steps": 5,
        },
    ),
    "ce-heart": Methods(
        title="Collaboration equilibrium among four hospitals",
        source=SPO_SOURCE + ", whose hospitals are others",
        strategies="local,fedavg,fedprox,per-fedavg,pfedme,pfedhn,afl,spo,ce",
        seeds=(1, 2, 3, 4, 5),
        values={
            "task": "heart",
            "model": "linear",
            "num-server-rounds": 60,
            "local-epochs": 2,
            "learning-rate": 0.02,
            "evaluate-every": 60,
            "test-fraction": 0.3,
            "validation-fraction": 0.3,
            "fedprox.mu": 0.1,
            "spo.step": 0.1,
            "spo.rays": 32,
        },
        cells={"heart": {}},
        quick={"num-server-rounds": 20, "evaluate-every": 20},
    ),
}
