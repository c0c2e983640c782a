"""Raw tables against the same rows prepared by hand: do clients that agree on columns by themselves learn as much?

    python benchmarks/raw_tables.py heart --data-root data --strategies local,fedavg,pfedsim --seeds 101,102,103,104
    python benchmarks/raw_tables.py adult --data-root data --strategies local,fedavg --seeds 101,102,103,104

heart: the four raw UCI files, columns in four orders, words for codes, `?` for gaps, against the task `heart`.
adult: the raw rows by occupation, each occupation a client, against the task's own preparation of the same rows.
Clients test with the same rows in both. Prints the mean test accuracy over clients of both, and the mean of the paired
differences with its standard error.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import coterie
from coterie.table_data import Tables
from coterie.tasks.datasets import load_dataset
from coterie.tasks.spec import TASKS

HEART = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "ill",
]
WORDS = {
    "sex": {0: "F", 1: "M"},
    "cp": {1: "typical", 2: "atypical", 3: "non-anginal", 4: "none"},
    "fbs": {0: "no", 1: "yes"},
    "restecg": {0: "normal", 1: "ST-T", 2: "hypertrophy"},
    "exang": {0: "no", 1: "yes"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed", 7: "reversible"},
}
ADULT = [
    "age",
    "work",
    "weight",
    "education",
    "years",
    "marriage",
    "occupation",
    "relation",
    "race",
    "sex",
    "gain",
    "loss",
    "hours",
    "country",
    "income",
]
OCCUPATION = ADULT.index("occupation")


def in_words(column: str, cell: str) -> str:
    if column == "ill":
        return "yes" if float(cell) > 0 else "no"
    return cell if cell == "?" or column not in WORDS else WORDS[column][int(float(cell))]


def shuffled(path: Path, names: list[str], rows: list[list[str]], rng: np.random.Generator) -> Path:
    order = rng.permutation(len(names))
    lines = [",".join(row[k] for k in order) for row in (names, *rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def raw_heart(root: Path, home: Path) -> tuple[Tables, dict[str, str]]:
    """The tables; and what a run of the task needs. Clients called 0 to 3 have the splits that they have in the task."""
    rng, files = np.random.default_rng(7), {}
    for i, hospital in enumerate(TASKS["heart"].natural_clients):
        lines = (root / "heart" / f"processed.{hospital}.data").read_text().split()
        rows = [[in_words(name, cell) for name, cell in zip(HEART, line.split(","), strict=True)] for line in lines]
        files[str(i)] = shuffled(home / f"{hospital}.csv", HEART, rows, rng)
    tables = coterie.tables(files, label="ill", missing="chol=0,trestbps=0")
    return tables, {"task": "heart", "data_root": str(root)}


def raw_adult(root: Path, home: Path, most: int) -> tuple[Tables, dict[str, str]]:
    """At most so many rows of each occupation, from the raw file and as the task prepares them."""
    lines = [line for line in (root / "adult.data").read_text().splitlines() if line.strip() and line[0] != "|"]
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    by_occupation: dict[str, list[int]] = {}
    for place, row in enumerate(cells):
        by_occupation.setdefault(row[OCCUPATION], []).append(place)
    mine = {name: rows[:most] for name, rows in sorted(by_occupation.items()) if len(rows) >= 100}
    rng = np.random.default_rng(7)
    files = {
        str(i): shuffled(home / f"{i}.csv", ADULT, [cells[row] for row in rows], rng)
        for i, rows in enumerate(mine.values())
    }
    data = load_dataset("adult", root)
    chosen = np.concatenate(list(mine.values()))
    owner = np.repeat(np.arange(len(mine)), [len(rows) for rows in mine.values()])
    x = (data.x[chosen] - data.mean) / data.std
    np.savez(home / "adult.npz", x=x, y=data.y[chosen], owner=owner)
    return coterie.tables(files, label="income"), {"task": "own", "data": str(home / "adult.npz")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["heart", "adult"])
    parser.add_argument("--data-root", default="data", type=Path)
    parser.add_argument("--strategies", default="local,fedavg,fedper,pfedsim,pfedsv,coterie")
    parser.add_argument("--seeds", default="101,102,103,104")
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument("--rows", default=400, type=int, help="adult: most rows of an occupation")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a text setting of the raw side"
    )
    options = parser.parse_args()
    more = dict(pair.split("=", 1) for pair in options.set)
    more = {key: float(v) if v.replace(".", "", 1).isdigit() else v for key, v in more.items()}
    home = Path(tempfile.mkdtemp(prefix="raw-tables-"))
    root = options.data_root
    tables, task = raw_heart(root, home) if options.what == "heart" else raw_adult(root, home, options.rows)
    for strategy in options.strategies.split(","):
        pairs = []
        for seed in map(int, options.seeds.split(",")):
            keys = {"seed": seed, "workers": 0, "progress": False, "num_server_rounds": options.rounds}
            keys |= {"evaluate_every": options.rounds}
            runs = (
                coterie.run(strategy, data=tables, run_dir=home / f"raw-{strategy}-{seed}", **keys, **more),
                coterie.run(strategy, run_dir=home / f"task-{strategy}-{seed}", **keys, **task),
            )
            pairs.append([run.result["mean-test-accuracy"]["personal"] for run in runs])
        raw, made = np.array(pairs).T
        error = (raw - made).std(ddof=1) / np.sqrt(len(raw)) if len(raw) > 1 else float("nan")
        print(
            f"{strategy:8s} raw {raw.mean():.4f}  task {made.mean():.4f}  {(raw - made).mean():+.4f} ± {error:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
