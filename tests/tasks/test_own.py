"""Bring your own data: every kind of file, and a clear refusal of every wrong one."""

import io
import logging
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.tasks.datasets import DataError, load_dataset
from coterie.tasks.own import describe, load_own
from coterie.tasks.spec import TaskSpec


def save(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


# --- .npz ------------------------------------------------------------------------------------------------------------


def test_a_table_with_owners_and_constants(tmp_path):
    path = save(
        tmp_path / "a.npz",
        x=np.arange(12).reshape(4, 3),
        y=np.array([0, 2, 1, 2]),
        owner=np.array(["north", "south", "north", "east"]),
        mean=np.array([1.0, 2.0, 3.0]),
        std=2.0,
    )
    data = load_own(path)
    assert data.x.dtype == np.float32 and data.x.tolist() == np.arange(12).reshape(4, 3).tolist()
    assert data.y.tolist() == [0, 2, 1, 2] and data.num_classes == 3
    assert data.owners == ("east", "north", "south") and data.owner.tolist() == [1, 2, 1, 0]
    assert data.mean.tolist() == [1, 2, 3] and data.std.tolist() == [2, 2, 2]
    assert describe(data) == TaskSpec("own", str(path), "classification", (3,), 3, ("east", "north", "south"))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 6), (1, 8, 6)),
        ((5, 8, 6, 3), (3, 8, 6)),
        ((5, 3, 8, 6), (3, 8, 6)),
        ((5, 3, 8, 3), (3, 8, 3)),
        ((5, 7), (7,)),
    ],
)
def test_images_may_have_their_channels_first_last_or_not_at_all(shape, expected, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    data = load_own(save(tmp_path / "a.npz", x=x, y=np.array([0, 1, 0, 1, 1])))
    assert data.x.shape == (5, *expected)
    assert data.x.dtype == (np.uint8 if len(expected) == 3 else np.float32)
    if shape == (5, 8, 6, 3):
        assert data.x[4, 2, 7, 5] == x[4, 7, 5, 2]
    assert set(data.mean) == ({127.5} if len(expected) == 3 else {0.0})
    assert set(data.std) == ({127.5} if len(expected) == 3 else {1.0})


def test_real_numbers_are_regression(tmp_path):
    path = save(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([0.5, 1.0, 2.0]))
    assert load_own(path).num_classes == 0 and load_own(path).y.dtype == np.float32
    assert describe(load_own(path)).num_outputs == 1
    whole = save(tmp_path / "b.npz", x=np.zeros((3, 2)), y=np.array([[0], [1], [4]]))
    assert load_own(whole, classes="regression").num_classes == 0
    assert load_own(whole).num_classes == 5


def test_clients_with_other_labels_agree_by_classes(tmp_path):
    one = save(tmp_path / "one.npz", x=np.zeros((2, 2)), y=np.array(["cat", "dog"]))
    two = save(tmp_path / "two.npz", x=np.zeros((2, 2)), y=np.array(["bird", "dog"]))
    a, b = (load_own(path, classes="cat, dog,bird") for path in (one, two))
    assert a.label_names == b.label_names == ("cat", "dog", "bird")
    assert a.y.tolist() == [0, 1] and b.y.tolist() == [2, 1]
    numbers = save(tmp_path / "three.npz", x=np.zeros((2, 2)), y=np.array([0, 1]))
    assert load_own(numbers, classes="10").num_classes == 10
    assert load_own(numbers, classes="cat,dog,bird").num_classes == 3


def test_names_that_were_found_are_reported(tmp_path, caplog):
    path = save(tmp_path / "one.npz", x=np.zeros((2, 2)), y=np.array(["dog", "cat"]))
    with caplog.at_level(logging.WARNING):
        data = load_own(path)
    assert data.label_names == ("cat", "dog") and data.y.tolist() == [1, 0]
    assert "cat,dog" in caplog.text


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.zeros((2, 2))}, {}, "no 'y'"),
        ({"y": np.zeros(2)}, {}, "no 'x'"),
        ({"x": np.zeros(2), "y": np.array([0, 1])}, {}, "x has shape \\(2,\\)"),
        ({"x": np.zeros((2, 1, 1, 1, 1)), "y": np.array([0, 1])}, {}, "x has shape"),
        ({"x": np.array([["a"], ["b"]]), "y": np.array([0, 1])}, {}, "x must be numbers"),
        ({"x": np.array([[0.0], [np.nan]]), "y": np.array([0, 1])}, {}, "x has nan in row 1, column 0"),
        ({"x": np.array([[0.0], [1e300]]), "y": np.array([0, 1])}, {}, "x has inf in row 1, column 0"),
        ({"x": np.zeros((2, 1)), "y": np.array([0.5, np.nan])}, {}, "y has nan in row 1"),
        ({"x": np.zeros((2, 1)), "y": np.array([0.0, np.nan])}, {"classes": "2"}, "y has nan in row 1"),
        ({"x": np.zeros((3, 1)), "y": np.array([0, 1])}, {}, "3 samples in x"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 5])}, {"classes": "3"}, "label 5 in row 1 is outside 0..2"),
        ({"x": np.zeros((2, 1)), "y": np.array([-1, 1])}, {}, "label -1 in row 0"),
        ({"x": np.zeros((2, 1)), "y": np.array([0.5, 1])}, {"classes": "3"}, "whole numbers"),
        ({"x": np.zeros((2, 1)), "y": np.array(["a", "b"])}, {"classes": "3"}, "give all their names"),
        ({"x": np.zeros((2, 1)), "y": np.array(["a", "b"])}, {"classes": "a,c"}, "label 'b' is not among"),
        ({"x": np.zeros((2, 1)), "y": np.array(["a", "b"])}, {"classes": "regression"}, "regression needs numbers"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1])}, {"classes": "a,a"}, "different names"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1])}, {"classes": "a,"}, "different names"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 0])}, {}, "only one class. Set classes"),
        ({"x": np.zeros((2, 1)), "y": np.array(["a", "a"])}, {}, "only one class. Set classes"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1])}, {"input_shape": "2"}, "input-shape says \\(2,\\)"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1])}, {"input_shape": "big"}, "input-shape is 'big'"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1])}, {"input_shape": "3,0,3"}, "input-shape is '3,0,3'"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1]), "owner": np.array([0.5, 1])}, {}, "owner must be"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, 1]), "owner": np.array([1])}, {}, "owner must be"),
        ({"x": np.zeros((2, 3)), "y": np.array([0, 1]), "mean": np.zeros(2)}, {}, "mean and std must be one number"),
        ({"x": np.zeros((2, 3)), "y": np.array([0, 1]), "std": 0.0}, {}, "every std above 0"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, np.int64)}, {"classes": "2"}, "no samples"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, np.int64)}, {}, "no samples"),
        ({}, {}, "no 'x'"),
    ],
)
def test_wrong_arrays_are_refused_by_the_name_of_the_file(arrays, options, message, tmp_path):
    path = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load_own(path, **options)
    assert str(path) in str(caught.value) or "input-shape is" in message or "different names" in message


