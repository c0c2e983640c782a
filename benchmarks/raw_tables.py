"""Raw tables against the same rows prepared by hand: do clients that agree on columns by themselves learn as much?

    python benchmarks/raw_tables.py heart --data-root data --strategies local,fedavg,pfedsim --seeds 101,102,103,104
    python benchmarks/raw_tables.py adult --data-root data --strategies local,fedavg --seeds 101,102,103,104

heart: the four raw UCI files, columns in four orders, words for codes, `?` for gaps, against the task `heart`.
adult: the raw rows by occupation or country, each a client, against the task's own preparation of the same rows.
diabetes: a value; three clients, and rows that nobody has, to test with (--strategies local,fedavg).
In the first two clients test with the same rows on both sides. Prints the mean test accuracy and AUROC over clients of both,
and the mean of the paired differences with its standard error. `--against model=linear` compares the tables with themselves,
learned in another way.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

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
METRICS = ("accuracy", "auroc")


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


def raw_adult(root: Path, home: Path, most: int, by: str) -> tuple[Tables, dict[str, str]]:
    """At most so many rows of each occupation or country, from the raw file and as the task prepares them."""
    lines = [line for line in (root / "adult.data").read_text().splitlines() if line.strip() and line[0] != "|"]
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    whose: dict[str, list[int]] = {}
    for place, row in enumerate(cells):
        whose.setdefault(row[ADULT.index(by)], []).append(place)
    mine = {name: rows[:most] for name, rows in sorted(whose.items()) if len(rows) >= 100}
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


def raw_diabetes(home: Path, seed: int) -> tuple[Tables, Path, np.ndarray]:
    """scikit-learn's table of 442 patients in three files, with words and gaps; a file of 92 others, and their values."""
    from sklearn.datasets import load_diabetes

    data, rng = load_diabetes(scaled=False), np.random.default_rng(seed)
    cells = np.char.mod("%.4g", data.data).astype(object)
    place = data.feature_names.index("sex")
    cells[:, place] = np.where(data.data[:, place] == 1, "F", "M")
    cells[rng.random(cells.shape) < 0.05] = "?"
    rows = [[*row, f"{value:g}"] for row, value in zip(cells.tolist(), data.target, strict=True)]
    names, order = [*data.feature_names, "progression"], rng.permutation(len(rows))
    home.mkdir()
    parts = {**dict(zip("abc", np.array_split(order[92:], 3), strict=True)), "kept": order[:92]}
    files = {name: shuffled(home / f"{name}.csv", names, [rows[i] for i in part], rng) for name, part in parts.items()}
    kept = files.pop("kept")
    return coterie.tables(files, label="progression"), kept, data.target[order[:92]]


def values(options: argparse.Namespace, home: Path) -> None:
    """R² of the kept rows, and how many of them lie in the intervals for 90 %; means over clients and seeds."""
    for strategy in options.strategies.split(","):
        found = []
        for seed in map(int, options.seeds.split(",")):
            tables, kept, true = raw_diabetes(home / f"{strategy}-{seed}", seed)
            keys = {"seed": seed, "workers": 0, "progress": False, "num_server_rounds": options.rounds}
            keys |= {"baseline": "none", "validation_fraction": 0.25, **keys_of(options.set)}
            run = coterie.run(strategy, data=tables, run_dir=home / f"{strategy}-{seed}" / "run", **keys)
            for client in "abc":
                model = run.model(client)
                said = model.predict(kept)
                low, high = model.interval(said, 0.9)
                r2 = 1 - ((true - said) ** 2).sum() / ((true - true.mean()) ** 2).sum()
                found.append((r2, ((low <= true) & (true <= high)).mean()))
        by_seed = np.array(found).reshape(-1, 3, 2).mean(axis=1)
        error = by_seed.std(axis=0, ddof=1) / np.sqrt(len(by_seed)) if len(by_seed) > 1 else by_seed[0] * np.nan
        told = [f"{mean:.3f} ± {away:.3f}" for mean, away in zip(by_seed.mean(axis=0), error, strict=True)]
        print(f"{strategy:8s} R² {told[0]}  in the interval {told[1]}", flush=True)


def keys_of(text: str) -> dict[str, Any]:
    """`model=linear,weight-decay=0.01` as keywords of `coterie.run`."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return {key.replace("-", "_"): float(v) if v.replace(".", "", 1).isdigit() else v for key, _, v in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["heart", "adult", "diabetes"])
    parser.add_argument("--data-root", default="data", type=Path)
    parser.add_argument("--strategies", default="local,fedavg,fedper,pfedsim,pfedsv,coterie")
    parser.add_argument("--seeds", default="101,102,103,104")
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument("--rows", default=400, type=int, help="adult: most rows of a client")
    parser.add_argument("--by", default="occupation", choices=ADULT, help="adult: whose rows are whose")
    parser.add_argument("--set", default="", metavar="K=V,K=V", help="settings of the tables' side")
    parser.add_argument(
        "--against", default="", metavar="K=V,K=V", help="not the task, but the tables with these settings"
    )
    options = parser.parse_args()
    home, root = Path(tempfile.mkdtemp(prefix="raw-tables-")), options.data_root
    if options.what == "diabetes":
        values(options, home)
        return
    if options.what == "heart":
        tables, task = raw_heart(root, home)
    else:
        tables, task = raw_adult(root, home, options.rows, options.by)
    raw = {"data": tables, **keys_of(options.set)}
    other: dict[str, Any] = {"data": tables, **keys_of(options.against)} if options.against else task
    for strategy in options.strategies.split(","):
        found = []
        for seed in map(int, options.seeds.split(",")):
            keys = {"seed": seed, "workers": 0, "progress": False, "num_server_rounds": options.rounds}
            keys |= {"evaluate_every": options.rounds, "baseline": "none"}
            runs = [
                coterie.run(strategy, run_dir=home / f"{strategy}-{seed}-{side}", **keys, **of_side)
                for side, of_side in enumerate((raw, other))
            ]
            found.append([[_mean(run, metric) for metric in METRICS] for run in runs])
        sides = np.array(found)  # (seeds, sides, metrics)
        told = [f"{strategy:8s}"]
        for place, metric in enumerate(METRICS):
            raw_side, other_side = sides[:, 0, place], sides[:, 1, place]
            away = raw_side - other_side
            error = away.std(ddof=1) / np.sqrt(len(away)) if len(away) > 1 else float("nan")
            told.append(f"{metric} {raw_side.mean():.4f} {other_side.mean():.4f} {away.mean():+.4f} ± {error:.4f}")
        print("  ".join(told), flush=True)


def _mean(run: coterie.Run, metric: str) -> float:
    """Over clients that have it."""
    values = [row["value"] for row in run.metrics if row["metric"] == metric]
    return float(np.mean(values))


if __name__ == "__main__":
    main()
