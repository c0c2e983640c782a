import pytest

from coterie.strategies import plugins
from coterie.wire import installed


@pytest.fixture(autouse=True)
def _nothing_handed_over(monkeypatch):
    """Classes and files of one test are not known in the next."""
    monkeypatch.setattr(plugins, "given", {})
    monkeypatch.setattr(plugins, "_files", {})


class Entry:
    """An entry point that leads to a thing, or fails."""

    value = "outside:thing"

    def __init__(self, name, found):
        self.name, self.found = name, found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def install(monkeypatch):
    """Have other packages bring things: `install("coterie.models", wide=build)`."""

    def put(group, **found):
        entries = [Entry(name, thing) for name, thing in found.items()]
        monkeypatch.setattr(installed.metadata, "entry_points", lambda group: entries if group == wanted else [])
        wanted = group
        forget()

    def forget():
        installed.entry_points.cache_clear()
        installed.load.cache_clear()

    yield put
    monkeypatch.undo()
    forget()
