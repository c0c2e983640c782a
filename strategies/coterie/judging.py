"""Every third round clients tell, for each label, how large the losses of their group's model are before they train it.

With `privacy.mode` nothing is told of losses, and nobody leaves a group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import RecordDict
from torch.nn import functional

from coterie.client.participant import Participant, received_parts
from coterie.client.store import OWN
from coterie.client.training import train_from
from coterie.games.outsiders import outsiders
from coterie.games.prototypes import FEWEST, Prototypes
from coterie.tasks.models import Network
from coterie.tasks.training import Samples, outputs
from coterie.wire.checks import vector_of
from coterie.wire.errors import Refused
from coterie.wire.messages import TrainOrder

EVERY = 3  # rounds
ROUNDS = 2  # in a row in which somebody must be an outsider
LARGEST = 10.0  # loss of a sample
LOSSES, SQUARES = "label-losses", "label-squares"


@dataclass(frozen=True)
class JudgedOrder(TrainOrder):
    """Train, and tell the losses of the model that came."""

    kind = "train.judged"


def train_judged(me: Participant, order: JudgedOrder, records: RecordDict) -> RecordDict:
    network = me.network()
    kept = me.store.find(OWN, order.round)
    network.fill({**(kept.arrays if kept else {}), **received_parts(records, network)})
    samples, attack = me.train_samples(), me.attack()
    if attack:
        samples = attack.on_telling(samples)
    told = label_losses(network, samples, me.spec.num_outputs) if me.privacy.mode == "off" else {}
    return train_from(me, order, network, more=told)


def label_losses(network: Network, samples: Samples, classes: int) -> dict[str, list[float]]:
    """Sums of losses and of their squares by label; 0 for labels with fewer than three samples, as in the prototypes."""
    if not len(samples):
        return {name: [0.0] * classes for name in (LOSSES, SQUARES)}
    each = functional.cross_entropy(outputs(network, samples.x), samples.y, reduction="none")
    found = torch.clamp(torch.nan_to_num(each, nan=LARGEST), max=LARGEST).double().cpu().numpy()
    labels = samples.y.cpu().numpy()
    enough = np.bincount(labels, minlength=classes) >= FEWEST
    return {
        name: (np.bincount(labels, values, classes) * enough).tolist()
        for name, values in ((LOSSES, found), (SQUARES, found**2))
    }


def check_losses(vectors: Mapping[str, np.ndarray], classes: int) -> None:
    if LOSSES in vectors and any((vector_of(vectors, name, classes) < 0).any() for name in (LOSSES, SQUARES)):
        raise Refused("label-losses: sums of losses and of their squares must not be negative")


def doubts(
    clients: Sequence[str], told: Mapping[str, Mapping[str, np.ndarray]], prototypes: Callable[[str], Prototypes]
) -> np.ndarray:
    """Who of these members of a group is an outsider. Numbers of samples are those that came with the prototypes."""
    if not clients:
        return np.zeros(0, bool)
    counts = np.stack([prototypes(client).counts for client in clients])
    losses, squares = (np.stack([told[client][name] for client in clients]) for name in (LOSSES, SQUARES))
    losses = np.minimum(losses, LARGEST * counts)
    return outsiders(losses, np.minimum(squares, LARGEST**2 * counts), counts)
