"""The plane in which a report shows models."""

import numpy as np

from coterie.strategies.pfedocf import plane


def test_the_plane_keeps_distances_of_what_lies_in_a_plane():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(7, 2))
    axes = np.linalg.qr(rng.normal(size=(30, 2)))[0]
    found = plane(flat @ axes.T + rng.normal(size=30))
    distances = [np.linalg.norm(x[:, None] - x[None], axis=2) for x in (flat, found)]
    np.testing.assert_allclose(*distances, atol=1e-9)


def test_few_and_equal_clients_have_a_plane_too():
    assert plane(np.ones((1, 5))).tolist() == [[0.0, 0.0]]
    np.testing.assert_allclose(plane(np.ones((3, 1))), np.zeros((3, 2)), atol=1e-9)
