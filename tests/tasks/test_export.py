"""What leaves Coterie: ONNX files that say the same, and values with intervals that hold what they promise."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli.main import main
from coterie.tasks.agreeing import agree
from coterie.tasks.facts import facts_of
from coterie.tasks.kinds import CATEGORY, look
from coterie.tasks.models import build_network
from coterie.tasks.personal import PersonalModel, conformal_radius, load_personal, residuals_of
from coterie.tasks.reading import read_table
from coterie.tasks.tensors import write_arrays
from coterie.tasks.training import Samples

CITIES = ("Köln", "Bonn", "Ulm", "Jena")


def table(path, rng, rows: int, label: str, odd: bool = False):
    """Numbers with gaps, skewed ones, yes/no and categories; `odd` ones have what training has not."""
    lines = ["age,income,sex,city," + label]
    for _ in range(rows):
        age = "?" if rng.random() < 0.1 else f"{rng.normal(50, 10):.3f}"
        city = "Rom" if odd and rng.random() < 0.2 else "" if rng.random() < 0.1 else CITIES[rng.integers(4)]
        sex = "X" if odd and rng.random() < 0.2 else "FM"[rng.integers(2)]
        last = f"{rng.normal(7, 3):.2f}" if label == "dose" else ["no", "yes"][rng.integers(2)]
        lines.append(f"{age},{math.exp(rng.normal(5, 2) + 20 * odd * (rng.random() < 0.1)):.2f},{sex},{city},{last}")
    path.write_text("\n".join(lines) + "\n")
    return path


def model_file(tmp_path, rng, label: str, model: str):
    looked = look(read_table(table(tmp_path / "a.csv", rng, 200, label)), label=label)
    schema = agree({"a": facts_of(looked, np.arange(200), 1)}).schema
    width, outputs = len(schema.features), max(1, len(schema.classes))
    network = build_network(model, (width,), outputs, seed=2)
    arrays = {name: value.numpy() for name, value in network.state_dict().items()}
    facts = {
        **{"kind": "regression" if schema.regression else "classification", "model": model, "outputs": str(outputs)},
        **{"input-shape": str(width), "labels": json.dumps(schema.classes), "table": schema.to_json()},
        **{"mean": json.dumps([0.0] * width), "std": json.dumps([1.0] * width)},
    }
    write_arrays(tmp_path / "m.safetensors", arrays, facts)
    return tmp_path / "m.safetensors"


def as_numbers(facts: dict, path) -> np.ndarray:
    """A table by the JSON file alone, as a stranger would do it."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    found = np.full((len(lines) - 1, len(facts["columns"])), np.nan)
    for i, column in enumerate(facts["columns"]):
        for row, cells in enumerate(lines[1:]):
            cell = cells[lines[0].index(column["name"])]
            if cell in ("", "?"):
                continue
            if column["kind"] == "number":
                found[row, i] = float(cell)
            elif cell in column["categories"]:
                found[row, i] = column["categories"].index(cell)
            elif column["kind"] == CATEGORY:
                found[row, i] = len(column["categories"])
    return found


@pytest.mark.parametrize(("label", "model"), [("ill", "mlp"), ("dose", "linear")])
def test_onnxruntime_says_what_predict_says(tmp_path, label, model):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(1)
    path = model_file(tmp_path, rng, label, model)
    with pytest.raises(SystemExit) as ended:
        main(["export", str(path), "--onnx", str(tmp_path / "m.onnx")])
    assert not ended.value.code
    new = table(tmp_path / "new.csv", rng, 60, label, odd=True)
    facts = json.loads((tmp_path / "m.onnx.json").read_text())
    expected = load_personal(path).predict(new)
    (said,) = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": as_numbers(facts, new)})
    assert said.shape == expected.shape and said == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert facts["labels"] == (["no", "yes"] if label == "ill" else []) and np.ptp(said, axis=0).max() > 0.01


def test_images_are_normalised_inside_the_file(tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from coterie.tasks.export import export_onnx

    network = build_network("lenet5", (3, 16, 16), 4, seed=1)
    mean, std = np.array([90.0, 100.0, 110.0], np.float32), np.full(3, 40.0, np.float32)
    model = PersonalModel(network, (3, 16, 16), mean, std, tuple("abcd"))
    facts = json.loads(export_onnx(model, tmp_path / "m.onnx").read_text())
    x = np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16)).astype(np.float32)
    (said,) = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    assert said == pytest.approx(model.predict(x), abs=1e-5) and facts["shape"] == [3, 16, 16]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0.05, 0.99))
def test_a_radius_covers_each_residual_left_out_often_enough(residuals, coverage):
    """Exchangeable: of n + 1 residuals each is the new one equally often, and must lie inside in this share of cases."""
    values = np.array(residuals)
    inside = [values[i] <= conformal_radius(np.delete(values, i), coverage) for i in range(len(values))]
    assert np.mean(inside) >= coverage - 1e-9
    if len(set(residuals)) == len(residuals):
        assert np.mean(inside) <= coverage + 1 / len(values) + 1e-9


def test_intervals_of_values_hold_in_their_own_units():
    """A linear model of noisy values: nine of ten new ones lie inside, whatever the noise."""
    rng = np.random.default_rng(4)
    network = build_network("linear", (3,), 1, seed=0)
    network.load({"classifier": np.array([1.0, -2.0, 0.5, 3.0], np.float32)})
    inside = []
    for _ in range(40):
        x = rng.normal(size=(299, 3)).astype(np.float32)
        y = (x @ np.array([1.0, -2.0, 0.5]) + 3 + rng.exponential(2, 299)).astype(np.float32)
        told = json.loads(residuals_of(network, Samples(torch.from_numpy(x[:99]), torch.from_numpy(y[:99])), 1.0))
        assert len(told) == 99
        model = PersonalModel(network, (3,), np.zeros(3, np.float32), np.ones(3, np.float32), (), None, np.array(told))
        low, high = model.interval(model.predict(x[99:]), 0.9)
        inside.append(((low <= y[99:]) & (y[99:] <= high)).mean())
    assert abs(np.mean(inside) - 0.9) < 4 * np.std(inside) / np.sqrt(40)
    assert math.isinf(model.interval(np.zeros(1), 0.995)[1][0])  # 199 would be needed
