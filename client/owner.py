"""What the owner of a client decides, whatever a run says: which files it opens, and with which runs it takes part.

Files. A run may name a network (`model`), weights to begin with (`pretrained`), data (`data`) and a directory of data sets
(`data-root`). A client opens only what its node configuration names: `models` (the .py files of networks, found by their names),
`pretrained`, `shared-data`, `data-root`. In
Flower's own simulation, on Ray, there is nobody else whose machine it could be: there what the run says counts.

Floors. `require-privacy`: only training with a guarantee (privacy.mode='dp-sgd'). `max-epsilon`: no training that would bring
epsilon, over all runs with this state directory, above that; delta is the run's, but never taken to be above 1e-5.
`allow-strategies`: only with these methods.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.wire.config import RunConfig
from coterie.wire.errors import Refused
from coterie.wire.privacy import PrivacySettings

LARGEST_DELTA = 1e-5  # at which epsilon is compared with `max-epsilon`, unless the run's is smaller
Node = Mapping[str, Any]


def with_own_places(config: RunConfig, node: Node) -> RunConfig:
    """The configuration with the places of this machine in place of the run's."""
    if _in_flowers_simulation():
        return config
    places = {
        "data_root": str(node.get("data-root", RunConfig.model_fields["data_root"].default)),
        "data": str(node.get("shared-data", "")),
        "model": _own_network(config.model, node) if config.model.endswith(".py") else config.model,
        "pretrained": _own_weights(config.pretrained, node) if config.pretrained else "",
    }
    return config.model_copy(update=places)


def _in_flowers_simulation() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _own_network(wanted: str, node: Node) -> str:
    named = [path for path in str(node.get("models", "")).split(os.pathsep) if path]
    for path in named:
        if Path(path).name == Path(wanted).name:
            return path
    raise Refused(
        f"model = {wanted!r}: the run wants a network from a file that the owner of this client did not name; start the client "
        f"with --model FILE, whose name is {Path(wanted).name}"
    )


def _own_weights(wanted: str, node: Node) -> str:
    if named := str(node.get("pretrained", "")):
        return named
    raise Refused(
        f"pretrained = {wanted!r}: the run begins with weights from a file that the owner of this client did not name; start the "
        "client with --pretrained FILE, a copy of the same file"
    )


def check_floors(config: RunConfig, privacy: PrivacySettings, node: Node, private: tuple[str, ...]) -> None:
    """Refuse a run that the owner does not allow; `private` are the modes of privacy that its method can do."""
    allowed = [name.strip() for name in str(node.get("allow-strategies", "")).split(",") if name.strip()]
    if allowed and config.strategy not in allowed:
        raise Refused(
            f"strategy = {config.strategy!r}: the owner of this client allows {', '.join(allowed)} (--allow-strategies)"
        )
    if requires_privacy(node) and (privacy.mode != "dp-sgd" or privacy.mode not in private):
        raise Refused(
            f"privacy.mode = {privacy.mode!r}, strategy = {config.strategy!r}: the owner of this client requires training with a "
            "guarantee (--require-privacy); set privacy.mode='dp-sgd', with a strategy that can do it"
        )


def requires_privacy(node: Node) -> bool:
    return bool(node.get("require-privacy")) or "max-epsilon" in node


def check_epsilon(node: Node, epsilon: float) -> None:
    """Refuse to train where epsilon would be this afterwards."""
    most = float(node.get("max-epsilon", float("inf")))
    if epsilon > most:
        raise Refused(
            f"epsilon would be {epsilon:.3g} after this round, and the owner of this client allows {most:g} (--max-epsilon)"
        )
