"""What Flower loads: `server_app` and `client_app`, from the code beside this file and from no other.

The packages of a Flower app are top-level modules, and names like `client` and `server` are common. Flower's simulation
looks for modules in the directory where its daemon was started before it looks into the app, so a plain `client.app`
may be the client of another app, or of another copy of this one. Therefore Flower is given this module, with a name of
its own. It puts its directory first on the path and throws out modules of the same names that came from elsewhere; and
where Flower hands the ClientApp on to another process, it travels as an order to do the same there.
"""

import copyreg
import os
from collections.abc import Callable
from typing import Any

PACKAGES = ("cli", "client", "games", "server", "strategies", "tasks", "wire")


def loader(module: str) -> Callable[[], Any]:
    """A function that loads `app` of a module beside this file, in whatever process it is called.

    It uses nothing of this module, and as an inner function it is pickled with its code: in the other process
    `import coterie` might find another copy.
    """
    home, packages = os.path.dirname(os.path.realpath(__file__)), PACKAGES

    def load() -> Any:
        import importlib
        import os
        import sys

        if sys.path[0] != home:
            sys.path.insert(0, home)
        for name in [name for name in sys.modules if name.split(".")[0] in ("coterie", *packages)]:
            origin = getattr(sys.modules[name], "__file__", None)
            if origin is None or not os.path.realpath(origin).startswith(home + os.sep):
                del sys.modules[name]
        return importlib.import_module(module).app

    return load


def __getattr__(name: str) -> Any:
    """Loaded on demand: a client needs nothing of the server."""
    if name == "server_app":
        return loader("server.app")()
    if name == "client_app":
        load = loader("client.app")
        client_app = load()
        copyreg.pickle(type(client_app), lambda app: (load, ()))
        return client_app
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


__all__ = ["client_app", "server_app"]  # noqa: F822 - made by __getattr__, and looked up here by Flower
