"""Who may import whom, and what nobody may do."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from coterie.wire.fingerprint import DOOR, PACKAGES, source_files

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "games": set(),
    "wire": set(),
    "tasks": {"wire"},
    "client": {"games", "tasks", "wire"},
    "strategies": {"client", "games", "tasks", "wire"},
    "server": {"strategies", "client", "games", "tasks", "wire"},
    "runtime": {"wire"},
    "coterie": {"server", "strategies", "client", "games", "tasks", "wire", "runtime"},
    "cli": {"coterie", "server", "strategies", "client", "games", "tasks", "wire", "runtime"},
}
FILES = source_files()
OF = {package: [name for name in FILES if name.split("/")[0] == package] for package in MAY_IMPORT}
OF[DOOR].remove("coterie/__main__.py")  # `python -m coterie` is the command


def imported(tree: ast.AST, package: str) -> set[str]:
    """The full names of all modules that are imported anywhere in `tree`, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(f"coterie.{package}" if node.level else str(node.module))
            if node.module == "coterie":  # `from coterie import client`
                names |= {f"coterie.{alias.name}" for alias in node.names}
    return names


def arrows(source: str, package: str) -> set[str]:
    """The other packages of ours that are imported."""
    ours = [name.split(".") for name in imported(ast.parse(source), package) if name.split(".")[0] == "coterie"]
    roots = {name[1] if len(name) > 1 and name[1] in PACKAGES else DOOR for name in ours}
    return roots - {package}


def by_name(source: str) -> set[str]:
    """Modules of ours that are named as text, as `import_module` and `sys.modules` need it."""
    nodes = ast.walk(ast.parse(source))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if re.fullmatch(r"coterie(\.\w+)+", text)}


def test_runtime_knows_the_two_apps_by_name_and_nothing_else():
    """So it can be used, and read, without torch, methods and data; it finds the apps when it has something for them."""
    named = {name for file in OF["runtime"] for name in by_name(FILES[file].read_text())}
    assert {n for n in named if not n.startswith("coterie.runtime.")} == {"coterie.client.app", "coterie.server.app"}
    assert by_name("import_module('coterie.tasks.models')") == {"coterie.tasks.models"}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows(package):
    wrong = {
        name: extra for name in OF[package] if (extra := arrows(FILES[name].read_text(), package) - MAY_IMPORT[package])
    }
    assert not wrong


def test_the_check_itself_sees_every_way_to_import():
    for source in (
        "import coterie.client.app",
        "from coterie.client import app",
        "from coterie import client",
        "def f():\n    from coterie.client.store import Store",
        "if True:\n    import os, coterie.client as c",
    ):
        assert "client" in arrows(source, "strategies")
    assert arrows("from . import x\nimport numpy\nfrom coterie.strategies.fedavg import FedAvg", "strategies") == set()
    assert arrows("import coterie", "games") == {"coterie"}
    assert arrows("from coterie.testing import check_method", "games") == {"coterie"}


def test_all_packages_are_there():
    assert set(MAY_IMPORT) == {DOOR, *PACKAGES} and all(OF.values())
    assert {"wire/checks.py", "client/app.py", "strategies/fedavg.py", "cli/main.py", "coterie/__init__.py"} <= set(
        FILES
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    packages = {DOOR: DOOR, **{f"{DOOR}.{package}": package for package in PACKAGES}}
    assert project["setuptools"]["package-dir"] == packages
    folders = {Path(name).parent.as_posix().replace("/", ".") for name in FILES}
    assert set(project["setuptools"]["packages"]) == {DOOR, *(f"{DOOR}.{name}" for name in folders - {DOOR})}
    assert set(project["coverage"]["run"]["source"]) == {DOOR, *PACKAGES}


UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def unpickles(source: str) -> list[str]:
    """Everything in `source` that could run code found in a file or message."""
    tree = ast.parse(source)
    found = [name for name in imported(tree, "") if name.split(".")[0] in UNPICKLERS]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "torch"
            and node.attr == "load"
        ):
            found.append("torch.load")
        if (
            isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and getattr(node.value, "value", True) is not False
        ):
            found.append("allow_pickle")
    return found


def test_nothing_is_unpickled():
    assert {name: found for name, path in FILES.items() if (found := unpickles(path.read_text()))} == {}


def test_the_check_for_pickles_sees_them():
    assert unpickles("import pickle") and unpickles("from pickle import loads") and unpickles("torch.load('x')")
    assert unpickles("np.load(f, allow_pickle=True)") and unpickles("np.load(f, allow_pickle=maybe)")
    assert not unpickles("np.load(f, allow_pickle=False)")


def test_torchvision_comes_through_one_module():
    trees = {name: imported(ast.parse(path.read_text()), "") for name, path in FILES.items()}
    users = {name for name, modules in trees.items() if any(m.split(".")[0] == "torchvision" for m in modules)}
    assert users == {"tasks/vision.py"}
