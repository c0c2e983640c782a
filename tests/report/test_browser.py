"""The page in a real browser: no errors, no network, client by click, keys and address, search, sort, themes, phone, axe."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from coterie.server.report import write_comparison, write_report

chromium = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(chromium is None, reason="chromium is not installed: apt-get install chromium"),
]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser) -> Iterator[Any]:
    """Open a page; whatever it says in the console, whatever it asks for elsewhere, is an error."""
    seen: list[str] = []
    contexts = []

    def go(path, address: str = "", width: int = 1400, **how: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: seen.append(dialog.message))
        elsewhere = ("file:", "data:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(elsewhere) else seen.append(asked.url))
        page.goto(f"file://{path}{address}")
        return page

    yield go
    for context in contexts:
        context.close()
    assert seen == []


@pytest.fixture(scope="module")
def report(made_run, tmp_path_factory):
    return write_report(made_run(tmp_path_factory.mktemp("twelve") / "run"))


def chosen(page: Any) -> list[str]:
    """The client of every mark that stands out."""
    return page.evaluate("[...document.querySelectorAll('.chosen')].map(node => run().clients[node.dataset.client])")


def test_a_client_is_chosen_everywhere_by_click_keys_search_and_address(report, show):
    page = show(report)
    assert page.locator("#one").is_hidden()
    page.locator("#gain [data-client]").first.click()
    name = page.locator("#one h2").text_content()
    assert set(chosen(page)) == {name} and page.url.endswith(f"#client={name}")
    for card in ("gain", "who-relevance", "graph", "worth", "clients"):
        assert page.locator(f"#{card} .chosen").count(), card
    assert page.locator("#rounds path.mine").count() == 1
    page.locator("#worth figure").press("Escape")
    assert chosen(page) == [] and "#" not in page.url
    page.locator("#worth figure").press("ArrowDown")
    page.locator("#worth figure").press("ArrowDown")
    second = page.evaluate("run().clients[byWorth()[1]]")
    assert set(chosen(page)) == {second} and page.locator("#said").text_content().startswith(second)
    page.locator("#tools input").fill("C4")
    page.locator("#tools input").press("Enter")
    assert set(chosen(page)) == {"C4"}
    assert page.locator("#one").text_content().count("no answer within 9 seconds") == 1
    assert set(chosen(show(report, "#client=B3"))) == {"B3"}


def test_tables_are_searched_sorted_and_saved(report, show):
    page = show(report)
    names = page.locator("#clients tbody tr td:first-child")
    assert names.count() == 12
    page.locator("#clients input").fill("b")
    assert names.all_text_contents() == ["B1", "B2", "B3", "B4"]
    page.locator("#clients input").fill("")
    head = page.locator("#clients th", has_text="gain")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    gains = page.evaluate("run().gain")
    best = sorted(zip(gains, page.evaluate("run().clients"), strict=True), reverse=True)
    assert names.all_text_contents() == [name for _, name in best]
    with page.expect_download() as saved:
        page.locator("#worth .actions button", has_text="CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert lines[0] == "client,worth,standard error,times judged" and len(lines) == 1 + page.evaluate(
        "byWorth().length"
    )
    with page.expect_download() as saved:
        page.locator("#gain .actions button", has_text="SVG").click()
    picture = saved.value.path().read_text()
    assert picture.startswith("<svg") and "var(--" not in picture and ">A1<" in picture
    page.locator("#gain .actions button", has_text="Table").click()
    assert page.locator("#gain tbody tr").count() == 12


@pytest.mark.parametrize(("clients", "rounds", "kinds"), [(4, 3, 2), (12, 5, 3), (100, 20, 5), (1000, 20, 30)])
def test_every_size_fits_a_phone_and_a_screen(clients, rounds, kinds, made_run, tmp_path, show):
    path = write_report(made_run(tmp_path / "run", clients, rounds, kinds))
    assert path.stat().st_size < (2_000_000 if clients < 1000 else 5_000_000)
    for width, theme in ((400, "dark"), (1400, "light")):
        page = show(path, width=width, color_scheme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("section").count() > 6
    took = """() => { const tries = []; for (let k = 0; k < 5; k++) { const began = performance.now();
        choose(run().clients[k % run().clients.length], { quiet: true }); document.body.offsetHeight;
        tries.push(performance.now() - began); }
        return Math.min(...tries); }"""
    assert page.evaluate(took) < 100  # milliseconds, to show a client everywhere
    if clients == 1000:
        page.locator("[data-coalition]").first.click()
        assert 20 < page.locator("#gain [data-client]").count() < 50
        page.locator("#who-relevance button", has_text="all clients").click()
        assert page.locator("#who-relevance image").count() == 2


def test_axe_finds_nothing_and_themes_change(report, made_run, tmp_path, show):
    from axe_playwright_python.sync_playwright import Axe

    several = {made_run(tmp_path / f"run-{seed}", 6, 3, 2, seed): "" for seed in (1, 2)}
    for path in (report, write_comparison(tmp_path / "report.html", several)):
        for theme in ("light", "dark"):
            page = show(path, "#client=A1", color_scheme=theme)
            found = Axe().run(page).response["violations"]
            told = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]
            assert told == [], json.dumps(told, indent=1)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_names_of_strangers_are_text(made_run, tmp_path, show):
    path = write_report(made_run(tmp_path / "run", 4, 3, 2, names=[HOSTILE, "=1+1", "</script>", "b\"'&"]))
    page = show(path, "#client=%3D1%2B1")
    assert page.locator("#one h2").text_content() == "=1+1"
    assert page.locator("img").count() == 0 and HOSTILE in page.locator("#clients").text_content()
    with page.expect_download() as saved:
        page.locator("#clients .actions button", has_text="CSV").click()
    assert "\r\n'=1+1," in saved.value.path().read_bytes().decode()
    assert "b\"'&" in page.locator("#clients").text_content()


def test_it_prints_in_black_on_white_within_the_paper(report, show):
    page = show(report, width=718, color_scheme="dark")  # A4 without its margins
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.locator("#tools").is_hidden() and page.locator("#gain svg").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)" != dark
    cells = "[...document.querySelectorAll('#who-relevance rect[fill]')].map(node => node.getAttribute('fill')).join()"
    page.evaluate(f"window.addEventListener('beforeprint', () => {{ window.painted = {cells} }})")
    page.emulate_media(media="screen")
    on_screen = page.evaluate(cells)
    assert page.pdf().startswith(b"%PDF")
    painted = page.evaluate("window.painted")
    assert painted not in ("", on_screen) and "NaN" not in painted and page.evaluate(cells) == on_screen
