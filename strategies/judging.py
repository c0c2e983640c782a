"""After the last round: every client judges its own model, and what it gained over training alone. Only figures travel.

wanted(...)    whether clients train alone, too: as `baseline` says, or where that is cheap
judge(...)     ask all clients that were tested; checked figures by client, and why some gave none
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message

from coterie.strategies.method import Method
from coterie.strategies.rounds import Round, in_words
from coterie.tasks.metrics import FEW, FUNCTIONS, verdict
from coterie.wire.checks import count_of, metrics_of, records_of
from coterie.wire.errors import Refused
from coterie.wire.messages import JudgeOrder, Sent

log = logging.getLogger(__name__)

CHEAP = 2e10  # training samples x epochs x rounds x weights of the model, of all clients together
SHARE_OF_TIMEOUT = 0.25  # that a client trains alone before it tells how far it is


@dataclass(frozen=True)
class Judged:
    """What the clients said: `figures` by client in the form of result.json, and why others said nothing."""

    metric: str
    baseline: str
    figures: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def wanted(method: Method, privacy_mode: str) -> str:
    """`local` or `none`."""
    config = method.config
    if config.baseline != "auto":
        return config.baseline
    samples = sum(hello.num_train for hello in method.federation.hellos.values())
    weights = sum(part.size for part in method.layout.parts.values())
    work = samples * config.local_epochs * rounds_alone(method) * weights
    return "local" if work <= CHEAP and privacy_mode == "off" and config.strategy != "local" else "none"


def rounds_alone(method: Method) -> int:
    """As many as a client trains on average in the run."""
    return max(1, round(method.config.num_server_rounds * method.config.fraction_train))


def judge(method: Method, tested: Mapping[str, Any], privacy_mode: str) -> Judged:
    config = method.config
    labels = method.layout.classifier_shape[0]
    regression = labels == 1
    metric = config.metric if config.metric != "auto" else "loss" if regression else "accuracy"
    baseline = wanted(method, privacy_mode)
    alone = rounds_alone(method) if baseline == "local" else 0
    round = Round(method, method.last_round, config.round_timeout)
    order = JudgeOrder(round.number, metric, alone, SHARE_OF_TIMEOUT * round.timeout)

    def check(client: str, reply: Message) -> dict[str, Any]:
        return check_figures(reply, labels)

    figures: dict[str, dict[str, Any]] = {}
    failed: dict[str, Refused] = {}
    left = [name for name in method.federation.connected if name in tested]
    for _ in range(alone + 1):  # whoever goes on trains at least one round each time
        if not left:
            break
        answers, silent = round.ask(left, lambda clients: [Sent(order)] * len(clients), check)
        failed |= silent
        figures |= {name: told for name, told in answers.items() if told}
        left = [name for name, told in answers.items() if not told]
    failed |= {name: Refused("it does not come to an end with training alone") for name in left}
    for name, why in failed.items():
        log.warning("client %s does not judge its model: %s", name, why)
    return Judged(metric, baseline, {name: figures[name] for name in tested if name in figures}, in_words(failed))


def check_figures(reply: Message, labels: int) -> dict[str, Any]:
    """A client's figures in the form of result.json; empty if it is still training alone."""
    scalars, vectors = metrics_of(records_of(reply))
    samples = count_of(scalars, "num-samples")
    if "rounds-alone" in scalars:
        return {}
    told: dict[str, Any] = {"samples": samples, "metrics": {}}
    for name, numbers in vectors.items():
        if name in FUNCTIONS:
            if len(numbers) not in (1, 3):
                raise Refused(f"{name}: expected a value, or a value and two ends, got {len(numbers)} numbers")
            told["metrics"][name] = dict(zip(("value", "low", "high"), numbers.tolist(), strict=False))
    if (counts := vectors.get("label-counts")) is not None:
        if counts.shape != (labels,) or (counts < 0).any():
            raise Refused(f"label-counts: expected {labels} numbers that are not negative, got {counts.size}")
        told["label-counts"] = [int(count) for count in counts]
        told["few"] = [k for k, count in enumerate(counts) if 0 < count < FEW]
    if (confusion := vectors.get("confusion")) is not None:
        if confusion.shape != (labels**2,) or (confusion < 0).any():
            raise Refused(f"confusion: expected {labels**2} numbers that are not negative, got {confusion.size}")
        told["confusion"] = confusion.astype(int).reshape(labels, labels).tolist()
    if (gain := vectors.get("gain")) is not None and "local" in scalars and "own" in scalars:
        if len(gain) not in (1, 3):
            raise Refused(f"gain: expected a value, or a value and two ends, got {len(gain)} numbers")
        low, high = (float(gain[1]), float(gain[2])) if len(gain) == 3 else (None, None)
        told |= {"local": float(scalars["local"]), "own": float(scalars["own"]), "gain": float(gain[0])}
        told |= {"gain-low": low, "gain-high": high, "verdict": verdict(low, high)}
    return told
