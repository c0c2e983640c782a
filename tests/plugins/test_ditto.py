"""Ditto, the example of a method from outside: by hand, and as real processes with the method installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from coterie.client.participant import Participant
from coterie.testing import LAWS, check_method

DITTO = Path(__file__).parents[2] / "docs" / "how-to" / "ditto.py"


def test_it_fits_on_a_page():
    assert len(DITTO.read_text().splitlines()) <= 60


def by_hand(weights, bias, x, y, order, *, rate, batch, mu, w):
    """Plain SGD on F(v) + mu/2 |v - w|^2; one epoch in the given order."""
    weights, bias = (torch.tensor(value, requires_grad=True) for value in (weights, bias))
    origin = [torch.tensor(value) for value in w]
    optimiser = torch.optim.SGD([weights, bias], lr=rate)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        optimiser.zero_grad()
        loss = functional.cross_entropy(x[chosen].flatten(1) @ weights.T + bias, y[chosen])
        pull = sum(((v - o) ** 2).sum() for v, o in zip((weights, bias), origin, strict=True))
        (loss + mu / 2 * pull).backward()
        optimiser.step()
    return weights.detach().numpy(), bias.detach().numpy()


def as_layer(classifier):
    return classifier[: 10 * 64].reshape(10, 64), classifier[10 * 64 :]


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_two_rounds_by_hand(mu, federate):
    """v starts at w, is pulled to w, goes on in round 2 from where it was, pulled to the new w; w is FedAvg's."""
    settings = {"model": "linear", "num_clients": 2, "local_epochs": 1, "learning_rate": 0.1}
    run = federate(strategy=str(DITTO), **settings, **{"my-ditto.mu": mu})
    assert np.array_equal(run.model["classifier"], federate(strategy="fedavg", **settings).model["classifier"])
    for number in (0, 1):
        me = Participant.of(run.grid.contexts[2 + number])
        samples = me.train_samples()
        v = None
        for server_round in (1, 2):
            w = as_layer(run.sent(server_round, "train.my_ditto")[me.name]["classifier"])
            order = me.rng("ditto", server_round).permutation(len(samples))
            v = by_hand(*(v or w), samples.x, samples.y, order, rate=0.1, batch=32, mu=mu, w=w)
        kept = as_layer(run.state(me.name)["classifier"])
        for mine, theirs in zip(v, kept, strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-6)
        assert np.array_equal(run.personal(me.name)["classifier.weight"], kept[0])


def test_a_strong_pull_holds_the_personal_model_near(federate):
    def away(mu):
        run = federate(strategy=str(DITTO), model="linear", learning_rate=0.02, **{"my-ditto.mu": mu})
        w = run.sent(2, "train.my_ditto")["0"]["classifier"]
        return np.linalg.norm(run.state("0")["classifier"] - w)

    assert away(20.0) < 0.5 * away(0.0)


def test_a_client_that_never_trained_has_the_global_model(federate):
    run = federate(strategy=str(DITTO), model="linear", fraction_train=0.25, num_server_rounds=1)
    (trained,) = run.events[0]["train"]
    for client, told in run.events[0]["evaluate"].items():
        assert (told["global.loss"] == told["personal.loss"]) is (client != trained)


def installed(folder: Path) -> dict[str, str]:
    """A package with Ditto, installed into a folder by pip as anybody would; the environment in which it is there."""
    package = folder / "package"
    package.mkdir()
    (package / "coterie_ditto.py").write_text(DITTO.read_text())
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "coterie-ditto"\nversion = "1.0"\n'
        '[project.entry-points."coterie.methods"]\nmy-ditto = "coterie_ditto:Ditto"\n'
        '[tool.setuptools]\npy-modules = ["coterie_ditto"]\n'
    )
    site = folder / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(package)], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))}


@pytest.mark.slow
def test_real_processes_with_the_method_installed(tmp_path):
    environment = installed(tmp_path)
    common = ["--task=digits", "--model=linear", "--num-clients=3", "--num-server-rounds=2", "--strategy=my-ditto"]
    common += ["--set", "my-ditto.mu=0.5"]
    results = []
    for command in ("run", "up"):
        where = tmp_path / command
        line = [sys.executable, "-P", "-m", "coterie", command, *common, "--run-dir", str(where)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        config = json.loads((where / "config.json").read_text())
        assert config["my-ditto.mu"] == 0.5 and config["strategy-file"] == ""
        results.append((where / "result.json").read_bytes())
    assert results[0] == results[1]
    text = subprocess.run(
        [sys.executable, "-P", "-m", "coterie", "run", "--help"], env=environment, capture_output=True, text=True
    ).stdout
    assert "my-ditto.mu" in "".join(text.split()) and "my-ditto" in text


@pytest.mark.slow
def test_real_processes_with_the_file(tmp_path):
    check_method(DITTO, laws=["told"], processes=True, model="linear")


def test_the_page_shows_the_file_and_every_law():
    page = DITTO.with_name("own-method.md").read_text()
    code = DITTO.read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```\n" in page
    for name, law in LAWS.items():
        assert f"| `{name}` | {law.__doc__} |" in page
    assert page.count("\n| `") - page.count("\n| `round.") == len(LAWS)
