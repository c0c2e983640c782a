"""FedBN (Li et al. 2021, arXiv:2102.07623): FedAvg, but normalisation layers and their statistics stay with the client."""

from coterie.strategies.fedavg import FedAvg
from coterie.tasks.models import STATISTICS


class FedBN(FedAvg):
    name = "fedbn"
    personal = ("norm", *STATISTICS)
    kinds = ("personal",)  # the global weights need a client's own normalisation
