"""The drawn benefit graph: everybody is there, apart from each other, and names cannot do harm."""

import itertools
import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
from coterie.server.benefits import draw_graph, positions, write_benefits


@pytest.mark.parametrize("sizes", [[1], [6], [1, 1, 1], [3, 3], [2, 1, 5, 1], [30, 4, 1]])
def test_nobody_stands_on_anybody_else(sizes):
    names = iter(range(100))
    groups = [[str(next(names)) for _ in range(size)] for size in sizes]
    places, rings = positions(groups)
    assert len(places) == sum(sizes) and len(rings) == len(sizes)
    assert all(math.dist(a, b) > 0.68 for a, b in itertools.combinations(places.values(), 2))  # two radii
    for members, (x, y, width) in zip(groups, rings, strict=True):
        assert all(math.dist(places[name], (x, y)) + 0.34 < width for name in members)
    for (x, y, one), (u, v, two) in itertools.combinations(rings, 2):
        assert math.dist((x, y), (u, v)) > 0.9 * (one + two)


def test_the_picture_is_svg_and_always_the_same(tmp_path):
    helped = {"<b>&": ["$x_", "<b>&"], "$x_": ["$x_"], "ward 7": ["<b>&", "ward 7"]}
    for name in ("a.svg", "b.svg"):
        draw_graph(tmp_path / name, helped, [["<b>&", "$x_"], ["ward 7"]])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    ElementTree.parse(tmp_path / "a.svg")
    draw_graph(tmp_path / "more.svg", {**helped, "$x_": ["$x_", "ward 7"]}, [["<b>&", "$x_"], ["ward 7"]])
    arrows = [(tmp_path / name).read_text().count("<path") for name in ("a.svg", "more.svg")]
    assert arrows[1] == arrows[0] + 2  # a line and its head


def test_only_methods_that_know_write_something(tmp_path):
    write_benefits(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    told = {"collaborators": {"0": ["0", "1"], "1": ["1"]}}
    write_benefits(tmp_path, told)
    assert json.loads((tmp_path / "benefits.json").read_text()) == told
    assert (tmp_path / "benefit-graph.svg").exists()
