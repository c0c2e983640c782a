"""What the tasks look like, without their data.

A server never reads data, and still has to build a model of the right shape. All it needs is here: the shape of one
sample, the number of outputs, and the names of the natural clients of the data sets that have some.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class TaskSpec:
    """One task: what goes into a model and what comes out."""

    name: str
    title: str
    kind: Literal["classification", "regression"]
    input_shape: tuple[int, ...]  # (channels, height, width) or (features,)
    num_outputs: int  # classes; 1 for regression
    natural_clients: tuple[str, ...] = ()
    generated: bool = False  # made from the seed for any number of natural clients
    usual: Mapping[str, str | int | float] = field(default_factory=dict)  # settings where the user gives none


def _images(name: str, title: str, shape: tuple[int, ...], classes: int) -> TaskSpec:
    return TaskSpec(name, title, "classification", shape, classes)


KINDS = ("A", "B", "C")  # upright, turned by 90 degrees, by 180
OF_A_KIND = 4  # clients

_ALL = (
    TaskSpec(
        "kinds",
        "Digits of twelve clients, of three kinds: upright, turned by 90 degrees, by 180; shipped with scikit-learn",
        "classification",
        (1, 8, 8),
        10,
        natural_clients=tuple(f"{kind}{i + 1}" for kind in KINDS for i in range(OF_A_KIND)),
        usual={
            **{"test-fraction": 0.5, "validation-fraction": 0.3},
            **{"num-server-rounds": 12, "local-epochs": 5, "batch-size": 10},
        },
    ),
    _images("digits", "Handwritten digits, 8x8, shipped with scikit-learn", (1, 8, 8), 10),
    _images("mnist", "MNIST handwritten digits", (1, 28, 28), 10),
    _images("fashion-mnist", "Fashion-MNIST clothing", (1, 28, 28), 10),
    _images("emnist", "EMNIST balanced letters and digits", (1, 28, 28), 47),
    _images("emnist-byclass", "EMNIST letters and digits by class, as often as they were written", (1, 28, 28), 62),
    _images("cifar10", "CIFAR-10 photographs", (3, 32, 32), 10),
    _images("cifar100", "CIFAR-100 photographs", (3, 32, 32), 100),
    _images("cinic10", "CINIC-10 photographs", (3, 32, 32), 10),
    _images("tiny-imagenet", "Tiny-ImageNet photographs", (3, 64, 64), 200),
    TaskSpec(
        "adult",
        "UCI Adult: income above 50K",
        "classification",
        (108,),
        2,
        natural_clients=("doctorate", "no-doctorate"),
    ),
    TaskSpec(
        "heart",
        "UCI heart disease in four hospitals",
        "classification",
        (13,),
        2,
        natural_clients=("cleveland", "hungarian", "switzerland", "va"),
    ),
    TaskSpec(
        "synthetic-linear",
        "Linear regression, six clients in two groups",
        "regression",
        (20,),
        1,
        natural_clients=("a-1", "a-2", "a-3", "b-1", "b-2", "b-3"),
    ),
    TaskSpec("linear", "Linear regression, any number of clients in groups", "regression", (20,), 1, generated=True),
)
TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _ALL}


def same_kind(task: str, clients: int) -> np.ndarray:
    """1 for each pair of clients whose data are of one kind, as far as the task says, else 0: (clients, clients)."""
    kind = np.arange(clients) // OF_A_KIND if task == "kinds" else np.zeros(clients)
    return np.asarray(kind[:, None] == kind[None, :], dtype=float)


def usual_of(task: str) -> Mapping[str, str | int | float]:
    """Settings of a task that are usual for it, by their keys: what a user gives goes before."""
    return TASKS[task].usual if task in TASKS else {}
