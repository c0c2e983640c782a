"""Our own methods keep the laws that every method must keep."""

import pytest

from coterie.strategies.registry import BUILT_IN
from coterie.testing import check_method

QUICK = {
    "pfedhn": {"hidden": 8, "server_steps": 2},
    "spo": {"hidden": 8, "server_steps": 2, "rays": 4, "search_steps": 3, "local_steps": 2},
    "ce": {"hidden": 8, "server_steps": 2, "rays": 4, "search_steps": 3, "local_steps": 2},
    "pfedme": {"inner_steps": 2},
}


@pytest.mark.parametrize("strategy", BUILT_IN)
def test_our_methods_keep_the_laws(strategy):
    check_method(strategy, **QUICK.get(strategy, {}))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "pfedsv", "fedfomo", "coterie"])
def test_also_as_processes(strategy):
    check_method(strategy, laws=["told"], processes=True)
