"""The tutorial: each command is run, and prints what the page shows; numbers may differ in their last digits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "three-hospitals.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def plain(text: str) -> str:
    """Without figures, whose last digits depend on the machine, and without the borders' widths."""
    return re.sub(r"[━─\s]+", " ", re.sub(r"\d\.\d{4}", "#", text)).strip()


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows(tmp_path):
    printed = None
    seen = []
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "text":
            assert plain(printed) == plain(text)
            continue
        command = (
            [sys.executable, "-c", text]
            if kind == "python"
            else [sys.executable, "-m", *text.replace("\\\n", " ").split()]
        )
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
        seen.append(done.stderr)
    assert any("column patient id: looks like an id" in err for err in seen)
    assert "line 4, column pain: 'odd' was not told in training, and counts as (other)" in seen[-1]
