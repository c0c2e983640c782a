"""Methods, privacy and attacks at the same time."""

import pytest

from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import method_of

SERVER = {name: {"server-data": "0.1"} for name in METHODS if method_of(name).needs_server_data}


@pytest.mark.parametrize("strategy", ["pfedsim", "afedsv", "s-fedavg", "rfa"])
def test_private_training_of_a_network_with_batchnorm(federate, strategy):
    run = federate(
        strategy=strategy, model="lenet5", **{"privacy.mode": "dp-sgd", "num-clients": 3}, **SERVER.get(strategy, {})
    )
    assert "buffers" not in run.model  # GroupNorm has no running statistics
    assert all(told["epsilon"] > 0 for event in run.events for told in event["train"].values())


@pytest.mark.parametrize("strategy", ["pfedsv", "pfedsim", "fedfomo"])
def test_a_client_that_sends_nonsense_is_left_out_of_methods_of_models(federate, strategy):
    run = federate(strategy=strategy, **{"attack.kind": "nan", "attack.clients": "2", "num-server-rounds": 3})
    assert all("not finite" in event["left-out"]["2"] for event in run.events)
    assert run.result["not-tested"] == {} and len(run.result["models"]["personal"]["clients"]) == 4
