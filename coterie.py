"""What Flower loads: `server_app` and `client_app`, from the code beside this file and from no other.

The packages of a Flower app are top-level modules, and names like `client` and `server` are common. Flower's simulation
puts the directory in which its daemon was started before the app on the module path, so a plain `client.app` may be the
client of another app. This module has a name of its own. It finds the directory of the app that Flower was told to run, puts
it first on the path, and throws out modules of the same names that came from elsewhere.
"""

import sys
from pathlib import Path
from typing import Any

PACKAGES = ("cli", "client", "games", "server", "strategies", "tasks", "wire")


def app_directory() -> Path:
    """Where Flower unpacked the app it runs in this process, else the directory of this file."""
    for entry in sys.path:
        path = Path(entry)
        if path.parent.name == "apps" and (path / "coterie.py").is_file():
            return path
    return Path(__file__).resolve().parent


def use_own_code() -> None:
    home = str(app_directory())
    if home in sys.path:
        sys.path.remove(home)
    sys.path.insert(0, home)
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin is None or not Path(origin).is_relative_to(home):
            del sys.modules[name]


def __getattr__(name: str) -> Any:
    """Loaded on demand: a client needs nothing of the server."""
    if name == "server_app":
        use_own_code()
        from server.app import app as server_app

        return server_app
    if name == "client_app":
        use_own_code()
        from client.app import app as client_app

        return client_app
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


__all__ = ["client_app", "server_app"]  # noqa: F822 - made by __getattr__, and looked up here by Flower
