"""What the owner of a client decides, no run overrides: the files that are opened, and the runs that it takes part in."""

import sys

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from coterie.client.app import app
from coterie.client.data import load_client_data
from coterie.client.participant import local_config
from coterie.runtime.device import make_device
from coterie.runtime.keys import make_keys
from coterie.strategies.registry import default_config
from coterie.wire.errors import ConfigError, Refused
from coterie.wire.messages import EvaluateOrder, Sent, TrainOrder

PRIVATE = {"privacy.mode": "dp-sgd", "privacy.noise-multiplier": 4.0}
NETWORK = (
    "open({!r}, 'w').close()\nfrom torch import nn\ndef build(shape, outputs): return nn.Flatten(), nn.Linear(64, 10)\n"
)


def context(node, **config) -> Context:
    node = {"partition-id": 1, "num-partitions": 4, **node}
    values = {**default_config(), "model": "linear", **{key.replace("_", "-"): value for key, value in config.items()}}
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=values)


def ask(kind: str, where: Context, content: RecordDict | None = None) -> Message:
    message = Message(content or RecordDict(), dst_node_id=1, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    return app(message, where)


MESSAGES = {
    "query.hello": RecordDict(),
    "train": Sent(TrainOrder(1, upload=("classifier",))).content(),
    "evaluate": Sent(EvaluateOrder(1, ("personal",))).content(),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_run_cannot_make_a_client_run_a_file(kind, tmp_path):
    ran = tmp_path / "it-ran"
    (tmp_path / "net.py").write_text(NETWORK.format(str(ran)))
    with pytest.raises(
        Refused, match=r"model = .*did not name; start the client with --model FILE, whose name is net\.py"
    ):
        ask(kind, context({}, model=str(tmp_path / "net.py")), MESSAGES[kind])
    assert not ran.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "net.py").write_text(NETWORK.format(str(ran)))
    ask(kind, context({"models": str(tmp_path / "mine" / "net.py")}, model="/srv/server/net.py"), MESSAGES[kind])
    assert ran.exists() == (kind != "query.hello")


def test_a_run_cannot_make_a_client_read_a_file(tmp_path):
    """Neither data, which may be a program, nor data sets in a directory that it names."""
    ran = tmp_path / "it-ran"
    (tmp_path / "data.py").write_text(f"open({str(ran)!r}, 'w').close()\ndef load(): return {{}}\n")
    own = {"task": "own", "classes": "10", "input_shape": "1,8,8"}
    with pytest.raises(ConfigError, match="shared-data"):
        ask("query.hello", context({}, data=str(tmp_path / "data.py"), **own))
    assert not ran.exists()
    np.savez(tmp_path / "mine.npz", x=np.zeros((40, 1, 8, 8)), y=np.arange(40) % 10)
    where = context({"shared-data": str(tmp_path / "mine.npz")}, data=str(tmp_path / "data.py"), **own)
    assert len(load_client_data(where.node_config, local_config(where), "1").dataset) == 40
    assert local_config(context({}, data_root="/etc")).data_root == "data"


def test_in_flowers_simulation_the_run_is_the_owner(tmp_path, monkeypatch):
    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return True

    monkeypatch.setitem(sys.modules, "ray", Ray)
    config = local_config(context({}, data_root="/srv/data", model="net.py"))
    assert (config.data_root, config.model) == ("/srv/data", "net.py")


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize(
    ("node", "config", "said"),
    [
        (
            {"allow-strategies": "fedper, fedrep"},
            {},
            "strategy = 'coterie': the owner of this client allows fedper, fedrep",
        ),
        ({"require-privacy": True}, {}, "privacy.mode = 'off'"),
        ({"require-privacy": True}, {"privacy.mode": "weights"}, "privacy.mode = 'weights'"),
        ({"max-epsilon": 4.0}, {}, "privacy.mode = 'off'"),
        ({"require-privacy": True}, {**PRIVATE, "strategy": "spo"}, ".*strategy = 'spo'"),
        ({"require-privacy": True}, {**PRIVATE, "strategy": "q-ffl"}, ".*strategy = 'q-ffl'"),
    ],
)
def test_a_run_below_the_floors_is_refused_whatever_it_asks(kind, node, config, said):
    with pytest.raises(Refused, match=f"client '1': {said}"):
        ask(kind, context(node, **config), MESSAGES[kind])


def test_no_more_privacy_is_spent_than_the_owner_allows(tmp_path):
    """Over all runs with this state, whatever delta a run chooses."""

    def train(number, delta=1e-5):
        node = {"max-epsilon": 2.0, "state-dir": str(tmp_path)}
        where = context(node, partition="iid", **PRIVATE, **{"privacy.delta": delta, "local-epochs": 4})
        where.run_id = number
        order = TrainOrder(number, upload=("classifier",))
        return ask("train", where, Sent(order).content()).content["metrics"]

    spent = [train(1)["epsilon"]]
    assert 0.2 < spent[0] < 2
    with pytest.raises(Refused, match=r"epsilon would be .* and the owner of this client allows 2 \(--max-epsilon\)"):
        for number in range(2, 60):
            spent.append(train(number, delta=0.5 if number % 2 else 1e-5)["epsilon"])
    assert 2 < len(spent) < 59
    with pytest.raises(Refused, match="epsilon would be"):
        train(60, delta=0.9)


def test_no_loss_on_training_samples_leaves_a_private_client():
    where = context({}, partition="iid", **PRIVATE)
    told = ask("train", where, MESSAGES["train"]).content["metrics"]
    assert set(told) == {"num-samples", "steps", "cpu-seconds", "epsilon"}
    order = TrainOrder(1, upload=("classifier",), start_loss=True)
    with pytest.raises(Refused, match="start-loss"):
        ask("train", where, Sent(order).content())
    assert "loss" in ask("train", context({}, partition="iid"), MESSAGES["train"]).content["metrics"]


def test_the_options_of_a_client(tmp_path):
    make_keys(tmp_path, ["0"])
    key = tmp_path / "clients" / "0"
    (tmp_path / "net.py").touch()
    floors = {"require_privacy": True, "max_epsilon": 4.0, "allow_strategies": "fedavg, fedper"}
    told = make_device(
        key,
        server="h:1",
        state=str(tmp_path / "s"),
        model=[str(tmp_path / "net.py")],
        data=str(key),
        partition=2,
        **floors,
    )
    node = told.node_config
    assert not told.any_code  # or a run could bring code that knows no floors
    assert (node["require-privacy"], node["max-epsilon"], node["allow-strategies"]) == (True, 4.0, "fedavg,fedper")
    assert (node["models"], node["shared-data"], node["partition-id"]) == (str(tmp_path / "net.py"), str(key), 2)
    for wrong, said in (
        ({"max_epsilon": 0.0}, "max-epsilon = 0: must be"),
        ({"max_epsilon": float("nan")}, "max-epsilon = nan"),
        ({"allow_strategies": " , "}, "allow-strategies = "),
        ({"model": [str(tmp_path / "no.py")]}, "model = .*there is no file"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_device(key, server="h:1", state=str(tmp_path / "s"), **wrong)
