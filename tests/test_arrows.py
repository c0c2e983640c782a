"""Who may import whom, and what nobody may do."""

import ast
import tomllib
from pathlib import Path

import pytest

from strategies.registry import default_config

ROOT = Path(__file__).resolve().parent.parent
OURS = {"games", "tasks", "wire", "strategies", "client", "server", "cli"}
MAY_IMPORT = {
    "games": set(),
    "tasks": set(),
    "wire": set(),
    "strategies": {"games", "tasks", "wire"},
    "client": {"games", "tasks", "wire"},
    "server": {"strategies", "games", "tasks", "wire"},
    "cli": OURS - {"cli"},
}
FILES = {
    path.relative_to(ROOT).as_posix(): path
    for package in sorted(OURS)
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imported(tree: ast.AST, package: str) -> set[str]:
    """The full names of all modules that are imported anywhere in `tree`, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(package if node.level else str(node.module))
    return names


def arrows(source: str, package: str) -> set[str]:
    roots = {name.split(".")[0] for name in imported(ast.parse(source), package)}
    return (roots & OURS) - {package}


@pytest.mark.parametrize("name", FILES)
def test_arrows(name):
    package = name.split("/")[0]
    assert arrows(FILES[name].read_text(), package) <= MAY_IMPORT[package]


def test_the_check_itself_sees_every_way_to_import():
    for source in (
        "import client.app",
        "from client import app",
        "def f():\n    from client.store import Store",
        "if True:\n    import os, client as c",
    ):
        assert arrows(source, "strategies") == {"client"}
    assert arrows("from . import x\nimport numpy\nfrom strategies.base import Method", "strategies") == set()


def test_all_packages_are_there():
    assert {name.split("/")[0] for name in FILES} == OURS
    assert {"wire/checks.py", "client/app.py", "strategies/base.py", "cli/main.py"} <= set(FILES)


def test_pyproject_has_every_key_with_its_default():
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    flat = {}
    for key, value in app["config"].items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    assert flat == default_config()
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in default_config().items()}


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


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_unpickled(name):
    assert unpickles(FILES[name].read_text()) == []


def test_the_check_for_pickles_sees_them():
    assert unpickles("import pickle") and unpickles("from pickle import loads") and unpickles("torch.load('x')")
    assert unpickles("np.load(f, allow_pickle=True)") and unpickles("np.load(f, allow_pickle=maybe)")
    assert not unpickles("np.load(f, allow_pickle=False)")


@pytest.mark.parametrize("name", sorted(set(FILES) - {"tasks/vision.py"}))
def test_torchvision_comes_through_one_module(name):
    assert not [
        module for module in imported(ast.parse(FILES[name].read_text()), "") if module.split(".")[0] == "torchvision"
    ]
