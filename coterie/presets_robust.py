"""Experiments of ShapleyFL and pFedOCF. ShapleyFL's Figures 1 and 2 are curves; of their ends the text has one number."""

from collections.abc import Mapping

from coterie.papers import SHAPLEYFL_TABLE2
from coterie.preset import Estimators, Mechanisms, Methods, Preset
from coterie.wire.config import Value

FIVE = (1, 2, 3, 4, 5)
SCENARIOS: dict[
    str, dict[str, Value]
] = {  # ShapleyFL, appendix B.3; 30 % of the clients are bad, in a long tail nobody
    "long-tail": {"long-tail": 100.0},
    "open-set": {"attack.kind": "open-set", "attack.strength": 0.5},
    "closed-set": {"attack.kind": "closed-set"},
    "data-noise": {"attack.kind": "data-noise"},
    "gradient-poison": {"attack.kind": "gradient-poison"},
}


SHAPLEYFL_VALUES: dict[str, Value] = {
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
    "shapleyfl.beta": 0.3,
}


def _shapleyfl(task: str, figure: int) -> Methods:
    return Methods(
        title=f"ShapleyFL on {task}: 100 clients with two label shards each, 30 % of them bad",
        source=f"Sun et al. 2023, Figure {figure}: AFedSV+ is the best under all five scenarios",
        strategies="fedavg,fedprox,fedsv,s-fedavg,rfa,fltrust,afedsv,afedsv-plus",
        seeds=FIVE,
        values={"task": task, **SHAPLEYFL_VALUES},
        cells=SCENARIOS,
        quick=QUICK_IMAGES,
        paper={("cifar10", "open-set", "afedsv-plus"): "58.22"} if task == "cifar10" else {},
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


ROBUST: dict[str, Preset] = {
    "ocf-10": _ocf(10, 2, {}),
    "ocf-100": _ocf(100, 5, {"num-clients": 40, "linear-groups": 2}),
    "shapleyfl-cifar10": _shapleyfl("cifar10", 1),
    "shapleyfl-fashion-mnist": _shapleyfl("fashion-mnist", 2),
    "shapleyfl-table2": Methods(
        title="ShapleyFL, Table 2: how much of the old contribution stays, open-set noise on CIFAR-10",
        source="Sun et al. 2023, Table 2",
        strategies="afedsv-plus",
        seeds=FIVE,
        values={"task": "cifar10", **SHAPLEYFL_VALUES, **SCENARIOS["open-set"]},
        cells={f"beta-{beta}": {"shapleyfl.beta": beta} for beta in SHAPLEYFL_TABLE2},
        quick=QUICK_IMAGES,
        quick_cells=("beta-0.1", "beta-0.3", "beta-0.9"),
        paper={("cifar10", f"beta-{beta}", "afedsv-plus"): f"{value}" for beta, value in SHAPLEYFL_TABLE2.items()},
    ),
    "shapleyfl-heart": Methods(
        title="ShapleyFL among four hospitals, all taking part",
        source="Sun et al. 2023, whose hospitals are those of Fed-ISIC2019: random gradients do no harm to AFedSV",
        strategies="fedavg,fedprox,fedsv,s-fedavg,rfa,fltrust,afedsv,afedsv-plus",
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
}
