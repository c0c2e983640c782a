"""Coterie: personalised and robust federated learning on Flower.

The folders beside this one are its parts: `coterie.games`, `coterie.tasks`, `coterie.strategies` and so on. Installed
they lie inside this package; in a checkout, and in the bundle that Flower sends around, they lie beside it.
"""

import copyreg
import importlib
import os
from collections.abc import Callable
from typing import Any

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


def __getattr__(name: str) -> Any:
    """Loaded on demand: a client needs nothing of the server, and nobody pays for what they do not use."""
    if name == "server_app":
        return importlib.import_module("coterie.server.app").app
    if name == "client_app":
        load = _client_app_loader()
        client_app = load()
        copyreg.pickle(type(client_app), lambda app: (load, ()))
        return client_app
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


__all__ = ["client_app", "server_app"]
