"""Options made from the run configuration: every top-level key is an option of the same name, the rest go by --set."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import click
from typer.core import TyperOption

from coterie.strategies.registry import default_config, names, outside_config, sections
from coterie.tasks.installed import task_names
from coterie.tasks.models import model_names
from coterie.wire.config import RunConfig, Value
from coterie.wire.errors import ConfigError

CHOICES = {"strategy": ["auto", *names()], "task": [*task_names(), "own"], "model": model_names()}
TYPES: dict[Any, Any] = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
METAVARS: dict[Any, str] = {int: "N", float: "X", bool: "true|false"}


def config_options(leave_out: Iterable[str] = ()) -> list[click.Parameter]:
    options: list[click.Parameter] = []
    for name, field in RunConfig.model_fields.items():
        key = name.replace("_", "-")
        if key in leave_out:
            continue
        extra: Any = field.json_schema_extra
        text = str(field.description)
        if key in CHOICES:
            text += f" [{', '.join(CHOICES[key])}]"
        elif choices := get_args(field.annotation):
            text += f" [{', '.join(choices)}]"
        options.append(
            TyperOption(
                param_decls=[f"--{key}"],
                type=TYPES.get(field.annotation, click.STRING),
                default=None,
                show_default=str(field.default) if field.default != "" else False,
                help=text,
                rich_help_panel=extra["group"],
                metavar=METAVARS.get(field.annotation, "TEXT"),
            )
        )
    options.append(
        TyperOption(
            param_decls=["--set", "settings"],
            multiple=True,
            metavar="KEY=VALUE",
            help=f"A setting of a method or of privacy, for example --set fedprox.mu=0.1. Keys: {', '.join(method_keys())}.",
            rich_help_panel="What to run",
        )
    )
    return options


def method_keys() -> list[str]:
    return [f"{name}.{key}" for name, settings in sections().items() for key in settings.keys()]


def given_values(arguments: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Value]:
    """The keys that the user gave; everything else keeps its default."""
    values: dict[str, Value] = {key.replace("_", "-"): value for key, value in arguments.items() if value is not None}
    defaults = default_config() | outside_config(str(values.get("strategy", "")))
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write KEY=VALUE, for example --set fedprox.mu=0.1")
        values[key.strip()] = _value(value.strip(), isinstance(defaults.get(key.strip()), str))
    return values


def _value(text: str, is_text: bool) -> Value:
    """A number or a truth value where it reads as one, unless the setting is a text: attack.clients=3."""
    try:
        value = json.loads(f"0{text}" if text.startswith(".") else text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, str if is_text else bool | int | float | str) else text


def parse_list(key: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ConfigError(f"{key} = {text!r}: name at least one, separated by commas")
    return items


def parse_seeds(text: str) -> list[int]:
    items = parse_list("seeds", text)
    if not all(item.isdecimal() for item in items):
        raise ConfigError(f"seeds = {text!r}: write whole numbers separated by commas, for example 1,2,3")
    return [int(item) for item in items]


def parse_sweep(texts: Iterable[str]) -> dict[str, list[Value]]:
    defaults, sweep = default_config(), dict[str, list[Value]]()
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(f"--sweep {text}: write KEY=A,B,..., for example --sweep pfedsim.warmup=0,0.5,1")
        sweep[key] = [_value(item, isinstance(defaults.get(key), str)) for item in parse_list(f"sweep {key}", values)]
    return sweep
