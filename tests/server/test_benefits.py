"""The drawn benefit graph: everybody is there, apart from each other, and names cannot do harm."""

import itertools
import math
import xml.etree.ElementTree as ElementTree

import pytest

from coterie.server.benefits import benefit_graph, positions


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


def test_the_picture_is_svg_and_always_the_same():
    helped = {"<b>&": ["$x_", "<b>&"], "$x_": ["$x_"], "ward 7": ["<b>&", "ward 7"]}
    groups = [["<b>&", "$x_"], ["ward 7"]]
    first = benefit_graph(helped, groups)
    assert benefit_graph(helped, groups) == first
    ElementTree.fromstring(first)
    more = benefit_graph({**helped, "$x_": ["$x_", "ward 7"]}, groups)
    assert more.count(b"<path") == first.count(b"<path") + 2  # a line and its head
