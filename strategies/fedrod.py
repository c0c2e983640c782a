"""FedRoD (Chen and Chao 2022, arXiv:2107.00778): a generic classifier for all, and beside it one for the client alone.

    extractor, generic G     trained with the balanced softmax, softmax(G z + log n_c), so that labels a client has few of
                             count as much as others; averaged as in FedAvg
    personal P               trained on the same batches with softmax((G + P) z), z and G held fixed; stays with its client

n_c is how often the client has label c. Both are linear, so the personal model is the extractor with the classifier G + P, here
those of the last global model. P begins at 0: a client that never trained uses the global model.
"""

from dataclasses import asdict, dataclass

import numpy as np
import torch
from flwr.app import RecordDict

from coterie.client.participant import Participant, received_parts
from coterie.client.store import Note
from coterie.client.testing import personal_metrics
from coterie.client.training import train
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import answers
from coterie.tasks.steps import TwoHeads
from coterie.tasks.training import Samples, evaluate
from coterie.wire.messages import EvaluateOrder, TrainOrder, reply

HEAD = "head"  # topic: P


@dataclass(frozen=True)
class TwoHeadsOrder(TrainOrder):
    """Train the model that was sent with the balanced softmax, and the own classifier beside it."""

    kind = "train.two_heads"


@dataclass(frozen=True)
class TestTwoHeads(EvaluateOrder):
    """Test the model that was sent, and the same with the own classifier added."""

    kind = "evaluate.two_heads"


class FedRoD(FedAvg):
    name = "fedrod"
    private = ("weights",)
    not_private = "trains two classifiers with each batch, for which no epsilon is counted here"

    def train_order(self, number: int) -> TwoHeadsOrder:
        return TwoHeadsOrder(**asdict(super().train_order(number)))

    def test_order(self, number: int) -> TestTwoHeads:
        return TestTwoHeads(number, self.kinds)

    @staticmethod
    @answers(TwoHeadsOrder)
    def train(me: Participant, order: TwoHeadsOrder, records: RecordDict) -> RecordDict:
        samples, sgd = me.train_samples(), me.sgd()
        head = head_of(me, order.round, me.network().parts["classifier"])
        step = TwoHeads(head, log_counts(samples, me.spec.num_outputs), sgd)
        answer = train(me, order, records, step)
        me.store.remember(HEAD, Note(order.round, {HEAD: step.head.detach().cpu().numpy()}))
        return answer

    @staticmethod
    @answers(TestTwoHeads)
    def test(me: Participant, order: TestTwoHeads, records: RecordDict) -> RecordDict:
        network, samples = me.network(), me.test_samples()
        network.fill({**me.store.own_parts(order.round + 1), **received_parts(records, network)})
        told = {f"global.{name}": value for name, value in evaluate(network, samples).items()} if len(samples) else {}
        classifier = network.parts["classifier"]
        classifier.add_(head_of(me, order.round + 1, classifier))
        return reply({**personal_metrics(me, network), **told})


def head_of(me: Participant, before_round: int, like: torch.Tensor) -> torch.Tensor:
    note = me.store.recall(HEAD, before_round)
    return torch.from_numpy(np.array(note.arrays[HEAD])).to(me.device) if note else torch.zeros_like(like)


def log_counts(samples: Samples, classes: int) -> torch.Tensor:
    """log n_c, (classes,); a label that the client has not is -inf: it cannot be meant. Of values: 0."""
    if samples.regression:
        return torch.zeros(classes, device=samples.y.device)
    return torch.bincount(samples.y, minlength=classes).float().log()
