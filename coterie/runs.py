"""What runs leave behind, as objects: `Run` is a run directory (server/rundir.py), `Comparison` a directory of several."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.rows import Rows, Table
from coterie.server.checkpoints import read_events
from coterie.server.findings import found
from coterie.server.report import write_report
from coterie.server.status import Status, read_status
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.tasks.personal import PersonalModel, load_personal
from coterie.wire.config import Value
from coterie.wire.errors import ConfigError, CoterieError

if TYPE_CHECKING:
    import pandas


GAIN = ("local", "gain", "gain-low", "gain-high", "verdict")  # of a client in `judged` of result.json


def open_run(path: str | Path) -> "Run":
    """The run in this directory, finished or still going on.

    run = coterie.open_run("runs/20261116-120000-fedper-digits")
    run.clients.to_pandas()
    """
    return Run(path)


class Run:
    """A run, read from its directory whenever it is asked, so that a run that is going on can be watched."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        if not (self.path / "config.json").is_file():
            raise ConfigError(f"{path}: is not a run directory, it has no config.json")

    @property
    def config(self) -> dict[str, Value]:
        """Every setting, by its full name."""
        return self._read("config.json")

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return (self.path / "result.json").exists()

    @property
    def status(self) -> Status:
        """How far it is, and whether a process works on it: `state` is running, finished, failed, stopped, died, ..."""
        told = read_status(self.path)
        return dataclasses.replace(told, rounds=told.rounds or int(self.config["num-server-rounds"]))

    def watch(self) -> "Run":
        """Show how it goes until it ends."""
        from coterie.following import watch_run

        return watch_run(self)

    def stop(self) -> Status:
        """Ask it to end, from whatever process, and wait until it has; finished rounds stay."""
        from coterie.following import stop_run

        return stop_run(self)

    @property
    def result(self) -> dict[str, Any]:
        """What it came to: `mean-test-accuracy`, `models`, `clients`, ..."""
        if not self.finished:
            raise CoterieError(f"{self.path}: has no result; {self._how_far()}")
        return self._read("result.json")

    @property
    def events(self) -> list[dict[str, Any]]:
        """A dict for each round that ended."""
        return read_events(self.path)

    @property
    def seconds(self) -> float:
        """How long its rounds took."""
        return float(sum(event["seconds"] + event.get("evaluate-seconds", 0.0) for event in self.events))

    @property
    def clients(self) -> Rows:
        """A row for each client: samples, rounds, bytes, how its models did when they were tested last, and what it gains over
        training alone, with an interval and a word."""
        events = self.events
        tested: Mapping[str, Mapping[str, float]] = next(
            (event["evaluate"] for event in reversed(events) if "evaluate" in event), {}
        )
        metrics = dict.fromkeys(name for values in tested.values() for name in values if name != "num-samples")
        names = self.result["clients"] if self.finished else sorted(_seen(events), key=name_order)
        judged = self._read("result.json").get("judged", {})
        beside = [key for key in GAIN if any(key in told for told in judged.values())]
        rows = Rows()
        for name in names:
            trained = [event["train"][name] for event in events if name in event["train"]]
            rows.append(
                {
                    "client": name,
                    "train-samples": trained[-1].get("num-samples") if trained else None,
                    "test-samples": tested.get(name, {}).get("num-samples"),
                    "rounds-trained": len(trained),
                    "bytes-down": sum(event["bytes-down"].get(name, 0) for event in events),
                    "bytes-up": sum(event["bytes-up"].get(name, 0) for event in events),
                    **{metric: tested.get(name, {}).get(metric) for metric in metrics},
                    **{key: judged.get(name, {}).get(key) for key in beside},
                }
            )
        return rows

    @property
    def metrics(self) -> Rows:
        """A row for each client and metric of its own model after the last round: value, 95 % interval, test samples."""
        return Rows(
            {
                "client": name,
                "metric": metric,
                **dict.fromkeys(("value", "low", "high")),
                **value,
                "samples": told["samples"],
            }
            for name, told in self.result.get("judged", {}).items()
            for metric, value in told["metrics"].items()
        )

    @property
    def folds(self) -> Rows:
        """A row for each client of a run with `folds`: how its models did on all of its samples, each tested once."""
        from coterie.folds import read_folds

        return read_folds(self.path)

    @property
    def findings(self) -> dict[str, Finding]:
        """What the method found out about clients and pairs of them, by name: relevance, coalitions, suspects, ..."""
        return found(self.path)

    def model(self, client: str | int, network: str = "") -> PersonalModel:
        """A client's personal model. A network of your own is defined in a .py file: give it as `network`.

        run.model("3").predict(x)  # (samples, labels): probabilities; of a regression (samples,): values
        """
        places = {path.stem: path for path in self.path.glob("clients/*/models/*.safetensors")}  # as real processes
        places |= {path.stem: path for path in self.path.glob("models/*.safetensors")}
        if str(client) not in places:
            there = ", ".join(sorted(places, key=name_order)) or "nobody"
            raise ConfigError(
                f"client = {str(client)!r}: has no personal model in {self.path}; there are those of {there}"
            )
        return load_personal(places[str(client)], network)

    def report(self, output: str | Path = "") -> Path:
        """Make `report.html` anew, or the same page elsewhere; where it is."""
        return write_report(self.path, Path(output).absolute() if output else None)

    @property
    def title(self) -> str:
        return f"{self.config['strategy']} on {self.config['task']}"

    def result_table(self) -> Table:
        """Two rows for each kind of model: the plain mean over clients, and the mean weighted by test samples."""
        result = self.result
        every = dict.fromkeys(name for kind in result["models"].values() for name in kind["mean"])
        names = [name for name in every if not name.endswith("-weighted")]
        rows = []
        for kind, values in result["models"].items():
            mean = values["mean"]
            for first, which, end in ((kind, "over clients", ""), ("", "by samples", "-weighted")):
                rows.append([first, which, *[f"{mean[name + end]:.4f}" if name in mean else "-" for name in names]])
        title = f"{self.title}, {result['rounds']} rounds, seed {result['seed']}"
        return Table(title, ["model", "mean", *[name.replace("-", " ") for name in names]], rows)

    def gain_table(self) -> Table | None:
        """What each client gains over training alone; None where none did."""
        result = self.result
        judged = {name: told for name, told in result.get("judged", {}).items() if "gain" in told}
        if not judged:
            return None
        rows = []
        for name, told in judged.items():
            gain, ends, word = gain_in_words(told)
            rows.append([name, f"{told['local']:.4f}", f"{told['own']:.4f}", gain, ends, str(told["samples"]), word])
        head = ["client", "alone", "together", "gain", "95 % interval", "test samples", "verdict"]
        return Table(f"Alone or together? {result['metric'].replace('-', ' ')} of each client", head, rows)

    def __repr__(self) -> str:
        figures = {kind: model["mean"] for kind, model in self.result["models"].items()} if self.finished else {}
        shown = [
            f"{kind} {name} {mean[name]:.4f}"
            for kind, mean in figures.items()
            for name in [
                next(name for name in (self.result.get("metric", "accuracy"), "accuracy", "loss") if name in mean)
            ]
        ]
        return f"<Run {', '.join([self.title, self._how_far(), *shown])}: {self.path}>"

    def _repr_html_(self) -> str:
        means = self.result_table()._repr_html_() if self.finished else f"<p><b>{escape(self.title)}</b></p>"
        about = f"<p><small>{self._how_far()}, {self.seconds:.1f} s, {escape(str(self.path))}</small></p>"
        return means + self.clients.as_table("Clients")._repr_html_() + about

    def _how_far(self) -> str:
        return f"{len(self.events)} of {self.config['num-server-rounds']} rounds"

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return dict(json.loads(path.read_text())) if path.exists() else {}


def _seen(events: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for event in events for told in ("train", "left-out", "evaluate") for name in event.get(told, {})}


@dataclass(frozen=True)
class Comparison:
    """Several methods, or whatever else a preset compares, on the same data."""

    path: Path
    rows: Rows = field(repr=False)  # one for each method (and cell of a preset): mean and deviation over the seeds
    tables: Sequence[Table] = field(default=(), repr=False)  # the same in words
    runs: Sequence[Run] = field(default=(), repr=False)  # those that came to their end

    @property
    def report(self) -> Path:
        """One page with all tables and curves."""
        return self.path / "report.html"

    def to_pandas(self) -> "pandas.DataFrame":
        return self.rows.to_pandas()

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables) + f"<p><small>{escape(str(self.path))}</small></p>"


def gain_in_words(told: Mapping[str, Any]) -> list[str]:
    """Of a client: what it gains over training alone, between which ends, and the verdict."""
    low, high = told["gain-low"], told["gain-high"]
    return [f"{told['gain']:+.4f}", "-" if low is None else f"{low:+.4f} to {high:+.4f}", told["verdict"]]
