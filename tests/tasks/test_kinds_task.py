"""Task `kinds`: twelve clients of three kinds, always there."""

import numpy as np
import pytest

import coterie
from coterie.client.data import load_client_data
from coterie.server.app import checked_config
from coterie.tasks.datasets import load_dataset
from coterie.tasks.images import load_digits
from coterie.wire.config import RunConfig, split_sections

NAMES = [f"{kind}{i}" for kind in "ABC" for i in range(1, 5)]


def test_every_image_is_a_digit_turned_as_its_client_says_and_none_is_there_twice():
    made, digits = load_dataset("kinds", "nowhere"), load_digits()
    assert list(made.owners) == NAMES and np.bincount(made.owner).tolist() == [140] * 12
    known = {image.tobytes(): label for image, label in zip(digits.x, digits.y, strict=True)}
    back = [np.ascontiguousarray(np.rot90(x[0], -(who // 4)))[None] for x, who in zip(made.x, made.owner, strict=True)]
    assert all(known[image.tobytes()] == label for image, label in zip(back, made.y, strict=True))
    assert len({image.tobytes() for image in back}) == len(back)
    assert np.array_equal(made.x, load_dataset("kinds", "elsewhere").x)


def test_its_usual_settings_give_way_to_the_users():
    config = checked_config({"task": "kinds"})
    settings = RunConfig.parse({**split_sections(config)[0], "num-clients": 12})
    split = load_client_data({"partition-id": 5, "num-partitions": 12}, settings, "B2").split
    assert [len(part) for part in (split.train, split.validation, split.test)] == [49, 21, 70]
    assert checked_config({"task": "kinds", "test-fraction": 0.2, "batch-size": 5})["test-fraction"] == 0.2
    assert checked_config({"task": "digits"})["batch-size"] == RunConfig().batch_size


@pytest.mark.slow
def test_a_comparison_without_arguments_shows_what_coterie_is_for(tmp_path):
    compared = coterie.compare(progress=False, run_dir=tmp_path / "c")
    rows = {row["strategy"]: row for row in compared.rows}
    assert list(rows) == ["local", "fedavg", "pfedsv"] and len(compared.runs) == 6
    reached = {name: row["personal.accuracy"]["mean"] for name, row in rows.items()}
    assert reached["pfedsv"] > reached["local"] + 0.04 and reached["local"] > reached["fedavg"]
    relevance = compared.runs[-1].findings["relevance"]
    best = np.argsort(-relevance.values, axis=1)[:, :3]
    kind = np.arange(12) // 4
    assert (kind[best] == kind[:, None]).mean() > 0.8
