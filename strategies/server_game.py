"""The game on the server: what is each update of a round worth on the server's own validation data?

    U(S) = metric of  x - eta mean_{i in S} V_i,   V_i = x - theta_i

A player is a client that answered well in this round. Values sum to U(all) - U(nobody), which are always evaluated and
are not counted in the budget: people are paid by values, and methods look at their signs. All coalitions that an
estimator will ask for are found out first, with a dry run, and evaluated together (tasks/coalition_models.py).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from coterie.client.data import has_table
from coterie.games.estimators import least_budget
from coterie.games.shapley import Estimate, estimate
from coterie.strategies.method import MethodSettings, setting
from coterie.tasks.coalition_models import CoalitionModels
from coterie.tasks.explained import explained
from coterie.tasks.preparing import dataset_of
from coterie.tasks.resolve import network_of, server_device, spec_of
from coterie.tasks.samples import Dataset
from coterie.tasks.schema import Schema
from coterie.tasks.server_data import held_out, is_amount, load_server_data
from coterie.tasks.sources import looked_at, pool_of
from coterie.tasks.training import Samples, chosen_samples
from coterie.wire.arrays import Parts
from coterie.wire.config import RunConfig
from coterie.wire.cores import usable_cores
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.randomness import derive_seed

log = logging.getLogger(__name__)


class GameSettings(MethodSettings):
    estimator: Literal["auto", "exact", "mc", "tmc", "dmc", "cc"] = setting(
        "auto", "How Shapley values are found; auto: exact within the budget, else cc, else mc."
    )
    budget: int = setting(
        1024, "Most coalition models to evaluate in a round, beside those of nobody and of all.", ge=1
    )
    metric: Literal["auto", "accuracy", "balanced-accuracy", "loss"] = setting(
        "auto",
        "What a coalition's model is worth; auto: the run's metric, else accuracy, for regression the negative loss.",
    )


class ServerGame:
    def __init__(self, config: RunConfig, settings: GameSettings, *, group_norm: bool = False) -> None:
        self.settings = settings
        spec = spec_of(config)
        if spec.kind == "regression" and settings.metric not in ("auto", "loss"):
            raise ConfigError(
                f"shapleyfl.metric = {settings.metric!r}: {config.task!r} has no labels; use 'auto' or 'loss'"
            )
        usual = "loss" if spec.kind == "regression" else "accuracy"
        metric = next((one for one in (settings.metric, config.metric) if one != "auto"), usual)
        device = server_device(config.device)
        network = network_of(config, group_norm=group_norm, device=device)
        samples = replace(server_samples(config, device), metric=metric, threshold=config.threshold)
        self.models = CoalitionModels(network, samples, metric, threads=usable_cores())
        missing = set() if samples.regression else set(range(spec.num_outputs)) - set(samples.y.tolist())
        self.all_classes = not (samples.regression or missing)
        if missing:
            log.warning("server-data has no sample of label %s: suspects are found by their worth alone", min(missing))

    def play(self, base: Parts, thetas: Sequence[Parts], rng_seed: int, step: float = 1.0) -> Estimate | None:
        """The Shapley values of the models `thetas` that started from `base`; None for fewer than two. An estimator that is
        too dear for so many gives way to mc."""
        players = len(thetas)
        if players < 2:
            return None
        if not self.affords("mc", players):  # more clients joined than were there when the budget was checked
            log.warning("shapleyfl.budget = %d: %d clients are not judged in this round", self.settings.budget, players)
            return None
        models = [base, *[base | theta for theta in thetas]]
        budget = self.settings.budget
        method = self.settings.estimator if self.affords(self.settings.estimator, players) else "mc"
        ends = [frozenset[int](), frozenset(range(players))]
        values: dict[frozenset[int], float] = {}

        def evaluate(coalitions: Sequence[frozenset[int]]) -> None:
            mixtures = np.array([mixture(coalition, players, step) for coalition in coalitions])
            values.update(zip(coalitions, self.models.utilities(models, mixtures).tolist(), strict=True))

        def utility(coalition: frozenset[int]) -> float:
            if coalition not in values:
                evaluate([coalition])
            return values[coalition]

        def run(of: Callable[[frozenset[int]], float]) -> Estimate:
            rng = np.random.default_rng(rng_seed)
            known = {coalition: of(coalition) for coalition in ends}
            return estimate(of, players, method=method, budget=budget, rng=rng, known=known)

        if method != "tmc":  # what the others ask for does not depend on the answers
            asked: dict[frozenset[int], None] = {}
            run(lambda coalition: asked.setdefault(coalition) or 0.0)
            evaluate(list(asked))
        found = run(utility)
        return replace(found, evaluations=found.evaluations + len(ends))

    def affords(self, method: str, players: int) -> bool:
        return players < 2 or needed(method, players) <= self.settings.budget

    def check_budget(self, usual: int, most: int) -> None:
        """Refuse a budget with which the estimator cannot judge `usual` clients, or none can judge `most`."""
        for method, players in ((self.settings.estimator, usual), ("mc", most)):
            if not self.affords(method, players):
                raise RunFailed(
                    f"shapleyfl.budget = {self.settings.budget}, shapleyfl.estimator = {self.settings.estimator!r}: "
                    f"a round with {players} clients takes {method} at least {needed(method, players)}; raise it"
                )

    def explained(self, base: Parts, thetas: Sequence[Parts]) -> np.ndarray | None:
        """How much of each update right labels explain (tasks/explained.py); None if the server lacks samples to tell."""
        network, samples = self.models.network, self.models.samples
        if not self.all_classes:
            return None
        return np.array([explained(network, samples, base, base | theta) for theta in thetas])


def needed(method: str, players: int) -> int:
    """The least budget: U(nobody) and U(all) are not counted in it."""
    return least_budget(method, players) - 2


def mixture(coalition: frozenset[int], players: int, step: float) -> list[float]:
    """What of each model is in the coalition's: first that of the model they all started from, then theirs."""
    if not coalition:
        return [1.0] + [0.0] * players
    return [1.0 - step] + [step / len(coalition) if player in coalition else 0.0 for player in range(players)]


def server_samples(config: RunConfig, device: str) -> Samples:
    """The server's validation samples, on the device."""
    if has_table(config):
        return chosen_samples(_server_table(config), slice(None), device)
    spec = spec_of(config)
    dataset = load_server_data(
        spec,
        config.server_data,
        config.data_root,
        data=config.data,
        classes=config.classes,
        input_shape=config.input_shape,
        seed=derive_seed(config.seed, "server-data"),
    )
    return chosen_samples(dataset, slice(None), device)


def _server_table(config: RunConfig) -> Dataset:
    """The server's validation rows: its share of a simulation's tables, or a file of its own, prepared as the clients' are."""
    if is_amount(config.server_data):
        if not config.data:
            raise ConfigError(
                f"server-data = {config.server_data!r}: the clients have tables of their own; name a file of the server's"
            )
        pool = pool_of(config)
        taken = held_out(pool.outline(), config.server_data, derive_seed(config.seed, "server-data"))
        tables = [looked.table.take(rows) for looked, rows in pool.rows(taken)]
    else:
        tables = [looked_at(config.server_data, config, alone=False).table]
    schema = Schema.from_json(config.table_schema)
    parts = [dataset_of(schema, table) for table in tables]
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    return replace(parts[0], x=x, y=y, source=config.server_data)
