"""Coterie: personalised and robust federated learning on Flower.

    import coterie

    run = coterie.run("fedper", task="digits", num_server_rounds=20)      # simulated on this machine
    run.clients.to_pandas()                                               # a row for each client
    run.model("3").predict(x)                                             # client 3's own model
    coterie.compare(["local", "fedavg", "fedper"], seeds=[1, 2, 3])       # several methods, one table
    coterie.open_run("runs/20261116-120000-fedper-digits")                # what a run left behind
    coterie.list_runs()                                                   # those here; .status, .watch(), .stop()
    coterie.resume("runs/20261116-120000-fedper-digits")                  # go on where it stopped

Mistakes raise `CoterieError`: `ConfigError` names a key, its value and the remedy, `RunFailed` says why a run ended.

The folders beside this one are its parts: `coterie.games`, `coterie.tasks`, `coterie.strategies` and so on. Installed
they lie inside this package; in a checkout, and in the bundle that Flower sends around, they lie beside it.
"""

import copyreg
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.comparison import compare as compare
    from coterie.following import list_runs as list_runs
    from coterie.page import Page as Page
    from coterie.resuming import resume as resume
    from coterie.runs import Comparison as Comparison
    from coterie.runs import Run as Run
    from coterie.runs import open_run as open_run
    from coterie.simulate import run as run
    from coterie.strategies.findings import Finding as Finding
    from coterie.strategies.observer import Observer as Observer
    from coterie.table_data import tables as tables
    from coterie.wire.errors import ConfigError as ConfigError
    from coterie.wire.errors import CoterieError as CoterieError
    from coterie.wire.errors import RunFailed as RunFailed

    __version__: str
    client_app: Any
    server_app: Any

_LAZY = {  # name -> the module that has it
    "Comparison": "coterie.runs",
    "ConfigError": "coterie.wire.errors",
    "CoterieError": "coterie.wire.errors",
    "Finding": "coterie.strategies.findings",
    "Observer": "coterie.strategies.observer",
    "Page": "coterie.page",
    "Run": "coterie.runs",
    "RunFailed": "coterie.wire.errors",
    "compare": "coterie.comparison",
    "list_runs": "coterie.following",
    "open_run": "coterie.runs",
    "resume": "coterie.resuming",
    "run": "coterie.simulate",
    "tables": "coterie.table_data",
}

_HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if os.path.isfile(os.path.join(_HOME, "pyproject.toml")):
    __path__.append(_HOME)


def _client_app_loader() -> Callable[[], Any]:
    """Loads the ClientApp of this very copy of Coterie, in whatever process it is called.

    Flower hands the ClientApp on to Ray's actors, which look for modules in the directory where Flower's daemon was
    started before they look into the app; another copy of Coterie may be there. The inner function is pickled with its
    code and uses nothing of this module.
    """
    door = os.path.realpath(__file__)

    def load() -> Any:
        import importlib.util
        import os
        import sys

        there = getattr(sys.modules.get("coterie"), "__file__", None)
        if there is None or os.path.realpath(there) != door:
            for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
                del sys.modules[name]
            spec = importlib.util.spec_from_file_location("coterie", door)
            assert spec and spec.loader
            sys.modules["coterie"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return importlib.import_module("coterie.client.app").app

    return load


def _version() -> str:
    """That of the checkout, or of what is installed."""
    if _HOME in __path__:
        import tomllib

        with open(os.path.join(_HOME, "pyproject.toml"), "rb") as file:
            return str(tomllib.load(file)["project"]["version"])
    from importlib.metadata import version

    return version("coterie")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Loaded on demand: a client needs nothing of the server, and nobody pays for what they do not use."""
    if name in _LAZY:
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value
    if name == "__version__":
        return _version()
    if name == "server_app":
        return importlib.import_module("coterie.serving").app
    if name == "client_app":
        load = _client_app_loader()
        client_app = load()
        copyreg.pickle(type(client_app), lambda app: (load, ()))
        return client_app
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


__all__ = [
    "Comparison",
    "ConfigError",
    "CoterieError",
    "Finding",
    "Observer",
    "Page",
    "Run",
    "RunFailed",
    "__version__",
    "client_app",
    "compare",
    "list_runs",
    "open_run",
    "resume",
    "run",
    "server_app",
    "tables",
]
