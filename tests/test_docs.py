"""The documents name what there is: every key with its default, every method, every file."""

import re
from pathlib import Path

import pytest
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import default_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def test_settings_lists_every_key_with_its_default():
    text = (ROOT / "docs" / "settings.md").read_text().split("## Of one device")[0]
    rows = dict(re.findall(r"^\| `([a-z0-9.-]+)` \| (?:`([^`]*)`)? ?\|", text, flags=re.M))
    assert rows == {key: str(value) for key, value in default_config().items()}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_in_the_readme_and_in_methods(name):
    for page in ("README.md", "docs/methods.md"):
        rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| `")]
        assert name in {word for row in rows for word in re.findall(r"`([^`]+)`", row.split("|")[1])}, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
