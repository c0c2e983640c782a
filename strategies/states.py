"""What a restarted server needs of a method: the attributes that it names, as JSON and numpy arrays.

Arrays may stand anywhere inside dictionaries and lists; in the JSON a reference takes their place. An object keeps its
state by itself if it has `state_dict` and `load_state_dict`, which then may use all of this, too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

ARRAY, SET = "$array", "$set"


def pack_state(name: str, value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON; its arrays go to `arrays`, under names that begin with `name`."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {ARRAY: name}
    if hasattr(value, "state_dict"):
        return pack_state(name, value.state_dict(), arrays)
    if isinstance(value, Mapping):
        return {key: pack_state(f"{name}.{key}", inner, arrays) for key, inner in value.items()}
    if isinstance(value, set):
        return {SET: sorted(value)}
    if isinstance(value, list | tuple):
        return [pack_state(f"{name}.{i}", inner, arrays) for i, inner in enumerate(value)]
    return value


def unpack_state(told: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(told, Mapping):
        if ARRAY in told:
            return np.array(arrays[told[ARRAY]])
        if SET in told:
            return set(told[SET])
        return {key: unpack_state(inner, arrays) for key, inner in told.items()}
    if isinstance(told, list):
        return [unpack_state(inner, arrays) for inner in told]
    return told


def restore(owner: Any, name: str, told: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Give `owner` its attribute back."""
    value = unpack_state(told, arrays)
    current = getattr(owner, name)
    if hasattr(current, "load_state_dict"):
        current.load_state_dict(value)
    else:
        setattr(owner, name, value)
