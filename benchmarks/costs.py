"""What a round costs with each method: bytes and CPU seconds of a client, beside FedAvg's in the same series.

    python benchmarks/costs.py costs.json [fedavg local ...]

Twelve clients of task `kinds`, six rounds, the usual settings; a method is run once. Methods that need server data have a
fifth of the samples there. Bytes are exact. CPU seconds are those that clients report of their training; trying others'
models, tests and what a server computes are not among them.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import coterie
from coterie.strategies.registry import BUILT_IN, method_of

CLIENTS, ROUNDS, SEED = 12, 6, 1


def cost(strategy: str) -> dict[str, float]:
    """A client's bytes and CPU seconds in a round, on average."""
    more = {"server_data": "0.2"} if method_of(strategy).needs_server_data else {}
    with tempfile.TemporaryDirectory() as folder:
        run = coterie.run(
            strategy=strategy, task="kinds", num_server_rounds=ROUNDS, seed=SEED, baseline="none", workers=0, progress=False,
            run_dir=Path(folder) / "run", **more,
        )  # fmt: skip
        events = run.events
    asked = CLIENTS * ROUNDS
    told: dict[str, Any] = {
        way: sum(sum(event.get(f"bytes-{way}", {}).values()) for event in events) / asked for way in ("down", "up")
    }
    told["cpu"] = sum(one.get("cpu-seconds", 0.0) for event in events for one in event["train"].values()) / asked
    return told


def main(path: Path, names: list[str]) -> None:
    """Of these methods, or all; what the file has of others stays."""
    found: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    for name in names or sorted(BUILT_IN, key=lambda name: name != "fedavg"):
        found[name] = cost(name)
        path.write_text(json.dumps(found, indent=1) + "\n")
        usual = found.get("fedavg", found[name])
        ratios = {key: value / usual[key] if usual[key] else float("nan") for key, value in found[name].items()}
        print(f"{name:14}", *(f"{key} x {value:.2f}" for key, value in ratios.items()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
