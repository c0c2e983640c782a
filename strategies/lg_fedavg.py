"""LG-FedAvg (Liang et al. 2020, arXiv:2001.01523): the classifier is averaged, every client keeps its own extractor.

The opposite of FedPer: what clients share is how to decide, and each finds its own way to see. A model that is a classifier
alone has nothing to keep, and is that of FedAvg.
"""

from coterie.strategies.fedavg import FedAvg
from coterie.tasks.models import STATISTICS


class LGFedAvg(FedAvg):
    name = "lg-fedavg"
    personal = ("extractor", "norm", *STATISTICS)
    kinds = ("personal",)  # without an extractor there is no global model
