"""What a client tells of its samples: features under the initial network, projected; with `privacy.mode` with noise.

What was told with noise once is told again, not made anew: a server that asks twice learns nothing more, and nothing more is
counted.
"""

import logging

import numpy as np
import torch
from flwr.app import Message

from coterie.client.accountant import ANY_ROUND, Accountant
from coterie.client.participant import Participant
from coterie.client.privacy import secret_generator
from coterie.client.store import Note
from coterie.games.prototypes import FEWEST, Prototypes, prototypes_of
from coterie.tasks.training import Samples, features
from coterie.wire.checks import metrics_of, records_of, vector_of
from coterie.wire.errors import Refused
from coterie.wire.randomness import generator

log = logging.getLogger(__name__)

ENOUGH_SAMPLES = 500  # for prototypes with noise to be of use
SENSITIVITY = 3.0**0.5
FIRST_SHARE = 0.1  # of privacy.target-epsilon that the prototypes may take
TOPIC = "prototypes"


def told_prototypes(me: Participant, samples: Samples, dimensions: int, server_round: int) -> Prototypes:
    """What this client tells of these samples."""
    labels, classes = samples.y.cpu().numpy(), me.spec.num_outputs
    if me.privacy.mode == "off":
        return prototypes_of(projected(me, samples, dimensions), labels, classes)
    told = me.store.recall(TOPIC, ANY_ROUND)
    if told is None or told.arrays["means"].shape != (classes, dimensions):
        made = noisy_prototypes(me, projected(me, samples, dimensions), labels, classes, server_round)
        arrays = {name: np.asarray(value, np.float64) for name, value in vars(made).items()}
        me.store.remember(TOPIC, told := Note(server_round, arrays))
    kept = told.arrays
    return Prototypes(kept["counts"], kept["means"], kept["squares"], float(kept["noise"]))


def projected(me: Participant, samples: Samples, dimensions: int) -> np.ndarray:
    """The features of samples under the initial network, (samples, dimensions), by a matrix that all clients have alike."""
    found = features(me.network(), samples.x).double().cpu().numpy() if len(samples) else np.zeros((0, 1))
    matrix = generator(me.config.seed, "prototypes").normal(size=(found.shape[1], dimensions))
    return np.asarray(found @ matrix / np.sqrt(found.shape[1]))


def noisy_prototypes(
    me: Participant, seen: np.ndarray, labels: np.ndarray, classes: int, server_round: int
) -> Prototypes:
    """The same with noise, from features of unit length; with DP-SGD it is counted as a step that sees all samples."""
    privacy = me.privacy
    noise = privacy.noise_multiplier
    if privacy.mode == "dp-sgd" and len(labels):
        same_noise_in = server_round if me.data().num_partitions else None
        accountant = Accountant.load(me.store, same_noise_in, "prototypes")
        if privacy.target_epsilon:
            noise = accountant.noise_for(FIRST_SHARE * privacy.target_epsilon, 1.0, 1, privacy.delta)
        accountant.after(noise, 1.0, 1).save(me.store, same_noise_in)
    if len(labels) < ENOUGH_SAMPLES:
        log.warning(
            "client %s: %d samples are few for prototypes with noise; from about %d on groups are found as without",
            *(me.name, len(labels), ENOUGH_SAMPLES),
        )
    unit = seen / np.maximum(np.linalg.norm(seen, axis=1, keepdims=True), 1e-12)
    member = np.eye(classes)[labels]  # (samples, classes)
    exact = np.concatenate([member.sum(axis=0), (member.T @ unit).ravel(), np.square(unit).sum(axis=0)])
    spread = noise * SENSITIVITY
    drawn = torch.randn(
        len(exact), generator=secret_generator(me, "prototypes", server_round, device="cpu"), dtype=torch.float64
    )
    counts, sums, squares = np.split(exact + spread * drawn.numpy(), [classes, classes + classes * unit.shape[1]])
    counts = np.where(counts >= FEWEST, counts, 0.0)
    means = sums.reshape(classes, -1) / np.maximum(counts, 1.0)[:, None] * (counts > 0)[:, None]
    within = squares - (counts[:, None] * np.square(means)).sum(axis=0)
    return Prototypes(counts, means, np.maximum(within, 0.0), spread**2)


def checked_prototypes(reply: Message, classes: int, dimensions: int, most: int) -> Prototypes:
    """What a client told that has `most` samples, or `Refused`."""
    _, vectors = metrics_of(records_of(reply))
    counts, squares = (
        vector_of(vectors, name, number) for name, number in (("counts", classes), ("squares", dimensions))
    )
    means = vector_of(vectors, "means", classes * dimensions).reshape(classes, dimensions)
    noise = float(vector_of(vectors, "noise", 1)[0])
    if (counts < 0).any() or (squares < 0).any() or noise < 0:
        raise Refused("prototypes: counts, squares and noise must not be negative")
    if not noise and counts.sum() > most:
        raise Refused(f"prototypes: {counts.sum():g} samples, but the client has {most}")
    return Prototypes(counts, means, squares, noise)
