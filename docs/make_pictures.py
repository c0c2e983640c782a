"""Make the pictures of the README and of the gallery from run directories: what the terminal shows, and the page.

    coterie compare --run-dir runs/first
    python docs/make_pictures.py runs/first
    python docs/make_pictures.py runs/poisoned --name poisoned --client B1 --height 1500
    python docs/make_pictures.py http://127.0.0.1:8400/ --name live --width 400

With a name only the page is drawn, of a run directory or of a live page. The page is drawn by Debian's chromium.
"""

import argparse
import io
import json
import re
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

from coterie.cli import show
from coterie.reporting import report_of
from coterie.rows import Table
from coterie.server.report import best_of

PLACE = Path(__file__).resolve().parent / "pictures"
LEFT_OUT = ("by samples", "global", "seconds")  # what a picture has no room for


def terminal(folder: Path) -> None:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    show.Console = lambda **_: console
    told = json.loads((folder / "comparison.json").read_text())["page"]["tables"][0]
    kept = [i for i, name in enumerate(told["head"]) if name not in LEFT_OUT]
    rows = [[row[i] for i in kept] for row in told["rows"]]
    sentences, run = best_of({path.parent: "" for path in sorted(folder.glob("*/config.json"))})
    show.show([Table(told["title"], [told["head"][i] for i in kept], rows)])
    console.print(" ".join(sentences), highlight=False, markup=False)
    show.show_matrix(run)
    drawn = console.export_svg(title="coterie compare")
    fonts = r"@font-face \{.*?\}\s*|<!--.*?-->"  # which would come from elsewhere
    (PLACE / "compare.svg").write_text(re.sub(fonts, "", drawn, flags=re.S))


def page(place: str, name: str, client: str, theme: str, width: int, height: int) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
        address = place if place.startswith("http") else report_of([Path(place)]).as_uri()
        opened.goto(address + (f"#client={client}" if client else ""))
        picture = Image.open(io.BytesIO(opened.screenshot()))
        picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(PLACE / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("--name", default="")
    parser.add_argument("--client", default="")
    parser.add_argument("--theme", default="light", choices=("light", "dark"))
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1420)
    given = parser.parse_args()
    if not given.name:
        terminal(Path(given.place))
    page(
        given.place, given.name or "report", given.client or ("" if given.name else "A1"), given.theme, given.width,
        given.height,
    )  # fmt: skip
