"""What other packages bring: entry points, in groups of ours (coterie.methods, .models, .data, .attacks, .observers)."""

import functools
from importlib import metadata
from typing import Any

from coterie.wire.errors import ConfigError


@functools.cache
def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=group)}


@functools.cache
def load(group: str, name: str) -> Any:
    entry = entry_points(group)[name]
    try:
        return entry.load()
    except Exception as error:  # another's code can raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{name!r}: the entry point {entry.value!r} of {group} cannot be loaded ({what}); repair its package"
        ) from error


def names(group: str, ours: tuple[str, ...]) -> list[str]:
    """All names that may be chosen: ours, and then those of others, who cannot take ours away."""
    return [*ours, *sorted(set(entry_points(group)) - set(ours))]
