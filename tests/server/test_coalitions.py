"""Pictures of coalitions: what is drawn is where it should be."""

import numpy as np

from coterie.server.coalitions import circles, errors_by_mechanism, mixing_curves, share_by_sweeps
from coterie.strategies.pfedocf import plane

PNG = b"\x89PNG"


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


def test_every_picture_can_be_drawn():
    alone = {"a": np.zeros(2)}
    assert circles(alone, []).startswith(PNG) and circles(alone, [["a", "gone"]]).startswith(PNG)
    assert errors_by_mechanism({"local": np.array([1.0, 2]), "pfedocf": np.array([0.5, 1])}).startswith(PNG)
    assert share_by_sweeps([2, 2, 3]).startswith(PNG)
    assert mixing_curves([7, 20], np.array([[0.2, 0.8], [0.6, 0.4]]), ["own model", "coalition of 3"]).startswith(PNG)
