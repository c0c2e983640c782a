"""`pretrained`: weights to begin with, from a file."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import coterie
from coterie.client.owner import with_own_places
from coterie.tasks.models import ModelError, build_network
from coterie.tasks.pretrained import load_pretrained
from coterie.wire.config import RunConfig
from coterie.wire.errors import Refused


def network(model="mlp", classes=10, seed=0, shape=(1, 8, 8)):
    return build_network(model, shape, classes, seed=seed)


def test_a_networks_own_names(tmp_path):
    theirs, mine = network("lenet5", seed=1), network("lenet5", seed=2)
    theirs.state_dict()["extractor.1.running_mean"].fill_(0.25)
    save_file({name: value.clone() for name, value in theirs.state_dict().items()}, tmp_path / "a.safetensors")
    load_pretrained(mine, str(tmp_path / "a.safetensors"))
    for part, value in theirs.dump().items():
        np.testing.assert_array_equal(mine.dump()[part], value)


def test_the_names_of_torchvision_and_another_number_of_classes(tmp_path):
    from coterie.tasks.vision import models

    torch.manual_seed(5)
    published = models.mobilenet_v2(weights=None, num_classes=7)
    save_file({name: value.clone() for name, value in published.state_dict().items()}, tmp_path / "m.safetensors")
    mine = network("mobilenet-v2", 10, 3, (3, 32, 32))
    before = mine.dump()
    load_pretrained(mine, str(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(mine.dump()["classifier"], before["classifier"])
    assert not np.array_equal(mine.dump()["extractor"], before["extractor"])
    mine.eval(), published.eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    enlarged = torch.nn.functional.interpolate(x, scale_factor=mine.extractor[0].scale or 1.0, mode="nearest")
    expected = published.features(enlarged).mean(dim=(2, 3))
    torch.testing.assert_close(mine.extractor(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda state: state.pop("extractor.1.weight"),
            r"the network needs extractor\.1\.weight of shape \(200, 64\), the file has none",
        ),
        (lambda state: state.update({"extractor.1.weight": torch.zeros(3, 3)}), r"the file has one of shape \(3, 3\)"),
        (
            lambda state: state["extractor.3.bias"].fill_(float("nan")),
            r"extractor\.3\.bias has numbers that are not finite",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, expected, tmp_path):
    state = {name: value.clone() for name, value in network().state_dict().items()}
    change(state)
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ModelError, match=expected):
        load_pretrained(network(), str(tmp_path / "a.safetensors"))


def test_files_that_are_none(tmp_path):
    torch.save(network().state_dict(), tmp_path / "a.pth")
    with pytest.raises(ModelError, match="nothing is unpickled here; write it as safetensors once"):
        load_pretrained(network(), str(tmp_path / "a.pth"))
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_pretrained(network(), str(tmp_path / "a.safetensors"))
    with pytest.raises(coterie.CoterieError, match=r"pretrained = '.*b\.safetensors': there is no such file"):
        coterie.run("local", pretrained=str(tmp_path / "b.safetensors"), run_dir=tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("strategy", ["local", "fedper", "fedavg"])
def test_all_clients_begin_with_it(strategy, tmp_path):
    """Also with what never leaves a client: steps are so short that models stay where they began."""
    small = {
        "num_clients": 2,
        "num_server_rounds": 1,
        "local_epochs": 1,
        "workers": 0,
        "progress": False,
        "model": "mlp",
    }
    first = coterie.run("local", run_dir=tmp_path / "a", seed=3, **small)
    weights = first.path / "models" / "1.safetensors"
    again = coterie.run(strategy, run_dir=tmp_path / "b", seed=4, pretrained=weights, learning_rate=1e-9, **small)
    assert json.loads((again.path / "config.json").read_text())["pretrained"] == str(weights)
    theirs = first.model("1").network.state_dict()
    for client in ("0", "1"):
        for name, value in again.model(client).network.state_dict().items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6)


def test_a_client_opens_only_what_its_owner_named(tmp_path):
    config = RunConfig(pretrained="/srv/weights.safetensors")
    assert with_own_places(config, {"pretrained": "/home/mine.safetensors"}).pretrained == "/home/mine.safetensors"
    with pytest.raises(Refused, match="start the client with --pretrained FILE"):
        with_own_places(config, {})
    assert with_own_places(RunConfig(), {"pretrained": "/home/mine.safetensors"}).pretrained == ""
