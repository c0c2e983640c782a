"""Experiments of the papers: `coterie.compare(preset=NAME)`, and with `quick` a short form of it.

They stand by paper in presets_personal.py, presets_robust.py and presets_equilibrium.py; the papers' numbers in papers.py.
"""

from coterie.preset import Estimators as Estimators
from coterie.preset import Mechanisms as Mechanisms
from coterie.preset import Methods as Methods
from coterie.preset import Preset as Preset
from coterie.presets_equilibrium import EQUILIBRIUM
from coterie.presets_personal import PERSONAL
from coterie.presets_robust import ROBUST
from coterie.presets_robust import SCENARIOS as SCENARIOS
from coterie.wire.config import Value

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

HETEROGENEOUS: dict[str, Preset] = {
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
}
PRESETS: dict[str, Preset] = {**PERSONAL, **HETEROGENEOUS, **ROBUST, **EQUILIBRIUM}
