"""Runs with tables: clients agree on columns before the first round, and whoever does not fit is told so."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.client.accountant import Accountant
from coterie.client.data import table_share
from coterie.client.owner import with_own_places
from coterie.client.store import FileStore
from coterie.client.tables import told_facts
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import checked_config, run
from coterie.strategies.observer import Observer
from coterie.tasks.reading import read_table
from coterie.tasks.schema import Schema
from coterie.tasks.tensors import stored_arrays
from coterie.wire.config import RunConfig, Value
from coterie.wire.errors import ConfigError, RunFailed

KEYS = {"num_server_rounds": 2, "workers": 0, "progress": False, "label": "ill"}


def hospital(path: Path, rng: np.random.Generator, rows: int = 60, order: str = "age sex chol ill", **cells) -> Path:
    """A table whose label can be learned, with its columns in this order; `cells` replace a column."""
    age, male = rng.normal(50, 10, rows).round(1), rng.random(rows) < 0.5
    chol = np.where(rng.random(rows) < 0.1, "?", rng.normal(240, 40, rows).round().astype(int).astype(str))
    columns = {
        "age": age,
        "sex": np.where(male, "M", "F"),
        "chol": chol,
        "ill": np.where(age + 8 * male > 54, "yes", "no"),
    }
    columns |= {name: [values[i % len(values)] for i in range(rows)] for name, values in cells.items()}
    names = order.split()
    rows_of = zip(*(columns[name.lower()] for name in names), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in (names, *rows_of)) + "\n")
    return path


@pytest.fixture
def three(tmp_path):
    orders = {"north": "age sex chol ill", "south": "ill CHOL age Sex", "west": "chol ill sex age"}
    rng = np.random.default_rng(5)
    return {name: hospital(tmp_path / f"{name}.csv", rng, order=order) for name, order in orders.items()}


def test_a_run_agrees_on_columns_and_its_models_know_them(three, tmp_path):
    tables = coterie.tables(three, label="ill")
    done = coterie.run(
        "fedper", data=tables, run_dir=tmp_path / "run", **{k: v for k, v in KEYS.items() if k != "label"}
    )
    assert done.result["clients"] == ["north", "south", "west"] == done.clients.column("client")
    schema = Schema.from_json((done.path / "schema.json").read_text())
    assert [c.name for c in schema.columns] == ["age", "chol", "sex"] and schema.facts["clients"] == 3
    train = sum(row["train-samples"] for row in done.clients)
    assert schema.facts["rows"] == train < 180  # of the rows to train with, no others
    ages = np.concatenate([read_table(path).columns["age"].values for path in three.values()])
    assert abs(schema.columns[0].mean - ages.mean()) < 2 and schema.columns[0].mean != pytest.approx(
        ages.mean(), abs=1e-9
    )
    assert Schema.from_json(stored_arrays(done.path / "models" / "west.safetensors")[1]["table"]) == schema
    model = done.model("west")
    (tmp_path / "new.csv").write_text("sex,AGE,chol,more\nM,80,300,x\nF,20,,y\nX,50,200,z\n")
    (tmp_path / "same.csv").write_text("chol,sex,age\n300,M,80\n?,F,20\n200,X,50\n")
    said = model.predict(tmp_path / "new.csv")
    assert (
        np.array_equal(said, model.predict(tmp_path / "same.csv"))
        and said[0, 1] > said[1, 1]
        and np.isfinite(said).all()
    )
    (tmp_path / "bad.csv").write_text("sex,age\nM,80\n")
    with pytest.raises(coterie.CoterieError, match="has no column 'chol'"):
        model.predict(tmp_path / "bad.csv")


def test_the_order_of_columns_never_changes_a_result(tmp_path):
    results = []
    for order in ("age sex chol ill", "ill chol sex age"):
        home = tmp_path / order.replace(" ", "")
        home.mkdir()
        files = [hospital(home / f"{n}.csv", np.random.default_rng(i), order=order) for i, n in enumerate("ab")]
        done = coterie.run("fedavg", "own", ",".join(map(str, files)), run_dir=home / "run", **KEYS)
        results.append(done.result)
    assert results[0] == results[1]


def federation(
    tmp_path: Path, files: dict[str, Path], owners: Mapping[str, Value] | None = None, observers=(), **values
) -> dict:
    """A run whose clients have a file each, and whose server knows none of them."""
    usual = {
        "strategy": "fedavg",
        "task": "own",
        "label": "ill",
        "num-clients": len(files),
        "num-server-rounds": 1,
        "join-timeout": 0.5,
    }
    config = checked_config({**usual, **values})
    grid = SimulationGrid(Workers(0), len(files), config, str(tmp_path / "clients"), list(files))
    for context, file in zip(grid.contexts.values(), files.values(), strict=True):
        context.node_config |= {"data": str(file), **(owners or {})}
    path = tmp_path / "run"
    path.mkdir()
    return run(grid, config, path, observers)


def test_clients_with_files_of_their_own_come_to_the_result_of_a_simulation(three, tmp_path):
    there = federation(tmp_path, three)
    data = ",".join(map(str, three.values()))
    here = coterie.run("fedavg", "own", data, run_dir=tmp_path / "simulated", **{**KEYS, "num_server_rounds": 1})
    assert there["models"] == here.result["models"]
    assert (tmp_path / "run" / "schema.json").read_text() == (here.path / "schema.json").read_text()


@pytest.mark.parametrize(
    ("order", "cells", "message"),
    [
        ("age sex ill", {}, "has no column 'chol', a number that the other clients have"),
        ("age sex chol ill", {"age": ["old", "young", "old"]}, "column age: a cell is not a number"),
        (
            "age sex chol ill",
            {"sex": ["1", "2"]},
            "column sex: has numbers, and the other clients have a yes/no of F, M",
        ),
        (
            "age sex chol ill",
            {"ill": ["no", "yes", *["no"] * 18, "unclear"]},
            "the label a cell is none of the classes no, yes",
        ),
        ("age sex chol", {}, "label = 'ill': .* has no such column"),
    ],
)
def test_a_client_that_does_not_fit_is_told_which_column_and_what_to_do(three, tmp_path, order, cells, message):
    hospital(three["west"], np.random.default_rng(9), order=order, **cells)
    with pytest.raises(RunFailed, match=message):
        federation(tmp_path, three, quorum=1.0)


def test_a_quorum_begins_without_a_client_that_does_not_fit(three, tmp_path, caplog):
    hospital(three["west"], np.random.default_rng(9), order="age sex ill")
    assert federation(tmp_path, three)["clients"] == ["north", "south"]
    assert "has no column 'chol', a number that the other clients have" in caplog.text


def test_only_the_owner_sees_a_cell_and_with_privacy_others_are_told_the_place_alone(three, tmp_path, caplog):
    (tmp_path / "schema.json").write_text(coterie.tables(three, label="ill").schema().bare().to_json())
    hospital(three["west"], np.random.default_rng(9), age=["old", "young"])
    with pytest.raises(RunFailed) as raised:
        federation(
            tmp_path, three, quorum=1.0, **{"privacy.mode": "weights", "table-schema": str(tmp_path / "schema.json")}
        )
    assert f"{three['west']}, line 2, column age: cannot be used; the log of this client says why." in str(raised.value)
    assert "old" not in str(raised.value).replace(str(tmp_path), "")
    by = {record.name: record.getMessage() for record in caplog.records}
    assert "'old' is not a number" in by["coterie.client.app"]
    assert "'old'" not in by["coterie.server.agreement"]


@pytest.mark.parametrize(
    ("ill", "why"),
    [
        ([round(0.37 * i, 2) for i in range(60)], "its label 'ill' is a value, and most clients have classes"),
        (["a lie"], "what it tells of its table cannot be used"),
    ],
)
def test_one_odd_label_or_lie_leaves_out_its_client_alone_and_for_good(three, tmp_path, monkeypatch, caplog, ill, why):
    if ill == ["a lie"]:
        honest = told_facts
        monkeypatch.setattr(
            "coterie.client.tables.told_facts", lambda s, me: Told("{}") if me.name == "west" else honest(s, me)
        )
    else:
        hospital(three["west"], np.random.default_rng(9), ill=ill)
    seen = []
    result = federation(tmp_path, three, observers=[Seen(seen)])
    assert result["clients"] == ["north", "south"] and f"client west cannot take part: {why}" in caplog.text
    kept = json.loads((tmp_path / "run" / "schema.json").read_text())
    assert list(kept["facts"]["refused"]) == ["west"] and kept["facts"]["clients"] == 2
    event = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    assert len(event["not-admitted"]) == 1
    assert (
        "refused"
        not in Schema.from_json(stored_arrays(tmp_path / "clients" / "models" / "north.safetensors")[1]["table"]).facts
    )
    assert seen[:3] == [(0, "describe", 1, 3), (0, "describe", 2, 3), (0, "describe", 3, 3)]


class Seen(Observer):
    def __init__(self, told: list) -> None:
        self.told = told

    def progress(self, server_round: int, phase: str, done: int, total: int) -> None:
        self.told.append((server_round, phase, done, total))


def test_privacy_needs_a_schema_and_is_accounted_for(three, tmp_path):
    private = {"privacy.mode": "weights", "privacy.table-epsilon": 2.0}
    with pytest.raises(ConfigError, match="make a schema with `coterie schema"):
        federation(tmp_path, three, **private)
    (tmp_path / "schema.json").write_text(coterie.tables(three, label="ill").schema().bare().to_json())
    federation(tmp_path, three, **private, **{"table-schema": str(tmp_path / "schema.json")})
    kept = json.loads((tmp_path / "run" / "schema.json").read_text())
    assert kept["facts"]["noise"]["epsilon"] == 2.0 and "rows" not in kept["facts"]
    spent = Accountant.load(FileStore(tmp_path / "clients", "north", "1"))
    assert len(spent.history) == 1 and 1.9 < spent.epsilon(1e-5) <= 2.0


def test_what_is_told_of_a_table_counts_towards_the_owners_epsilon(three, tmp_path):
    (tmp_path / "schema.json").write_text(coterie.tables(three, label="ill").schema().bare().to_json())
    private = {"privacy.mode": "dp-sgd", "privacy.table-epsilon": 2.0, "table-schema": str(tmp_path / "schema.json")}
    with pytest.raises(RunFailed, match=r"the owner of this client allows 1 \(--max-epsilon\)"):
        federation(tmp_path, three, {"max-epsilon": 1.0}, **private)
    assert Accountant.load(FileStore(tmp_path / "clients", "north", "1")).history == ()


def test_the_owner_of_a_table_is_told_what_is_left_out_of_it(three, tmp_path, caplog):
    ids = [f"p{i}" for i in range(60)]
    rows = three["west"].read_text().splitlines()
    three["west"].write_text("\n".join(",".join(pair) for pair in zip(rows, ["Patient ID", *ids], strict=True)))
    federation(tmp_path, three)
    told = {r.getMessage() for r in caplog.records if r.name == "coterie.client.tables"}
    assert told == {f"{three['west']}, column Patient ID: looks like an id: every row has another; left out"}


def test_a_client_opens_no_table_that_only_the_run_names(three):
    config = RunConfig.parse({"task": "own", "label": "ill", "data": str(three["north"]), "num-clients": 2})
    for node in ({"partition-id": 0, "num-partitions": 2}, {"client-name": "north"}):
        with pytest.raises(ConfigError, match=r"node configuration: (no shared-data|give data)"):
            table_share(node, with_own_places(config, node), "north")
    node = {"partition-id": 0, "num-partitions": 2, "shared-data": str(three["south"])}
    share = table_share(node, with_own_places(config, node), "north")
    assert share.table.source == str(three["south"]) and share.num_partitions == 2


def test_a_run_that_goes_on_keeps_its_schema(three, tmp_path, monkeypatch):
    data = ",".join(map(str, three.values()))
    whole = coterie.run("fedper", "own", data, run_dir=tmp_path / "whole", **{**KEYS, "num_server_rounds": 3})
    begun = coterie.run("fedper", "own", data, run_dir=tmp_path / "begun", **KEYS)
    before = (begun.path / "schema.json").read_bytes()
    monkeypatch.setattr("coterie.server.agreement.ask", None)  # nobody is asked again
    again = coterie.resume(begun.path, num_server_rounds=3, workers=0, progress=False)
    assert (again.path / "schema.json").read_bytes() == before
    assert (again.path / "result.json").read_bytes() == (whole.path / "result.json").read_bytes()


@pytest.mark.parametrize("harm", [{"rows": 10**6}, {"columns": "none"}, {"more": 1}])
def test_what_a_client_tells_is_checked(three, tmp_path, monkeypatch, harm):
    bad = json.dumps({**json.loads(honest_json(three["north"])), **harm})
    monkeypatch.setattr("coterie.client.tables.told_facts", lambda *_: Told(bad))
    with pytest.raises(RunFailed, match="client north cannot take part: what it tells of its table cannot be used"):
        federation(tmp_path, three)


class Told:
    """Facts that say anything."""

    rows = 1

    def __init__(self, text: str) -> None:
        self.text = text

    def model_dump_json(self) -> str:
        return self.text


def honest_json(path: Path) -> str:
    from coterie.tasks.facts import facts_of
    from coterie.tasks.kinds import look

    looked = look(read_table(path), label="ill")
    return facts_of(looked, np.arange(10), 5).model_dump_json()


def test_a_value_is_learned_and_predicted_in_its_own_units(tmp_path):
    rng = np.random.default_rng(2)
    data, keys = f"{tmp_path}/a.csv,{tmp_path}/b.csv", {**KEYS, "label": "pressure", "num_server_rounds": 8}
    for noise in (0.0, 1.0):
        for name in "ab":
            age = rng.normal(50, 10, 150).round(2)
            rows = np.column_stack([age, (100 + age + noise * rng.normal(size=150)).round(2)])
            np.savetxt(tmp_path / f"{name}.csv", rows, "%.2f", ",", header="age,pressure", comments="")
        if not noise:  # it is the label in other words
            with pytest.raises(coterie.CoterieError, match="no column is left"):
                coterie.run("fedavg", "own", data, run_dir=tmp_path / "no", **keys)
    done = coterie.run("fedavg", "own", data, run_dir=tmp_path / "run", **keys)
    (tmp_path / "new.csv").write_text("age\n40\n60\n")
    assert done.model("a").predict(tmp_path / "new.csv") == pytest.approx([140, 160], abs=2)


def test_the_server_may_have_rows_of_the_tables_or_a_table_of_its_own(three, tmp_path):
    data = ",".join(str(path) for name, path in three.items() if name != "west")
    for i, given in enumerate(("0.2", str(three["west"]))):
        keys = {**KEYS, "num_server_rounds": 1, "run_dir": tmp_path / f"run-{i}"}
        done = coterie.run("fedsv", "own", data, server_data=given, **keys)
        assert done.finished and done.result["clients"] == ["north", "south"]


WORDS = {
    "sex": {0: "F", 1: "M"},
    "cp": {1: "typical", 2: "atypical", 3: "non-anginal", 4: "none"},
    "fbs": {0: "no", 1: "yes"},
    "restecg": {0: "normal", 1: "ST-T", 2: "hypertrophy"},
    "exang": {0: "no", 1: "yes"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed", 7: "reversible"},
}
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


def in_words(column: str, cell: str) -> str:
    if column == "ill":
        return "yes" if float(cell) > 0 else "no"
    return cell if cell == "?" or column not in WORDS else WORDS[column][int(float(cell))]


@pytest.mark.slow
def test_raw_heart_files_reach_the_figures_of_the_task(tmp_path):
    """Shuffled columns, words and `?`; names 0 to 3 give the clients the splits that they have in the task."""
    root = Path(os.environ.get("COTERIE_DATA", "data"))
    if not (root / "heart").is_dir():
        pytest.skip("COTERIE_DATA: no heart disease files there")
    rng, files = np.random.default_rng(7), {}
    for i, hospital_name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        lines = (root / "heart" / f"processed.{hospital_name}.data").read_text().split()
        order = rng.permutation(len(HEART))
        rows = [[in_words(HEART[k], line.split(",")[k]) for k in order] for line in lines]
        files[str(i)] = tmp_path / f"{hospital_name}.csv"
        files[str(i)].write_text("\n".join(",".join(row) for row in ([HEART[k] for k in order], *rows)))
    tables = coterie.tables(files, label="ill", missing="chol=0,trestbps=0")
    for strategy in ("local", "fedavg"):
        reached: dict[str, list[float]] = {"own": [], "heart": []}
        for seed in (201, 202, 203):
            keys = {"seed": seed, "workers": 0, "progress": False, "num_server_rounds": 20, "evaluate_every": 20}
            own = coterie.run(strategy, data=tables, run_dir=tmp_path / f"own-{strategy}-{seed}", **keys)
            task = coterie.run(strategy, "heart", run_dir=tmp_path / f"{strategy}-{seed}", data_root=str(root), **keys)
            for name, run_of in (("own", own), ("heart", task)):
                reached[name].append(run_of.result["mean-test-accuracy"]["personal"])
        assert np.mean(reached["own"]) >= np.mean(reached["heart"]) - 0.015, reached
