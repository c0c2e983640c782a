"""How well a matrix of clients agrees with the labels they share, and what a report says of privacy."""

import numpy as np
import pytest

from coterie.server.findings import beside_the_truth, exact_rows, found, write_findings
from coterie.strategies.findings import Finding

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
    truth = (["a", "b", "c"], OVERLAP)
    key = "clients-whose-positive-scores-are-exactly-the-label-sharers"
    for clients, right in ((["c", "a", "b"], True), (["a", "b", "c"], False)):
        found = beside_the_truth(Finding.pairs("relevance", clients, values), truth, None)
        assert (found.facts[key] == 1.0) == right
    assert key not in beside_the_truth(Finding.pairs("similarity", ["c", "a", "b"], values), truth, None).facts


def test_suspects_beside_the_truth():
    suspects = Finding("suspects", "scores", {"a": -3.0, "b": 0.0, "c": -4.0}, facts={"suspects": ["a", "c"]})
    facts = beside_the_truth(suspects, None, {"c", "d"}).facts
    assert facts["bad-clients"] == ["c"] and (facts["precision"], facts["recall"]) == (0.5, 0.5)
    assert "recall" not in beside_the_truth(suspects, None, None).facts


def test_findings_come_back_from_their_file(tmp_path):
    findings = [
        Finding.pairs("relevance", ["a", "b"], np.array([[0.0, 1.5], [-2.0, 0.0]])),
        Finding("coalitions", "groups", [["a"], ["b"]], facts={"violations": []}),
    ]
    assert found(tmp_path) == {}
    write_findings(tmp_path, findings, None, None)
    again = found(tmp_path)
    assert list(again) == ["relevance", "coalitions"] and again["coalitions"] == findings[1]
    np.testing.assert_array_equal(again["relevance"].values, findings[0].values)
    write_findings(tmp_path / "other", [], None, None)
    assert not (tmp_path / "other").exists()


def test_the_report_tells_what_privacy_was_spent(federate, data_of):
    settings = {"strategy": "local", "model": "linear", "num-server-rounds": 1}
    spent = federate(**settings, **{"privacy.mode": "dp-sgd"})
    told = data_of(spent.path / "report.html")["runs"][0]
    assert dict(zip(told["clients"], told["privacy"]["epsilon"], strict=True)) == spent.result["privacy"]["epsilon"]
    noisy = federate(**settings, **{"privacy.mode": "weights"})
    assert "no formal guarantee" in (noisy.path / "report.html").read_text()
    assert data_of(federate(**settings).path / "report.html")["runs"][0]["privacy"] is None
