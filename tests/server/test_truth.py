"""How well a matrix of clients agrees with the labels they share, and what a report says of privacy."""

import json

import numpy as np
import pytest
from coterie.server.findings import exact_rows, label_sharing

OVERLAP = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_rows_whose_signs_are_those_of_the_overlap():
    right = np.array([[0.0, 0.2, -0.1], [0.1, 0.0, 0.0], [-0.1, -0.2, 0.0]])
    assert exact_rows(right, OVERLAP) == 1.0
    one_missed = right.copy()
    one_missed[0, 1] = 0.0
    assert exact_rows(one_missed, OVERLAP) == pytest.approx(2 / 3)
    one_too_many = right.copy()
    one_too_many[2, 0] = 0.01
    assert exact_rows(one_too_many, OVERLAP) == pytest.approx(2 / 3)
    assert exact_rows(np.zeros((3, 3)), OVERLAP) == pytest.approx(1 / 3)  # the diagonal does not count


def test_the_truth_is_put_in_the_order_of_the_clients():
    values = np.array([[0.0, -0.1, -0.2], [-0.1, 0.0, 0.2], [-0.1, 0.1, 0.0]])  # c, a, b
    assert label_sharing((["c", "a", "b"], values), (["a", "b", "c"], OVERLAP)) == 1.0
    assert label_sharing((["a", "b", "c"], values), (["a", "b", "c"], OVERLAP)) < 1.0


def test_truth_of_a_run(federate, tmp_path):
    from coterie.cli.main import main

    words = "run --strategy pfedsv --num-server-rounds 1 --num-clients 4 --model linear --workers 0 --run-dir"
    with pytest.raises(SystemExit):
        main([*words.split(), str(tmp_path / "run")])
    truth = json.loads((tmp_path / "run" / "truth.json").read_text())
    assert 0 <= truth["clients-whose-positive-scores-are-exactly-the-label-sharers"] <= 1


def test_the_report_tells_what_privacy_was_spent(federate):
    settings = {"strategy": "local", "model": "linear", "num-server-rounds": 1}
    spent = federate(**settings, **{"privacy.mode": "dp-sgd"})
    page = (spent.path / "report.html").read_text()
    for epsilon in spent.result["privacy"]["epsilon"].values():
        assert f"<td>{epsilon:.3f}</td>" in page
    noisy = federate(**settings, **{"privacy.mode": "weights"})
    assert "no formal guarantee" in (noisy.path / "report.html").read_text()
    assert "Privacy" not in (federate(**settings).path / "report.html").read_text()
