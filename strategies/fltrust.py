"""FLTrust (Cao et al. 2021, arXiv:2012.13995): the server trains, too, on its own few samples, and trusts who goes its way.

    TS_i = max(0, cos(g_i, g_0)),     g = sum_i TS_i |g_0| / |g_i|  g_i / sum_i TS_i,     theta <- theta + rate g

g_i is client i's update, g_0 the server's: as many epochs on its validation data (`server-data`) as a client's on its own. Nobody
moves the model further than the server did. If nobody is trusted, it stays.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.strategies.fedavg import FedAvg
from coterie.strategies.method import MethodSettings, setting
from coterie.strategies.robust import weights_vector
from coterie.strategies.rounds import Round, by_name
from coterie.strategies.server_game import server_samples
from coterie.tasks.models import WEIGHTS
from coterie.tasks.parts import average
from coterie.tasks.resolve import network_of, server_device
from coterie.tasks.training import Sgd, train
from coterie.wire.checks import Update
from coterie.wire.randomness import generator


class FLTrust(FedAvg):
    name = "fltrust"
    needs_server_data = True

    class Settings(MethodSettings):
        rate: float = setting(1.0, "The server's step along the clients' trusted mean.", gt=0.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device = server_device(self.config.device)
        self.samples = server_samples(self.config, device)
        self.network = network_of(self.config, group_norm=self.layout.group_norm, device=device)

    def aggregate(self, round: Round, updates: Mapping[str, Update]) -> None:
        base = weights_vector(self.model)
        root = self.root_update(round.number)
        models = [update.parts for update in updates.values()]
        ways = [weights_vector(self.model | model) - base for model in models]
        lengths = np.array([np.linalg.norm(way) for way in ways])
        length = float(np.linalg.norm(root))
        inner = np.array([way @ root for way in ways])
        trust = np.maximum(0.0, inner / np.maximum(lengths * length, np.finfo(float).tiny))
        round.tell(weights=by_name(updates, trust / trust.sum() if trust.any() else trust))
        if not trust.any():
            return
        self.model = self.model | average(models, trust)  # running statistics
        scaled = self.settings.rate * trust / trust.sum() * length / np.maximum(lengths, np.finfo(float).tiny)
        moved = base + sum(share * way for share, way in zip(scaled, ways, strict=True))
        for part in [part for part in WEIGHTS if part in self.layout.parts]:
            size = self.layout.parts[part].size
            self.model[part], moved = moved[:size].astype(np.float32), moved[size:]

    def root_update(self, number: int) -> np.ndarray:
        """g_0: the way of the server's own training from the global model."""
        c = self.config
        self.network.load(self.model)
        sgd, rng = Sgd(c.learning_rate, c.batch_size, c.momentum, c.weight_decay), generator(c.seed, "root", number)
        train(self.network, self.samples, sgd, epochs=c.local_epochs, rng=rng)
        return np.asarray(weights_vector(self.network.dump()) - weights_vector(self.model))
