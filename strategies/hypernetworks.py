"""What SPO and pFedHN have in common: a hypernetwork on the server that makes the models (tasks/hypernetwork.py).

It takes a point d of the simplex over clients. The corner e_i stands for client i alone, so the columns of the hypernetwork's
first layer are vectors learned for the clients. It never leaves the server: a client sees models only.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.games.preferences import even
from coterie.strategies.method import Method, MethodSettings, setting
from coterie.tasks.hypernetwork import Diverged, Hypernetwork
from coterie.tasks.models import WEIGHTS
from coterie.tasks.resolve import network_of, server_device
from coterie.wire.arrays import Parts
from coterie.wire.errors import RunFailed
from coterie.wire.randomness import derive_seed

STEPS = "Steps that it takes with what the clients of a round say."


class HypernetworkSettings(MethodSettings):
    hidden: int = setting(100, "Width of the hypernetwork.", ge=1)
    layers: int = setting(2, "Its hidden layers.", ge=1, le=3)
    chunk: int = setting(16384, "Most numbers that one of its heads makes at once.", ge=1)
    server_steps: int = setting(20, STEPS, ge=1)
    rate: float = setting(0.01, "Length of these steps.", gt=0.0)


class HypernetworkMethod(Method):
    kinds = ("personal",)
    saved: ClassVar[tuple[str, ...]] = ("roster", "hypernetwork")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.roster: list[str] = []  # who stands behind the places of d
        self.hypernetwork = LateHypernetwork(self)

    def begin(self) -> None:
        torch.set_num_threads(self.config.threads)  # the same numbers, whoever else works in this process
        if not self.roster:
            self.roster = self.federation.clients

    def hyper(self) -> Hypernetwork:
        return self.hypernetwork.made()

    def uploads(self) -> tuple[str, ...]:
        return tuple(part for part in WEIGHTS if part in self.layout.parts)

    def trainers(self) -> list[str]:
        """Who joined late has no place in d."""
        return [name for name in super().trainers() if name in self.roster]

    def corner(self, client: str) -> np.ndarray:
        """The client alone; all alike for one that joined late."""
        number = len(self.roster)
        return even([self.roster.index(client)] if client in self.roster else range(number), number)

    def made_for(self, preferences: np.ndarray) -> Parts:
        """The model for this point."""
        return {part: rows[0] for part, rows in self.hyper().models(preferences[None]).items()}

    def follow(
        self,
        server_round: int,
        points: np.ndarray,
        gradients: Mapping[str, np.ndarray],
        *,
        step: float,
        weights: np.ndarray | None = None,
    ) -> float:
        """Move the models for these points by -step times the gradients; the share of the way that is left."""
        s = self.settings
        try:
            left = self.hyper().follow(points, gradients, step=step, rate=s.rate, steps=s.server_steps, weights=weights)
        except Diverged as error:
            raise RunFailed(f"round {server_round}: {error}; {self.remedy()}") from None
        self.model = self.model | self.made_for(even(range(len(self.roster)), len(self.roster)))
        return left

    def remedy(self) -> str:
        """What to do when the hypernetwork's numbers became infinite."""
        return (
            f"the hypernetwork diverged: lower learning-rate, or {self.section or self.name}.rate = {self.settings.rate:g}. "
            "The state of the last good round is in the checkpoint"
        )


class LateHypernetwork:
    """A method's hypernetwork, made when it is known who takes part."""

    def __init__(self, method: HypernetworkMethod) -> None:
        self.method = method
        self.network: Hypernetwork | None = None

    def made(self) -> Hypernetwork:
        if self.network is None:
            c, s, layout = self.method.config, self.method.settings, self.method.layout
            target = network_of(c, group_norm=layout.group_norm, device=server_device(c.device))
            self.network = Hypernetwork(
                target,
                len(self.method.roster),
                hidden=s.hidden,
                layers=s.layers,
                chunk=s.chunk,
                seed=derive_seed(c.seed, "hypernetwork"),
            )
        return self.network

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.made().state(), "steps": self.made().taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.made().load(state["numbers"], state["steps"])
