"""`coterie predict`: the same answers as in the run that made the model, for all kinds of files, and clear refusals."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_diabetes, load_iris

from coterie.client.data import load_client_data
from coterie.strategies.registry import parse_config
from coterie.tasks.models import build_network
from coterie.tasks.own import describe, load_inputs
from coterie.tasks.personal import load_personal, personal_facts
from coterie.tasks.samples import DataError, Dataset
from coterie.tasks.tensors import stored_arrays, write_arrays

NETWORK = """
import torch
def build(input_shape, num_outputs):
    return torch.nn.Flatten(), torch.nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], num_outputs)
"""


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def trained(coterie, *arguments: object) -> Path:
    code, _, err = coterie("run", "--workers", 0, "--local-epochs", 1, "--run-dir", "run", *arguments)
    assert code == 0, err
    return Path("run")


@pytest.mark.parametrize("model", ["mlp", "net.py"])
def test_a_personal_model_says_what_it_said_in_the_run(coterie, model):
    Path("net.py").write_text(NETWORK)
    run = trained(coterie, "--strategy", "fedper", "--num-clients", 4, "--num-server-rounds", 3, "--model", model)
    config, _ = parse_config(json.loads((run / "config.json").read_text()))
    result = json.loads((run / "result.json").read_text())["models"]["personal"]["clients"]
    for client in ("0", "2"):
        data = load_client_data({"partition-id": int(client), "num-partitions": 4}, config, client)
        np.savez("new.npz", x=data.dataset.x[data.split.test])
        network = ("--network", "net.py") if model == "net.py" else ()
        file = run / "models" / f"{client}.safetensors"
        assert coterie("predict", file, "new.npz", "--output", "said.csv", *network) == (0, "", "")
        said = rows(Path("said.csv").read_text())
        assert [row["sample"] for row in said] == [str(i) for i in range(len(data.split.test))]
        right = np.array([int(row["label"]) for row in said]) == data.dataset.y[data.split.test]
        assert right.mean() == pytest.approx(result[client]["accuracy"])
        assert all(0.1 <= float(row["probability"]) <= 1 for row in said)


def test_names_of_labels_and_tables(coterie):
    iris = load_iris()
    table = [[*row, iris.target_names[label]] for row, label in zip(iris.data.tolist(), iris.target, strict=True)]
    with Path("iris.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "d", "label"], *table])
    own = ("--task", "own", "--data", "iris.csv", "--partition", "iid", "--num-clients", 2, "--num-server-rounds", 60)
    run = trained(coterie, *own, "--strategy", "fedavg", "--learning-rate", 0.1, "--batch-size", 8)
    with Path("new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "d"], *iris.data[::10].tolist()])
    answers = []
    for data in ("new.csv", "iris.csv"):  # without labels, and with some that are not looked at
        code, out, _ = coterie("predict", run / "models" / "1.safetensors", data)
        assert code == 0
        answers.append([row["label"] for row in rows(out)])
    assert answers[0] == answers[1][::10]
    assert np.mean(np.array(answers[1]) == iris.target_names[iris.target]) > 0.9


def test_new_tables_may_be_written_in_another_way_and_the_threshold_is_that_of_the_run(coterie):
    ages = [20 + 7 * i % 61 for i in range(80)]
    lines = [
        f"{age}.5,{'FM'[i % 2]},{'Köln' if i % 3 else 'Bonn'},{'yes' if age > 50 else 'no'}"
        for i, age in enumerate(ages)
    ]
    Path("a.csv").write_text("age,sex,city,ill\n" + "\n".join(lines))
    own = ("--task", "own", "--data", "a.csv", "--label", "ill", "--partition", "iid", "--num-clients", 2)
    run = trained(coterie, *own, "--strategy", "fedavg", "--num-server-rounds", 10, "--threshold", 0.2)
    file = run / "models" / "1.safetensors"
    Path("new.csv").write_bytes("city#age#sex\nKöln#42,5#F\nBonn#-7#X\n".encode("latin-1"))
    code, _, err = coterie("predict", file, "new.csv", "--delimiter", "#")
    assert code == 2 and "--encoding latin-1" in err
    told = ("--encoding", "latin-1", "--delimiter", "#", "--decimal", ",", "--missing", "age=-7")
    code, out, err = coterie("predict", file, "new.csv", *told)
    assert code == 0 and err == "new.csv, line 3, column sex: 'X' is none of F, M, and counts as missing\n"
    Path("same.csv").write_text("age,sex,city\n42.5,F,Köln\n,,Bonn\n")
    assert coterie("predict", file, "same.csv")[1] == out
    ill = [float(row["yes"]) for row in rows(coterie("predict", file, "a.csv")[1])]
    labels = [row["label"] for row in rows(coterie("predict", file, "a.csv")[1])]
    assert labels == ["yes" if value > 0.2 else "no" for value in ill]
    assert any(0.2 < value < 0.5 for value in ill)


def test_values_of_a_regression(coterie):
    x, y = load_diabetes(return_X_y=True)
    x, y = (x / x.std(axis=0)).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
    np.savez("own.npz", x=x, y=y)
    own = ("--task", "own", "--data", "own.npz", "--partition", "iid", "--num-clients", 2, "--num-server-rounds", 10)
    run = trained(coterie, *own, "--strategy", "fedavg", "--learning-rate", 0.02)
    code, out, _ = coterie("predict", run / "models" / "0.safetensors", "own.npz")
    said = np.array([float(row["value"]) for row in rows(out)])
    model, _ = stored_arrays(run / "models" / "0.safetensors")
    assert code == 0
    expected = x @ model["classifier.weight"][...][0] + model["classifier.bias"][...]
    assert said == pytest.approx(expected, abs=1e-4)
    assert np.corrcoef(said, y)[0, 1] > 0.5
    low, high = (np.array([float(row[name]) for row in rows(out)]) for name in ("low", "high"))
    assert high - said == pytest.approx(said - low, abs=1e-4) and 0.85 < ((low < y) & (y < high)).mean() <= 1
    code, out, err = coterie("predict", run / "models" / "0.safetensors", "own.npz", "--coverage", 0.99)
    assert (
        code == 0
        and rows(out)[0]["high"] == "inf"
        and "too few for an interval with coverage 0.99; 99 are needed" in err
    )


@pytest.mark.parametrize(("buffers", "group_norm"), [("average", False), ("drop", False), ("average", True)])
def test_normalisation_layers_are_those_that_were_trained(buffers, group_norm, tmp_path):
    x = np.random.default_rng(1).integers(0, 256, (5, 3, 16, 16)).astype(np.uint8)
    dataset = Dataset(x, np.arange(5), 5, np.full(3, 100.0, np.float32), np.full(3, 50.0, np.float32))
    network = build_network("cnn-bn", (3, 16, 16), 5, seed=3, buffers=buffers, group_norm=group_norm)
    network.load({part: value + np.abs(value) for part, value in network.dump().items() if part != "counters"})
    facts = personal_facts(describe(dataset), dataset, "cnn-bn", buffers, group_norm=group_norm)
    arrays = {name: value.numpy() for name, value in network.state_dict().items()}
    write_arrays(tmp_path / "a.safetensors", arrays, facts)
    expected = torch.softmax(network.eval()((torch.from_numpy(x).float() - 100) / 50), dim=1)
    found = load_personal(tmp_path / "a.safetensors").predict(x)
    assert found == pytest.approx(expected.detach().numpy(), abs=1e-5)


def test_folders_of_images_may_have_sub_folders_or_none_and_any_size(tmp_path):
    for name, size, grey in (("a.png", 8, 10), ("cat/b.PNG", 16, 200)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (size, size), grey).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    x, names = load_inputs(tmp_path, (3, 4, 4))
    assert names == ["a.png", "cat/b.PNG"] and x.shape == (2, 3, 4, 4) and x.dtype == np.uint8
    assert set(x[0].ravel().tolist()) == {10} and set(x[1].ravel().tolist()) == {200}
    with pytest.raises(DataError, match="a sample is 20 numbers"):
        load_inputs(tmp_path, (20,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("a,b\n1,2\n", [[1, 2]]),
        ("1,2,cat\n3,4,dog\n", [[1, 2], [3, 4]]),  # a label without a name
        ("owner,a,label,b\nnorth,1,cat,2\n", [[1, 2]]),
    ],
)
def test_columns_of_labels_and_owners_are_left_out(text, expected, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    x, names = load_inputs(tmp_path / "a.csv", (2,))
    assert x.tolist() == expected and names == [str(i) for i in range(len(expected))]


def test_wrong_files_are_refused(coterie):
    Path("net.py").write_text(NETWORK)
    run = trained(coterie, "--strategy", "local", "--num-clients", 2, "--num-server-rounds", 1, "--model", "net.py")
    file = run / "models" / "0.safetensors"
    np.savez("small.npz", x=np.zeros((3, 4, 4), np.uint8))
    np.savez("nan.npz", x=np.full((1, 8, 8), np.nan))
    np.savez("none.npz", y=np.zeros(3))
    np.savez("good.npz", x=np.zeros((1, 8, 8), np.uint8))
    Path("columns.csv").write_text("1,2,3\n")
    Path("bad.safetensors").write_bytes(b"\xff" * 100)
    arrays, facts = stored_arrays(file)
    write_arrays(Path("other.safetensors"), {k: v[...] for k, v in arrays.items()}, {**facts, "model": "mlp"})
    write_arrays(Path("bare.safetensors"), {"a": np.zeros(3)}, {})
    write_arrays(Path("labels.safetensors"), {"a": np.zeros(3)}, {**facts, "labels": '["cat"]'})
    for lost in ("model", "input-shape", "mean"):
        write_arrays(Path(f"{lost}.safetensors"), {"a": np.zeros(3)}, {**facts, lost: ""})
    network = ("--network", "net.py")
    for arguments, reason in [
        ((file, "good.npz"), "its network was defined in"),
        ((file, "good.npz", "--network", "nix.py"), "there is no such file"),
        ((file, "small.npz", *network), "3 samples of shape (1, 4, 4); there must be some, of shape (1, 8, 8)"),
        ((file, "nan.npz", *network), "x has nan in row 0"),
        ((file, "none.npz", *network), "no 'x'"),
        ((file, "columns.csv", *network), "there must be some, of shape (1, 8, 8)"),
        ((file, "nix.npz", *network), "there is no such .npz, .csv or .py file or folder"),
        (("nix.safetensors", "good.npz"), "not a personal model of Coterie"),
        (("bad.safetensors", "good.npz"), "not a personal model of Coterie"),
        (("bare.safetensors", "good.npz"), "not a personal model of Coterie"),
        (("model.safetensors", "good.npz"), "model = ''"),
        (("input-shape.safetensors", "good.npz"), "not a personal model of Coterie"),
        (("mean.safetensors", "good.npz"), "not a personal model of Coterie"),
        (("labels.safetensors", "good.npz"), "1 labels for 10 outputs"),
        (("other.safetensors", "good.npz"), "its numbers are not those of the network 'mlp'"),
    ]:
        code, out, err = coterie("predict", *arguments, "--output", "said.csv")
        assert code == 2 and reason in err and out == "" and "Traceback" not in err, arguments
        assert not Path("said.csv").exists()


@pytest.mark.parametrize("command", ["predict", "report", "keys"])
def test_a_missing_argument_is_named(coterie, command):
    code, _, err = coterie(command)
    assert code == 2 and "Missing argument" in err
