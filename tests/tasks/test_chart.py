"""The label-by-client chart: its table, its pictures, its rows."""

import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from coterie.tasks.chart import bubble_chart, label_table, summary_rows
from coterie.tasks.datasets import DataError, Dataset, load_dataset
from coterie.tasks.partitions import partition


def test_the_table_counts_labels():
    one = np.ones(1, np.float32)
    data = Dataset(np.zeros((6, 1), np.float32), np.array([0, 2, 2, 1, 0, 0]), 4, one, one)
    table = label_table(data, [np.array([0, 1, 2]), np.array([4]), np.array([], np.int64)])
    assert table.tolist() == [[1, 0, 2, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_regression_has_one_column():
    data = load_dataset("synthetic-linear", "unused")
    assert label_table(data, partition(data, 6, kind="natural", seed=1)).tolist() == [[200]] * 6


def test_rows_name_the_most_frequent_first():
    table = np.array([[1, 0, 5], [0, 0, 0]])
    assert summary_rows(table, ["a", "b"], ["x", "y", "z"]) == [("a", "6", "z: 5, x: 1"), ("b", "0", "")]
    many = summary_rows(np.arange(1, 11)[None], ["a"], [str(i) for i in range(10)])
    assert many == [("a", "55", "9: 10, 8: 9, 7: 8, 6: 7, 5: 6, 4: 5, 4 more")]


@pytest.mark.parametrize(("clients", "labels"), [(1, 1), (4, 2), (10, 10), (100, 10), (100, 100)])
def test_pictures_of_all_sizes(clients, labels, tmp_path):
    table = np.random.default_rng(0).integers(0, 50, (clients, labels))
    bubble_chart(table, tmp_path / "new" / "chart.png", "a title", [f"client-{i}" for i in range(clients)])
    with Image.open(tmp_path / "new" / "chart.png") as image:
        image.load()
        assert 600 < image.width < 3000 and 400 < image.height < 3000
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["chart.png"]


def test_an_svg_has_a_bubble_for_every_count_and_is_reproducible(tmp_path):
    table = np.array([[3, 0, 1], [0, 0, 7]])
    for name in ("a.svg", "b.svg"):
        bubble_chart(table, tmp_path / name, "a title", ["left", "right"], ["x", "y", "z"])
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    root = ElementTree.fromstring(text)
    group = next(element for element in root.iter() if element.get("id") == "PathCollection_1")
    paths = [element.get("d", "").split() for element in group.iter() if element.tag.endswith("path")]
    # An outline starts at its largest y, "M x y", and the ends of its curves reach the smallest: a diameter apart.
    diameters = [float(path[2]) - min(float(path[i]) for i in range(9, len(path) - 1, 7)) for path in paths]
    assert np.square(diameters) / diameters[1] ** 2 == pytest.approx([3, 1, 7], rel=1e-3)
    for word in ("a title", "left", "right", "client (2)"):
        assert f"<!-- {word} -->" in text


def test_an_empty_table_is_drawn(tmp_path):
    bubble_chart(np.zeros((3, 2), np.int64), tmp_path / "a.png", "nothing")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_another_ending_is_refused_and_a_failure_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"must end in \.png or \.svg"):
        bubble_chart(np.ones((2, 2), np.int64), tmp_path / "a.gif", "a title")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        bubble_chart(np.ones((2, 2), np.int64), tmp_path / "a.png", "a title")
    assert list(tmp_path.iterdir()) == []


def test_drawing_leaves_pyplot_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    bubble_chart(np.ones((2, 2), np.int64), tmp_path / "a.png", "a title")
    assert (tmp_path / "a.png").exists()
