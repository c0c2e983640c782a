"""Make what is made from the Settings classes: pyproject's run configuration and the tables of reference/settings.md.

    python docs/make_settings.py            write them
    python docs/make_settings.py --check    or say what is not up to date, and fail

Both stand between marks, `settings: NAME` and `settings: end`; what is around them is written by hand.
"""

import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

from coterie.strategies import registry
from coterie.wire.config import RunConfig, Settings

HOME = Path(__file__).resolve().parents[1]
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def sections() -> dict[str, type[Settings]]:
    """Where the keys with a dot in them come from."""
    return {name: settings for name, settings in registry.built_in_sections().items() if settings.keys()}


def toml() -> str:
    """The run configuration, as it stands under [tool.flwr.app.config]."""
    tables = ["[tool.flwr.app.config]\n" + _assignments(RunConfig)]
    tables += [f"[tool.flwr.app.config.{name}]\n{_assignments(settings)}" for name, settings in sections().items()]
    return "\n".join(tables)


def _assignments(settings: type[Settings]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings().as_config().items())


def tables() -> dict[str, str]:
    """The tables of the page by their marks: the groups of the top level, what has a chapter, and all methods."""
    rows: dict[str, list[str]] = {}
    for key, field in zip(RunConfig.keys(), RunConfig.model_fields.values(), strict=True):
        extra: Any = field.json_schema_extra
        rows.setdefault(extra["group"], []).append(_row(key, field))
    for name, settings in sections().items():
        fields = zip(settings.keys(), settings.model_fields.values(), strict=True)
        mark = name if name in ("attack", "privacy") else "methods"
        rows.setdefault(mark, []).extend(_row(f"{name}.{key}", field) for key, field in fields)
    head = "| key | default | takes | |\n|---|---|---|---|\n"
    return {mark: head + "".join(lines) for mark, lines in rows.items()}


def _row(key: str, field: Any) -> str:
    default = field.default if isinstance(field.default, str) else json.dumps(field.default)
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(bound, name)
    ]
    extra: Any = field.json_schema_extra or {}
    choices = ", ".join(f"`{choice}`" for choice in extra.get("choices", get_args(field.annotation)))
    takes = choices or f"{TYPES[field.annotation]} {' and '.join(bounds)}".strip()
    text = re.sub(r"docs/([\w/-]+/)?([\w-]+)\.md", r"[\2](../\1\2.md)", field.description.replace("<", "&lt;"))
    return f"| `{key}` | {f'`{default}`' if default else ''} | {takes} | {text} |\n"


def fill(text: str, parts: dict[str, str], comment: str, where: str) -> str:
    """`text` with `parts` between their marks; `comment` is how the file writes a comment."""
    begin, end = re.escape(comment).split(r"\{\}")
    marked = re.compile(f"({begin}settings: ([^\n]+?){end}\n).*?\n({begin}settings: end{end}\n)", re.DOTALL)
    marks = [mark for _, mark, _ in marked.findall(text)]
    if sorted(marks) != sorted(parts):
        raise SystemExit(f"error: {where} has marks for {marks}, but there is {list(parts)}; add or remove marks")
    return marked.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n{found[3]}", text)


def main() -> None:
    files = [
        (HOME / "pyproject.toml", {"made by docs/make_settings.py": toml()}, "# {}"),
        (HOME / "docs" / "reference" / "settings.md", tables(), "<!-- {} -->"),
    ]
    stale = False
    for path, parts, comment in files:
        there = path.read_text(encoding="utf-8")
        made = fill(there, parts, comment, path.name)
        if "--check" not in sys.argv[1:]:
            path.write_text(made, encoding="utf-8")
        elif made != there:
            stale = True
            lines = difflib.unified_diff(
                there.splitlines(), made.splitlines(), f"{path.name} as it is", "as it should be", lineterm=""
            )
            print("\n".join(lines))
    if stale:
        raise SystemExit("error: not up to date; run python docs/make_settings.py")


if __name__ == "__main__":
    main()
