"""The documents: what is made is up to date, what they name is there, every page can be found, every example runs."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from coterie.cli.main import program
from coterie.strategies.registry import BUILT_IN, default_config
from coterie.wire.fingerprint import source_files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
WIDEST = 120
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


def links(page: Path) -> list[tuple[str, str]]:
    """Where a page leads to: (path, place in it), without other sites."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        text = "".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return [(path, place) for path, place in LINK.findall(text) if not path.startswith("http")]


def places(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["reliability.md", "threat-model.md"])
def test_every_test_that_a_claim_names_is_there(page):
    text = (DOCS / page).read_text()
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", "\n".join(file.read_text() for file in files)))
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)", text))
    assert len(named) > 10 and named <= there
    assert {ROOT / path for path in re.findall(r"tests/[\w/]+\.py", text)} <= set(files)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_has_a_page_that_says_when_and_at_what_cost(name):
    page = (DOCS / "methods" / f"{name}.md").read_text()
    titles = re.findall(r"^## (.*)$", page, flags=re.M)
    assert titles == ["When to take it", "When not", "What it costs", "Try it"]
    assert f"--strategy {name} " in page and page.startswith(f"# `{name}`\n")
    assert set(re.findall(r"`([a-z-]+\.[a-z-]+)`", page)) <= set(default_config())
    assert f"]({name}.md)" in (DOCS / "methods" / "README.md").read_text()


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def make_settings(tmp_path, monkeypatch):
    """docs/make_settings.py on a copy of what it writes: `make_settings("--check")`."""
    spec = importlib.util.spec_from_file_location("make_settings", DOCS / "make_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", "docs/reference/settings.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(module, "HOME", tmp_path)

    def make(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["make_settings.py", *arguments])
        module.main()

    return make


def test_settings_are_up_to_date_and_complete(make_settings, tmp_path):
    make_settings("--check")
    make_settings()
    flat = {}
    for key, value in tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"].items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    assert flat == default_config()
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in default_config().items()}
    page = (tmp_path / "docs/reference/settings.md").read_text().split("## Of one device")[0]
    assert re.findall(r"^\| `([a-z0-9.-]+)` \|", page, flags=re.M) == list(default_config())


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pyproject.toml", "learning-rate = 0.05", "learning-rate = 0.06"),
        ("docs/reference/settings.md", "| `fedprox.mu` | `1.0` |", "| `fedprox.mu` | `2.0` |"),
    ],
)
def test_stale_settings_are_found_and_mended(make_settings, tmp_path, capsys, name, old, new):
    path = tmp_path / name
    good = path.read_text()
    path.write_text(good.replace(old, new))
    with pytest.raises(SystemExit, match="not up to date"):
        make_settings("--check")
    assert f"-{new}" in (said := capsys.readouterr().out) and f"+{old}" in said
    make_settings()
    assert path.read_text() == good
    path.write_text("prose before\n" + good + "prose after\n")
    make_settings()
    assert path.read_text() == "prose before\n" + good + "prose after\n"


def test_a_group_of_settings_without_a_place_is_named(make_settings, tmp_path):
    path = tmp_path / "docs/reference/settings.md"
    path.write_text(path.read_text().replace("<!-- settings: Places -->", ""))
    with pytest.raises(SystemExit, match=r"settings\.md has marks for .* there is .*Places"):
        make_settings()


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "docs/reference/methods.md"])
def test_every_method_is_in_the_readme_and_in_methods(page):
    rows = [line.split("|")[1] for line in (ROOT / page).read_text().splitlines() if line.startswith("| `")]
    assert set(BUILT_IN) - {word for row in rows for word in re.findall(r"`([^`]+)`", row)} == set()


def test_every_command_is_documented():
    text = (DOCS / "reference" / "commands.md").read_text()
    assert sorted(re.findall(r"^\| `coterie (\w+)` \|", text, flags=re.M)) == sorted(program.commands)


def test_links_between_documents_lead_somewhere():
    broken = []
    for page in (*PAGES, *DOCS.rglob("*.ipynb")):
        for path, place in links(page):
            target = page.parent / path if path else page
            if not target.exists() or (place and place not in places(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}#{place}")
    assert broken == []


def test_pages_that_the_code_names_are_there():
    files = [
        *source_files().values(),
        ROOT / "compose.yaml",
        *(ROOT / "docker").iterdir(),
        *(ROOT / "tests").rglob("*.py"),
    ]
    named = {page for file in files for page in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))}
    assert "docs/explanation/shapleyfl.md" in named and [page for page in named if not (ROOT / page).exists()] == []


def test_every_page_is_reachable_from_the_index():
    found, todo = set(), [DOCS / "README.md"]
    while todo:
        page = todo.pop()
        if page not in found:
            found.add(page)
            targets = [(page.parent / path).resolve() for path, _ in links(page) if path]
            todo += [target for target in targets if target.suffix in (".md", ".ipynb")]
    assert {page.resolve() for page in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))} - found == set()


def test_lines_are_short():
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > WIDEST and not line.lstrip().startswith("|")  # tables may be wider
    ]
    assert long == []


def test_nobody_is_told_to_end_processes_by_a_pattern():
    assert not [page for page in PAGES if re.search(r"\b(pkill|killall)\b", page.read_text(encoding="utf-8"))]


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(DOCS / "tutorials" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "save it without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("did you mean 'pfedsv.top-k'?" in text for text in printed)


@pytest.mark.slow
def test_the_examples_of_the_library_run(tmp_path):
    text = (DOCS / "reference" / "library.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    assert len(examples) == 3
    for example in examples:
        subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True, timeout=300)