class Bomb:
    """Its unpickling leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_nothing_is_unpickled(tmp_path):
    bomb = np.array([Bomb(tmp_path / "boom")], dtype=object)
    np.savez(tmp_path / "a.npz", x=bomb, y=np.array([0]))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(DataError, match=f"{name}: not a readable .npz of plain arrays"):
            load_own(tmp_path / name)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello"])
def test_a_damaged_npz_is_refused(content, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz: not a readable"):
        load_own(tmp_path / "a.npz")


def test_a_single_array_is_not_an_npz(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="a single array"):
        load_own(tmp_path / "a.npz")


def test_unknown_and_missing_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_own(tmp_path / "none.npz")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(DataError, match=r"unknown kind of file '\.xlsx'"):
        load_own(tmp_path / "a.xlsx")


def test_load_dataset_reads_own_data(tmp_path):
    path = save(tmp_path / "a.npz", x=np.zeros((2, 4)), y=np.array([0, 1]))
    data = load_dataset("own", "unused", data=str(path), classes="7", input_shape="4")
    assert data.num_classes == 7


# --- tables (more in test_tables.py) ----------------------------------------------------------------------------------


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.csv"
    path.write_text(text)
    return path


def test_a_csv_without_names_has_its_label_last(tmp_path):
    data = load_own(csv_file(tmp_path, "1,2.5,0\n3,4,1\n\n5,7,1\n"))
    assert np.allclose(data.x, [[-1.2247, -1.0690], [0, -0.2673], [1.2247, 1.3363]], atol=1e-4)
    assert data.y.tolist() == [0, 1, 1] and data.num_classes == 2


def test_the_label_column_and_the_owner_column_are_found_by_name(tmp_path):
    text = "\ufeffLabel ,age,owner,height\nyes,30,berlin,1.8\nno,40,paris,1.7\n"
    data = load_own(csv_file(tmp_path, text), classes="no,yes")
    assert np.allclose(data.x, [[-1, 1], [1, -1]])  # two values are a yes/no, scaled
    assert data.y.tolist() == [1, 0] and data.owners == ("berlin", "paris") and data.owner.tolist() == [0, 1]


def test_a_target_column_and_a_last_column_of_fractions_are_regression(tmp_path):
    data = load_own(csv_file(tmp_path, "target,a\n1,5\n3,6\n"))
    assert data.num_classes == 0 and data.y.tolist() == [-1, 1]  # scaled
    assert load_own(csv_file(tmp_path, "a,b\n1,0.5\n2,6\n")).num_classes == 0


def test_labels_that_look_like_numbers_can_be_names(tmp_path):
    data = load_own(csv_file(tmp_path, "a,label\n1,7\n2,3\n"), classes="3,7")
    assert data.y.tolist() == [1, 0] and data.label_names == ("3", "7")


# --- image folders ---------------------------------------------------------------------------------------------------


def picture(path: Path, colour, size=(6, 4), mode="RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_a_folder_of_images(tmp_path):
    picture(tmp_path / "dog" / "1.png", (1, 2, 3))
    picture(tmp_path / "cat" / "1.png", (4, 5, 6))
    picture(tmp_path / "cat" / "2.BMP", 9, mode="L")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    data = load_own(tmp_path)
    assert data.x.shape == (3, 3, 4, 6) and data.x.dtype == np.uint8
    assert data.x[:, :, 0, 0].tolist() == [[4, 5, 6], [9, 9, 9], [1, 2, 3]]
    assert data.y.tolist() == [0, 0, 1] and data.label_names == ("cat", "dog")
    assert load_own(tmp_path, classes="dog,cat,bird").y.tolist() == [1, 1, 0]


def test_images_are_resized_and_made_grey_on_demand(tmp_path):
    picture(tmp_path / "0" / "1.png", (100, 100, 100), size=(9, 9))
    picture(tmp_path / "3" / "1.png", (50, 50, 50), size=(5, 20))
    data = load_own(tmp_path, input_shape="1x8x4", classes="5")
    assert data.x.shape == (2, 1, 8, 4) and data.num_classes == 5 and data.y.tolist() == [0, 3]
    assert data.x[:, 0, 0, 0].tolist() == [100, 50]


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="no images"):
        load_own(tmp_path)
    picture(tmp_path / "a" / "1.png", 0)
    picture(tmp_path / "b" / "1.png", 0, size=(7, 4))
    with pytest.raises(DataError, match="1 or 3 channels"):
        load_own(tmp_path, input_shape="2,4,4")
    with pytest.raises(DataError, match="label 'b' is not among the classes a, c"):
        load_own(tmp_path, classes="a,c", input_shape="3,4,4")
    whole = (tmp_path / "a" / "1.png").read_bytes()
    for content in (b"not an image", whole[: len(whole) // 2], b""):
        (tmp_path / "b" / "1.png").write_bytes(content)
        with pytest.raises(DataError, match=r"b/1\.png: not a readable image"):
            load_own(tmp_path, refuse=True)


# --- Python files ----------------------------------------------------------------------------------------------------


def python_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


def test_a_python_file_makes_the_data(tmp_path):
    text = (
        "import numpy as np\ndef load():\n    return dict(x=np.ones((3, 1, 2, 2)), y=[0, 1, 1], owner=['a', 'b', 'a'])"
    )
    data = load_own(python_file(tmp_path, text))
    assert data.x.shape == (3, 1, 2, 2) and data.y.tolist() == [0, 1, 1] and data.owners == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must define a function load"),
        ("load = 3", "must define a function load"),
        ("def load(): return 3", "returns a dict"),
        ("def load(): return {'x': [[1]]}", "no 'y'"),
        ("def load(): return 1 / 0", "failed with ZeroDivisionError"),
        ("def load(:", "failed with SyntaxError"),
        ("def load(): return {'x': [[1], [2, 3]], 'y': [0, 1]}", "x is not an array"),
        ("def load(): return {'x': [[1], [2]], 'y': 0}", "y is not an array but 0"),
    ],
)
def test_wrong_python_files_are_refused(text, message, tmp_path):
    with pytest.raises(DataError, match=message) as caught:
        load_own(python_file(tmp_path, text))
    assert "mine.py" in str(caught.value)


# --- the documentation -----------------------------------------------------------------------------------------------

DOCUMENTS = [Path(__file__).parents[2] / "docs" / name for name in ("how-to/own-data.md", "reference/data.md")]
TEXT = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
EXAMPLES = [block.split("```")[0] for block in TEXT.split("```python\n")[1:]]


def test_there_is_an_example_of_every_kind():
    assert [sum(f'"{name}"' in text for text in EXAMPLES) for name in ("mine.npz", "mine.csv", "pets", "mine.py")] == [
        1
    ] * 4


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_documentation_run(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert any(tmp_path.iterdir())


# --- files that lie ---------------------------------------------------------------------------------------------------


def test_a_header_that_says_more_than_is_there_is_refused_before_room_is_made(tmp_path):
    lying = io.BytesIO()
    np.lib.format.write_array_header_1_0(lying, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", lying.getvalue() + bytes(64))
    with pytest.raises(
        DataError, match=r"a.npz: not a readable .npz .*x.npy says that it has the shape \(10000000000000,\)"
    ):
        load_own(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("label", "classes"), [(10**18, ""), (10**5, ""), (10**18, "3"), (10**5, "3"), (1e30, "3"), (-1e30, "3")]
)
def test_a_label_that_is_no_class_is_refused(label, classes, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 1)), y=np.array([0, label]))
    with pytest.raises(DataError, match="label"):
        load_own(tmp_path / "a.npz", classes=classes)
