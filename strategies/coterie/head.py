"""What a client makes of its group's model: its own prior, and half of its own head."""

from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import RecordDict
from torch import nn

from coterie.client.participant import Participant, received_parts
from coterie.client.store import OWN
from coterie.client.testing import personal_metrics
from coterie.games.prototypes import prior_shift
from coterie.tasks.models import Network
from coterie.tasks.training import Samples, evaluate, features, train
from coterie.wire.errors import Refused
from coterie.wire.messages import Order, reply


@dataclass(frozen=True)
class HeadOrder(Order):
    """Test the group's model, which came along, and the personal one: with the own prior in place of that of the group,
    whose labels have the numbers `counts`, then half-tuned for `epochs`. Without `counts` the prior stays."""

    kind = "evaluate.head"
    counts: tuple[float, ...]
    epochs: int


def test_head(me: Participant, order: HeadOrder, records: RecordDict) -> RecordDict:
    """The answer to a HeadOrder."""
    network = me.network()
    kept = me.store.find(OWN, order.round + 1)
    network.fill({**(kept.arrays if kept else {}), **received_parts(records, network)})
    samples, own = me.test_samples(), me.train_samples()
    told = {f"global.{name}": value for name, value in evaluate(network, samples).items()} if len(samples) else {}
    if order.counts and network.classifier.bias is not None:
        if len(order.counts) != me.spec.num_outputs:
            raise Refused(f"the server sent counts of {len(order.counts)} labels, the task has {me.spec.num_outputs}")
        mine = np.bincount(own.y.cpu().numpy(), minlength=me.spec.num_outputs)
        shift = torch.from_numpy(prior_shift(mine, np.array(order.counts)))
        network.classifier.bias.data += shift.to(network.classifier.bias)
    half_tune(me, network, own, order)
    return reply({**told, **personal_metrics(me, network)})


def half_tune(me: Participant, network: Network, samples: Samples, order: HeadOrder) -> None:
    """Half-way from the classifier to what it becomes when it alone is trained, on features that are made once."""
    if not order.epochs or not len(samples):
        return
    head = nn.Linear(
        network.classifier.in_features, network.classifier.out_features, network.classifier.bias is not None
    )
    tuned = Network(nn.Identity(), head.to(me.device))
    start = network.dump(["classifier"])
    tuned.load(start)
    cached = Samples(features(network, samples.x).clone(), samples.y)
    train(tuned, cached, me.sgd(), epochs=order.epochs, rng=me.rng("tune", order.round))
    network.load({"classifier": (start["classifier"] + tuned.dump()["classifier"]) / 2})
