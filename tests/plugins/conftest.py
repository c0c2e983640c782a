import pytest
from coterie.strategies import plugins


@pytest.fixture(autouse=True)
def _nothing_handed_over(monkeypatch):
    """Classes and files of one test are not known in the next."""
    monkeypatch.setattr(plugins, "given", {})
    monkeypatch.setattr(plugins, "_files", {})
