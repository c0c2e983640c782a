"""How long it takes until a large table is ready: read, described, agreed on, prepared.

    python benchmarks/tables.py                  # 200,000 rows x 60 columns; at most 20 CPU seconds and 1 GB

Most of the time goes into cells: float() of each number, a dictionary for each text.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from coterie.tasks.agreeing import agree
from coterie.tasks.facts import facts_of
from coterie.tasks.kinds import look
from coterie.tasks.preparing import dataset_of
from coterie.tasks.reading import read_table

PIECE = 10_000


def make(path: Path, rows: int) -> None:
    """40 measurements, some with gaps, 10 whole numbers, 9 categories with gaps, and a label."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join([f"c{i}" for i in range(59)] + ["ill"]) + "\n")
        for start in range(0, rows, PIECE):
            n = min(PIECE, rows - start)
            columns = [np.char.mod("%.4f", rng.normal(size=n) * 10 ** (i % 5)) for i in range(40)]
            for column in columns[::3]:
                column[rng.random(n) < 0.05] = ""
            columns += [rng.integers(0, 90, n).astype(str) for _ in range(10)]
            columns += [rng.choice(["red", "green", "blue", "?"], n) for _ in range(9)]
            columns.append(rng.choice(["no", "yes"], n))
            file.writelines(",".join(row) + "\n" for row in zip(*columns, strict=True))


def measure(path: str) -> None:
    def told(what: str) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{what:10} {time.process_time():6.1f} CPU s {memory:6.0f} MB", flush=True)

    told("started")
    table = read_table(path)
    told("read")
    facts = facts_of(look(table, label="ill"), np.arange(len(table)), 5)
    told("described")
    data = dataset_of(agree({"a": facts}).schema, table)
    told("prepared")
    print(f"inputs: {data.x.shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "table.csv")
        make(path, options.rows)
        subprocess.run(
            [sys.executable, __file__, "--measure", str(path)], check=True
        )  # alone, so that memory is its own


if __name__ == "__main__":
    main()
