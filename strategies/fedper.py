"""FedPer (Arivazhagan et al. 2019, arXiv:1912.00818): the extractor is averaged, every client keeps its own classifier."""

from coterie.strategies.fedavg import FedAvg


class FedPer(FedAvg):
    name = "fedper"
    personal = ("classifier",)
    kinds = ("personal",)  # without a classifier there is no global model
