"""Curves of several methods: what is drawn, read back from the figure."""

import numpy as np
import pytest

from coterie.server import pictures


def test_compared_curves_are_means_over_seeds_with_a_band(monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "png", lambda figure: drawn.append(figure) or b"png")
    lines = {"a": [{1: 0.2, 2: 0.4, 3: 0.9}, {1: 0.4, 2: 0.8}], "b": [{1: 0.1, 2: 0.1}, {1: 0.1, 2: 0.1}]}
    assert pictures.compared_curves(lines, "accuracy") == b"png"
    (axes,) = drawn[0].axes
    a, b = axes.lines
    assert a.get_label() == "a" and a.get_xdata() == pytest.approx([1, 2])  # round 3 has only one seed
    assert a.get_ydata() == pytest.approx([0.3, 0.6]) and b.get_ydata() == pytest.approx([0.1, 0.1])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    spread = np.std([0.4, 0.8], ddof=1)
    assert heights.max() == pytest.approx(0.6 + spread) and heights.min() == pytest.approx(
        0.3 - np.std([0.2, 0.4], ddof=1)
    )
