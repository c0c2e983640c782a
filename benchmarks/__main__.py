"""All ratios of benchmarks/ratios.py in one table, and two tables beside each other.

    python -m benchmarks [--only training,messages] [--repeats 5] [--json FILE]
    python -m benchmarks compare BEFORE.json AFTER.json [--margin 0.15]

The two sides of a ratio are taken in turn, the ratio is the median over the repeats. `compare` ends with code 1 if a ratio is
worse by more than the margin, and says which.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FORMAT = 1
Results = Mapping[str, Mapping[str, Any]]


def measured(names: Sequence[str], repeats: int) -> dict[str, dict[str, Any]]:
    from benchmarks.ratios import MEASURES

    found: dict[str, dict[str, Any]] = {}
    for name in names:
        measure = MEASURES[name]
        measure.take()  # what is loaded or compiled at first is no one's cost
        pairs = [measure.take() for _ in range(repeats)]
        ratios = sorted(ours / other for ours, other in pairs)
        found[name] = {
            "what": measure.what,
            "beside": measure.beside,
            "unit": measure.unit,
            "ours": statistics.median(ours for ours, _ in pairs),
            "other": statistics.median(other for _, other in pairs),
            "ratio": statistics.median(ratios),
            "least": ratios[0],
            "most": ratios[-1],
        }
    return found


def machine() -> dict[str, Any]:
    import numpy
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def show(console: Console, results: Results) -> None:
    table = Table("", "what", "ours", "beside", "other", "ratio", "from .. to")
    for name, one in results.items():
        ours, other = (f"{one[side]:.3g} {one['unit']}" for side in ("ours", "other"))
        spread = f"{one['least']:.2f} .. {one['most']:.2f}"
        table.add_row(name, one["what"], ours, one["beside"], other, f"{one['ratio']:.2f}", spread)
    console.print(table)


def worse(before: Results, after: Results, margin: float) -> list[str]:
    """The measures in both whose ratio grew by more than this share."""
    return [name for name in before if name in after and after[name]["ratio"] > before[name]["ratio"] * (1 + margin)]


def compare(console: Console, before: Results, after: Results, margin: float) -> int:
    table = Table("", "before", "after", "after / before")
    for name in [name for name in before if name in after]:
        old, new = before[name]["ratio"], after[name]["ratio"]
        table.add_row(name, f"{old:.2f}", f"{new:.2f}", f"{new / old:.2f}")
    console.print(table)
    for name in sorted({*before} ^ {*after}):
        console.print(f"{name}: only {'before' if name in before else 'after'}")
    found = worse(before, after, margin)
    if found:
        console.print(f"worse by more than {margin:.0%}: {', '.join(found)}")
    return 1 if found else 0


def read(path: str) -> Results:
    try:
        told = json.loads(Path(path).read_bytes())
        if told["format"] == FORMAT:
            return dict(told["results"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path}: not results of `python -m benchmarks --json` ({error}); make it anew")
    sys.exit(f"{path}: of another version of these benchmarks; make it anew")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of measures, with commas between")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="", help="also write the results to this file")
    commands = parser.add_subparsers(dest="command")
    two = commands.add_parser("compare")
    two.add_argument("before")
    two.add_argument("after")
    two.add_argument("--margin", type=float, default=0.15)
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    if given.command == "compare":
        return compare(console, read(given.before), read(given.after), given.margin)
    from benchmarks.ratios import MEASURES

    names = [name for name in given.only.split(",") if name] or list(MEASURES)
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"--only {unknown[0]}: there is no such measure; take {', '.join(MEASURES)}")
    if given.repeats < 1:
        parser.error(f"--repeats {given.repeats}: must be at least 1")
    results, here = measured(names, given.repeats), machine()
    show(console, results)
    console.print(", ".join(f"{key} {value}" for key, value in here.items()))
    if given.json:
        text = json.dumps({"format": FORMAT, "machine": here, "results": results}, indent=2)
        Path(given.json).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
