"""Tables: every kind of file, a true schema or a refusal that names the place, and inputs that do not depend on order."""

import contextlib
import csv
import gzip
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.table_data import look_at
from coterie.tasks.agreeing import agree, agree_noisy, agree_told
from coterie.tasks.cells import key
from coterie.tasks.facts import Facts, Moments, facts_by, facts_of, noisy_facts
from coterie.tasks.kinds import look
from coterie.tasks.preparing import LIMIT, at_home, outside, prepared
from coterie.tasks.reading import Reading, Table, read_table
from coterie.tasks.samples import DataError
from coterie.tasks.schema import Column, Schema
from coterie.tasks.sources import named_files
from coterie.wire.config import RunConfig
from coterie.wire.errors import CoterieError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"


def written(tmp_path: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def cells_of(table: Table) -> dict[str, list]:
    """What was read: numbers, or texts, None where a cell is missing."""
    found = {}
    for name, cells in table.columns.items():
        if cells.values is not None:
            found[name] = [None if math.isnan(value) else value for value in cells.values]
        else:
            found[name] = [None if code < 0 else cells.texts[code] for code in cells.codes]
    return found


# --- reading ---------------------------------------------------------------------------------------------------------

PLAIN = {"age": [31.0, None, 40.5], "city": ["Köln", "a, b", None], "ill": ["no", "yes", "no"]}


@pytest.mark.parametrize(
    ("name", "content", "reading"),
    [
        ("a.csv", 'age,city,ill\n31,Köln,no\n,"a, b",yes\n40.5,NA,no\n'.encode(), {}),
        ("a.csv", '\ufeff age , city,ill\r\n31, Köln,no\r\n?,"a, b",yes\r\n\r\n40.5,,no'.encode(), {}),
        ("a.tsv", "age\tcity\till\n31\tKöln\tno\n\ta, b\tyes\n40.5\t?\tno\n".encode(), {}),
        ("a.csv", "age;city;ill\n31;Köln;no\n-;a, b;yes\n40,5;null;no\n".encode(), {}),
        ("a.csv", "age#city#ill\n31#Köln#no\nx#a, b#yes\n40.5#.#no\n".encode(), {"delimiter": "#", "missing": "age=x"}),
        ("a.csv", 'age,city,ill\n31,Köln,no\n,"a, b",yes\n40.5,nan,no\n'.encode("latin-1"), {"encoding": "latin-1"}),
        ("a.csv.gz", gzip.compress('age,city,ill\n31,Köln,no\n,"a, b",yes\n40.5,,no\n'.encode(), mtime=0), {}),
    ],
)
def test_one_table_in_many_spellings(tmp_path, name, content, reading):
    assert cells_of(read_table(written(tmp_path, content, name), Reading(**reading))) == PLAIN


def test_parquet_is_read_like_csv(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {"age": [31, None, 40.5], "city": ["Köln", "a, b", None], "ill": ["no", "yes", "no"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert cells_of(read_table(tmp_path / "a.parquet")) == PLAIN


def test_columns_with_many_values_are_numbers_and_a_stray_text_is_found(tmp_path):
    rows = [f"{i / 7:.5f},{i % 3},{i}x,{'no' if i % 2 else 'yes'}" for i in range(6000)]
    table = read_table(written(tmp_path, "bmi,ward,code,ill\n" + "\n".join(rows)))
    assert table.columns["bmi"].values.tolist() == [float(f"{i / 7:.5f}") for i in range(6000)]
    assert look(table).kinds == {"bmi": "number", "ward": "number", "code": "id"}
    rows[5500] = "12;5,1,x,no"
    with pytest.raises(DataError, match=r"a\.csv, line 5502, column bmi: '12;5' is not a finite number"):
        read_table(written(tmp_path, "bmi,ward,code,ill\n" + "\n".join(rows)))


def test_minus_nine_is_missing_only_where_nothing_else_is_negative(tmp_path):
    table = read_table(written(tmp_path, "chol,temperature,ill\n-9,-9,no\n200,-20,yes\n180,4,no\n"))
    assert cells_of(table)["chol"] == [None, 200, 180] and cells_of(table)["temperature"] == [-9, -20, 4]
    looked = look(table)
    assert any("column chol: -9 is taken for a missing cell" in remark for remark in looked.remarks)
    agreed = agree({"a": facts_of(looked, np.arange(3), 1)}, missing="-1", min_count=1).schema
    new = read_table(written(tmp_path, "temperature,chol\n-9,-9\n", "new.csv"), Reading(missing=agreed.missing))
    assert agreed.missing == "-1,chol=-9" and cells_of(new) == {"temperature": [-9], "chol": [None]}


def test_what_cannot_be_learned_from_is_found_and_named(tmp_path):
    words = ["ache since monday", "went home late", "slept badly here", "no pain now"]
    lines = [
        f"{i + 100},p{i}-{i * 7},19{50 + i % 40}-03-0{1 + i % 9},{words[i % 4]} {i},{'AB'[i % 2]},{i * i % 23},"
        + ["no", "yes"][i % 2]
        for i in range(40)
    ]
    head = "nr,patient,born,note,code,bmi,ill"
    looked = look(read_table(written(tmp_path, "\n".join([head, *lines]))), label="ILL")
    assert looked.kinds == dict(nr="id", patient="id", born="date", note="text", code="leak", bmi="number")
    assert all(any(f"column {name}:" in remark for remark in looked.remarks) for name in head.split(",")[:5])
    with pytest.raises(DataError, match="no column is left"):
        look(looked.table, label="ill", ignore="bmi")


def rows_of_the_page() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").split("## Tables that are refused")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]
    return [
        [cell.strip().strip("`").replace("&#124;", "|") for cell in (row if len(row) == 5 else line_of(row))]
        for row in rows
    ]


def line_of(row: list[str]) -> list[str]:
    raise AssertionError(f"a row of the page has {len(row)} cells: {row}")


BAD = rows_of_the_page()


def test_the_page_has_thirty_kinds():
    assert len({row[0] for row in BAD}) >= 30 and len({row[4] for row in BAD}) >= 30


@pytest.mark.parametrize("row", BAD, ids=lambda row: row[0])
def test_bad_tables_are_refused_with_the_message_of_the_page(row, tmp_path):
    _, names, content, told, message = row
    for name, part in zip(names.split(), content.split(" + "), strict=True):
        part = part.replace("(20,000 times x)", "x" * 20_000)
        written(tmp_path, part.encode("latin-1").decode("unicode_escape").encode("latin-1"), name)
    data = ",".join(str(tmp_path / name) for name in names.split())
    with pytest.raises(CoterieError) as refused:
        look_at(RunConfig.parse({"task": "own", "data": data, **dict(o.split("=", 1) for o in told.split())}))
    place = str(tmp_path / names) if " " not in names else f"{tmp_path}/"
    assert str(refused.value).replace(place, "FILE" if " " not in names else "") == message


# --- any table -------------------------------------------------------------------------------------------------------

CELL = st.one_of(
    st.sampled_from(
        ["", "NA", "?", "-9", "0", "1", "yes", "no", "red", "1e3", "2020-01-01", "-inf", "=A1", "0,5", "1_0"]
    ),
    st.floats(-1e20, 1e20).map(repr),
    st.integers(-50, 50).map(str),
    st.text("abF ;.é", max_size=4),
)


@st.composite
def grids(draw: st.DrawFn) -> list[list[str]]:
    """A table of mixed columns, some of one kind, some of anything."""
    rows, width = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    kinds = st.sampled_from(
        [st.integers(0, 90).map(str), st.sampled_from(["F", "M", ""]), st.floats(-5, 5).map(repr), CELL]
    )
    columns = [draw(st.lists(draw(kinds), min_size=rows, max_size=rows)) for _ in range(width)]
    labels = draw(st.lists(st.sampled_from(["no", "yes", "7"]), min_size=rows, max_size=rows))
    return [*columns, labels]


@given(grids(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_any_table_has_a_true_schema_or_is_refused_by_its_place(grid, random):
    names = [f"c{i}" for i in range(len(grid) - 1)] + ["ill"]
    with tempfile.TemporaryDirectory() as home:
        found = []
        for order in (None, random):
            path = _file(home, grid, order)
            try:
                looked = look(read_table(path), label="ill")
                schema = agree({"a": facts_of(looked, np.arange(len(looked.table)), 1)}, min_count=1).schema
                found.append((schema, prepared(schema, looked.table)))
            except DataError as error:
                found.append(str(error))
                assert str(path) in str(error) or "label" in str(error) or "no column is left" in str(error)
                if "is not a finite number" in str(error) or "too large" in str(error) or "formula" in str(error):
                    line, column, cell = re.search(r"line (\d+), column (\w+): '?(.*?)'? is", str(error)).groups()
                    raw = grid[names.index(column)][int(line) - 2]
                    assert raw.strip() == cell or float(raw) == pytest.approx(float(cell), rel=1e-4)
    if isinstance(found[0], str):
        assert isinstance(found[1], str)
        return
    (schema, x), (other, y) = found
    assert (
        np.isfinite(x).all() and np.abs(x).max(initial=0) <= LIMIT and x.shape == (len(grid[0]), len(schema.features))
    )
    assert schema == other and np.array_equal(x, y)
    for column in schema.columns:
        cells = [cell.strip() for cell in grid[names.index(column.name)]]
        there = [cell for cell in cells if cell and cell.casefold() not in ("na", "?", "-", ".")]
        if column.kind == "number":
            assert all(math.isfinite(float(cell.replace(",", "."))) for cell in there)
        else:
            assert {_plain(category) for category in column.categories} <= {_plain(cell) for cell in there}


@given(st.lists(grids(), min_size=2, max_size=3), grids(), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_whatever_clients_agree_on_no_input_is_ever_nan(sites, new, min_count, random):
    """Also scaled at home, with noise, and for rows that nobody saw; and whatever the order of columns and clients is."""
    with tempfile.TemporaryDirectory() as home:
        found = []
        for turned in (False, True):
            tables, facts = {}, {}
            for i, grid in reversed(list(enumerate(sites))) if turned else enumerate(sites):
                try:
                    looked = look(read_table(_file(home, grid, random if turned else None)), label="ill", alone=False)
                except DataError:
                    continue
                tables[str(i)], facts[str(i)] = looked.table, facts_of(looked, np.arange(len(looked.table)), min_count)
            try:
                agreed = agree(dict(sorted(facts.items())), min_count=min_count)
            except DataError:
                return
            found.append(agreed.schema)
        assert found[0] == found[1]
        schema = found[0]
        rng = np.random.default_rng(1)
        with contextlib.suppress(DataError):
            tables["new"] = read_table(_file(home, new, None))
        for table in tables.values():
            for ready in (schema, None, "noisy"):
                try:
                    if ready is None:
                        ready = at_home(schema, table)
                    elif ready == "noisy":
                        ready = agree_noisy(schema.bare(), {"a": noisy_facts(schema.bare(), table, 3.0, rng)}, 3.0)
                    x = prepared(ready, table)
                except DataError as error:
                    assert "a.csv" in str(error) and "column" in str(error)
                    continue
                assert x.dtype == np.float32 and x.shape == (len(table), len(ready.features))
                assert np.isfinite(x).all() and np.abs(x).max(initial=0) <= LIMIT


def _file(home: str, grid: list[list[str]], random: Random | None) -> Path:
    """A table of these columns, in a random order if there is a `random`."""
    names = [f"c{i}" for i in range(len(grid) - 1)] + ["ill"]
    order = random.sample(range(len(grid)), len(grid)) if random else range(len(grid))
    path = Path(home, "a.csv")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[names[i] for i in order], *zip(*(grid[i] for i in order), strict=True)])
    return path


def _plain(cell: str) -> float | str:
    try:
        return float(cell.replace(",", ".")) if "_" not in cell else cell.casefold()
    except ValueError:
        return " ".join(cell.split()).casefold()


# --- agreeing and preparing ------------------------------------------------------------------------------------------


def told(tmp_path: Path, name: str, text: str, min_count: int = 1, **options) -> tuple[Table, Facts]:
    looked = look(read_table(written(tmp_path, text, f"{name}.csv")), label="ill", alone=False, **options)
    return looked.table, facts_of(looked, np.arange(len(looked.table)), min_count)


def sites(tmp_path: Path, rng: np.random.Generator) -> dict[str, tuple[Table, Facts]]:
    """Three sites with their columns in three orders."""
    found = {}
    for name, n, order in (("a", 40, [0, 1, 2, 3]), ("b", 25, [3, 1, 0, 2]), ("c", 31, [2, 0, 3, 1])):
        columns = {
            "Age": [f"{v:.1f}" for v in rng.normal(50, 9, n)],
            "sex": rng.choice(["F", "M", "?"], n, p=[0.4, 0.5, 0.1]).tolist(),
            "dose": [f"{v:.2f}" if v < 60 else "" for v in rng.lognormal(1, 1.5, n)],
            "ill": rng.choice(["no", "yes"], n).tolist(),
        }
        names = [list(columns)[i] for i in order]
        head = [f" {n.upper()} " if name == "b" else n for n in names]
        rows = zip(*(columns[n] for n in names), strict=True)
        found[name] = told(tmp_path, name, "\n".join(",".join(row) for row in (head, *rows)))
    return found


def test_inputs_are_what_scikit_learn_makes_of_all_rows_together(tmp_path):
    from sklearn.preprocessing import StandardScaler

    found = sites(tmp_path, np.random.default_rng(3))
    schema = agree({name: facts for name, (_, facts) in found.items()}).schema
    x = np.concatenate([prepared(schema, table) for table, _ in found.values()])
    assert [column.name for column in schema.columns] == ["Age", "dose", "sex"] and schema.classes == ("no", "yes")
    pooled = {k: np.concatenate([table.columns[k].values for table, _ in found.values()]) for k in ("age", "dose")}
    assert x[:, 0] == pytest.approx(StandardScaler().fit_transform(pooled["age"][:, None])[:, 0], abs=1e-5)
    logs = np.log1p(pooled["dose"])
    expected = (logs - np.nanmean(logs)) / np.nanstd(logs)
    there = ~np.isnan(expected)
    assert schema.columns[1].transform == "log" and schema.features[1:3] == ["dose", "dose is missing"]
    assert x[there, 1] == pytest.approx(expected[there], abs=1e-5) and x[:, 2].tolist() == (~there).tolist()
    assert abs(schema.columns[1].fill - np.nanmedian(pooled["dose"])) < 1.5
    male = np.concatenate([table.columns["sex"].coded(["F", "M"]) for table, _ in found.values()])
    share = (male == 1).sum() / (male >= 0).sum()
    column = x[male >= 0, 3] * math.sqrt(share * (1 - share)) + share
    assert column == pytest.approx(male[male >= 0], abs=1e-5)


@given(st.lists(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20), min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_joined_moments_are_those_of_all_values(groups):
    joined = Moments(count=0, mean=0.0, squares=0.0, cubes=0.0)
    for group in groups:
        joined = joined.joined(Moments.of(np.array(group)))
    every = np.concatenate([np.array(group) for group in groups])
    scale = max(1.0, float(np.abs(every).max()))
    assert joined.count == len(every) and joined.mean == pytest.approx(every.mean(), abs=1e-9 * scale)
    assert joined.squares == pytest.approx(((every - every.mean()) ** 2).sum(), rel=1e-6, abs=1e-6 * scale**2)
    assert joined.cubes == pytest.approx(((every - every.mean()) ** 3).sum(), rel=1e-6, abs=1e-6 * scale**3)


def test_rare_categories_and_few_numbers_are_told_to_nobody(tmp_path):
    rows = ["red,,no"] * 6 + ["blue,,yes"] * 5 + ["Turner syndrome,3.5,yes"] * 4
    _, facts = told(tmp_path, "a", "colour,marker,ill\n" + "\n".join(rows), min_count=5)
    said = facts.model_dump_json()
    assert "Turner" not in said and "3.5" not in said and facts.columns[0].counts == {"red": 6, "blue": 5}
    schema = agree({"a": facts}).schema
    assert (
        schema.columns[0].categories == ("blue", "red")
        and schema.left_out["marker"] == "no client has enough cells in it"
    )
    table = read_table(tmp_path / "a.csv")
    assert prepared(schema, table)[-1].tolist() == [0, 0, 1]  # blue, red, other


def test_the_majority_says_what_a_column_is_and_odd_ones_are_named(tmp_path):
    base = [f"{31 + 3 * i % 20},{200 + 7 * (i % 5)},{['no', 'yes'][i % 2]}" for i in range(20)]
    milli = [f"{31 + 3 * i % 20},{(200 + 7 * (i % 5)) / 38.7:.2f},{['no', 'yes'][i % 2]},x" for i in range(20)]
    files = {
        "a": "age,chol,ill\n" + "\n".join(base),
        "b": "chol,ill,age\n" + "\n".join(f"{c},{i},{a}" for a, c, i in (row.split(",") for row in base)),
        "c": "age,chol,ill,extra\n" + "\n".join(milli),
    }
    agreed = agree({name: told(tmp_path, name, text)[1] for name, text in files.items()})
    assert [column.name for column in agreed.schema.columns] == ["age", "chol"]
    assert agreed.schema.left_out == {"extra": "only c has it"}
    assert any("column chol: the middle value of client c is 5.5" in text for text in agreed.warnings)
    assert not any("column age" in text for text in agreed.warnings)


def test_a_schema_survives_its_text_and_a_broken_one_is_refused(tmp_path):
    found = sites(tmp_path, np.random.default_rng(4))
    schema = agree({name: facts for name, (_, facts) in found.items()}).schema
    assert Schema.from_json(schema.to_json(indent=2)) == schema and schema.is_prepared and not schema.bare().is_prepared
    for old, new in [
        ('"kind": "number"', '"kind": "numbers"'),
        ('"std": ', '"std": -'),
        ('"categories": ["F", "M"]', '"categories": ["F", "f"]'),
        ('"indicator": true', '"indicator": 3'),
        ('"fill": ', '"fill": NaN, "full": '),
        ('"label": "ill"', '"label": "age"'),
        ('"version": 1', '"version": 2'),
        ('"name": "Age"', '"name": "dose"'),
    ]:
        assert old in schema.to_json()
        with pytest.raises(DataError, match="not a schema of a table"):
            Schema.from_json(schema.to_json().replace(old, new, 1))


def test_a_told_schema_is_kept_and_an_order_is_a_number(tmp_path):
    text = "stage,unit,ill\n" + "\n".join(
        f"{['low', 'mid', 'high'][i % 3]},{i % 7},{['no', 'yes'][i % 2]}" for i in range(21)
    )
    table, _ = told(tmp_path, "a", text)
    stage = Column("Stage", "ordered", ("low", "mid", "high"))
    schema = Schema("ill", (stage, Column("unit", "number", unit="mg", range=(0.0, 6.0))), ("no", "yes"))
    ready = agree_told(schema, {"a": facts_by(schema, table, 5)}, 5).schema
    x = prepared(ready, table)
    assert ready.columns[1].unit == "mg" and ready.columns[1].mean == pytest.approx(3)
    assert x[:3, 0] == pytest.approx(np.array([-1, 0, 1]) / math.sqrt(2 / 3), abs=1e-6)


def test_noise_is_as_large_as_it_is_said_to_be_and_the_scale_is_about_right(tmp_path):
    rng = np.random.default_rng(5)
    lines = [
        f"{v:.1f},{c},{['no', 'yes'][i % 2]}"
        for i, (v, c) in enumerate(zip(rng.normal(50, 9, 5000), rng.choice(list("FM"), 5000), strict=True))
    ]
    table, _ = told(tmp_path, "a", "age,sex,ill\n" + "\n".join(lines))
    schema = Schema("ill", (Column("age", "number"), Column("sex", "yes/no", ("F", "M"))), ("no", "yes"))
    exact = noisy_facts(schema, table, 0.0, rng)
    drawn = [noisy_facts(schema, table, 4.0, rng) for _ in range(60)]
    away = np.array([np.array(d.columns[0].noisy) - exact.columns[0].noisy for d in drawn])
    assert away.std() == pytest.approx(4.0 * math.sqrt(2), rel=0.05) and drawn[0].rows == 1
    ready = agree_noisy(schema, {"a": drawn[0]}, 4.0 * math.sqrt(2))
    assert ready.columns[0].mean == pytest.approx(50, rel=0.2) and 5 < ready.columns[0].std < 20
    ranged = replace(schema, columns=(replace(schema.columns[0], range=(0.0, 100.0)), schema.columns[1]))
    ready = agree_noisy(ranged, {"a": noisy_facts(ranged, table, 4.0, rng)}, 4.0 * math.sqrt(2))
    assert ready.columns[0].mean == pytest.approx(50, abs=1) and ready.columns[0].std == pytest.approx(9, abs=1.5)


def test_a_site_may_be_scaled_by_itself_and_strange_cells_are_told(tmp_path):
    found = sites(tmp_path, np.random.default_rng(6))
    schema = agree({name: facts for name, (_, facts) in found.items()}).schema
    x = prepared(at_home(schema, found["b"][0]), found["b"][0])
    assert x[:, 0].mean() == pytest.approx(0, abs=1e-5) and x[:, 0].std() == pytest.approx(1, abs=1e-5)
    new = read_table(written(tmp_path, "dose,age,sex\n2,430,F\n1e14,50,X\n", "new.csv"))
    assert np.isfinite(prepared(schema, new)).all()
    assert [(cell.line, cell.column) for cell in outside(schema, new)] == [(2, "Age"), (3, "dose"), (3, "sex")]
    assert outside(schema, new)[2].text == "'X' is none of F, M, and counts as missing"


def test_what_was_rare_in_training_is_not_far_from_it(tmp_path):
    """A yes in a hundred is ten deviations away, and was seen."""
    table, facts = told(
        tmp_path, "a", "rare,ill\n" + "\n".join(f"{int(i % 100 == 7)},{'ny'[i % 2]}" for i in range(200))
    )
    schema = agree({"a": facts}).schema
    assert schema.columns[0].kind == "yes/no" and outside(schema, table) == []


def test_what_the_model_has_is_asked_of_new_rows_without_talk_of_other_clients(tmp_path):
    found = sites(tmp_path, np.random.default_rng(8))
    schema = agree({name: facts for name, (_, facts) in found.items()}).schema
    for text, message in (
        (
            "sex,age\nF,3\n",
            "has no column 'dose', a number that the model has. Add it (its cells may be empty), or rename",
        ),
        ("sex,age,dose\nF,old,2\n", "'old' is not a number, and the model has numbers in this column. Mend it, or say"),
        ("sex,age,dose\n1,3,2\n", "has numbers, and the model has a yes/no of F, M. Write the same words, or rename"),
    ):
        with pytest.raises(DataError) as refused:
            prepared(schema, read_table(written(tmp_path, text)), new=True)
        assert message in str(refused.value) and "--ignore" not in str(refused.value)


def test_a_spreadsheet_tells_its_delimiter_above_the_names(tmp_path):
    table = read_table(written(tmp_path, "SEP=;\r\nage;dose\r\n31;1,5\r\n32;x\r\n"))
    assert list(table.columns) == ["age", "dose"] and table.lines.tolist() == [3, 4]
    assert table.columns["dose"].texts == ("1,5", "x") and table.columns["dose"].decimal == ","


def test_words_among_numbers_are_remarked(tmp_path, caplog):
    cells = ["1.5", "2.5", "<3", "4.5"]
    text = "dose,stage,ill\n" + "\n".join(
        f"{cells[i % 4]},{['I', 'II', '3'][i % 3]},{'ny'[i // 4 % 2]}" for i in range(40)
    )
    keys = {"num_server_rounds": 1, "num_clients": 2, "run_dir": tmp_path / "run", "workers": 0, "progress": False}
    coterie.run("fedavg", "own", str(written(tmp_path, text)), label="ill", **keys)
    (said,) = [message for message in caplog.messages if "numbers and words" in message]
    assert "column dose: has numbers and words, such as '<3', and is taken for categories" in said


def test_a_told_range_is_watched(tmp_path, caplog):
    text = "age,dose,ill\n" + "\n".join(f"{20 + i * 7 % 31},{i % 5},{'ny'[i % 2]}" for i in range(30))
    file = written(tmp_path, text.replace("\n27,", "\n270,"))
    schema = Schema("ill", (Column("age", "number", range=(0.0, 120.0)), Column("dose", "number")), ("n", "y"))
    (tmp_path / "schema.json").write_text(schema.to_json())
    keys = {"num_server_rounds": 1, "num_clients": 2, "run_dir": tmp_path / "run", "workers": 0, "progress": False}
    done = coterie.run("fedavg", "own", str(file), table_schema=str(tmp_path / "schema.json"), **keys)
    assert f"{file}, line 3, column age: 270 is outside of 0 to 120" in caplog.messages
    ready = Schema.from_json((done.path / "schema.json").read_text())
    new = read_table(written(tmp_path, "age,dose\n119,3\n-1,2\n130,900\n", "new.csv"))
    assert str(outside(ready, new)[0]) == ("line 3, column age: -1 is outside of 0 to 120; 2 such cells")
    assert [(cell.line, cell.column) for cell in outside(ready, new)] == [(3, "age"), (4, "dose")]


def test_remarks_on_all_files_are_made_once(tmp_path):
    rows = "".join(f"p{i},{20 + i * 7 % 31},{'-9' if i % 5 == 0 else i % 7},{'ny'[i % 2]}\n" for i in range(30))
    for name, head in (("a", "Patient ID,age,crp,ill"), ("b", "patient id,age,CRP,ill")):
        written(tmp_path, f"{head}\n{rows}", f"{name}.csv")
    written(tmp_path, "id,age,crp,ill,Patient Id\n" + rows.replace("\n", ",x\n"), "c.csv")
    _, of_one, of_all = look_at(RunConfig.parse({"task": "own", "data": str(tmp_path), "label": "ill"}))
    remarks = [*of_one, *of_all]
    assert [remark for remark in remarks if "crp" in remark] == [
        "column crp: -9 is taken for a missing cell; nothing else is negative"
    ]
    assert [remark for remark in remarks if "every row has another" in remark] == [
        f"{tmp_path}/c.csv, column id: looks like an id: every row has another; left out",
        "column Patient ID: looks like an id: every row has another; left out",
    ]


def test_files_give_clients_their_names(tmp_path):
    for name in ("north.csv", "St. Anne.csv.gz", "notes.md"):
        written(tmp_path, "age,ill\n1,no\n", name)
    assert list(named_files(str(tmp_path))) == ["St.-Anne", "north"]
    assert named_files(f"x={tmp_path}/north.csv, y={tmp_path}/north.csv").keys() == {"x", "y"}
    twice = f"{tmp_path}/north.csv,{tmp_path}/north.csv"
    for data, message in ((twice, "two clients would be called 'north'"), ("a b=n.csv,c.csv", "no name of a client")):
        with pytest.raises(DataError, match=message):
            named_files(data)
    assert key(" Chest  Pain ") == "chestpain"


@pytest.mark.parametrize("values", [0, 1, 2, 3, 4])
def test_most_clients_say_what_the_label_is_and_the_others_are_refused_by_name(tmp_path, values):
    """Of four clients some have values and the others classes; without a majority of values they are classes."""
    facts = {}
    for i in range(4):
        cells = [f"{0.31 * row:.2f}" if i < values else ["no", "yes"][row % 2] for row in range(30)]
        text = "age,ill\n" + "\n".join(f"{20 + row * 7 % 31},{cell}" for row, cell in enumerate(cells))
        looked = look(read_table(written(tmp_path, text, f"{i}.csv")), label="ill")
        facts[str(i)] = facts_of(looked, np.arange(30), 1)
    agreed = agree(facts)
    assert agreed.schema.regression == (values > 2)
    odd = {str(i) for i in range(4) if (i < values) != (values > 2)}
    assert set(agreed.refused) == odd and all("its label 'ill' is a" in why for why in agreed.refused.values())
    assert agreed.schema.facts["clients"] == 4 - len(odd)


def test_one_client_cannot_add_a_class_to_those_that_are_counted(tmp_path):
    facts = {}
    for name, third in (("a", "no"), ("b", "no"), ("c", "maybe")):
        text = "age,ill\n" + "\n".join(f"{20 + row * 7 % 31},{['no', 'yes', third][row % 3]}" for row in range(30))
        facts[name] = facts_of(look(read_table(written(tmp_path, text)), label="ill"), np.arange(30), 1)
    assert agree(facts, classes="2").schema.classes == ("no", "yes")
    assert set(agree(facts).schema.classes) == {"no", "yes", "maybe"}
