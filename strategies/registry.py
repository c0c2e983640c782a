"""All methods by the names that users type. A new method is one file and one line here."""

from collections.abc import Mapping
from typing import Any

from strategies.base import Method
from strategies.fedavg import FedAvg
from strategies.fedavg_ft import FedAvgFt
from strategies.fedbn import FedBN
from strategies.fedfomo import FedFomo
from strategies.fedper import FedPer
from strategies.fedprox import FedProx
from strategies.fedrep import FedRep
from strategies.local import Local
from strategies.pfedsim import PFedSim
from strategies.pfedsv import PFedSV
from wire.config import ConfigError, RunConfig, Settings, Value, choose, split_sections

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (Local, FedAvg, FedAvgFt, FedProx, FedBN, FedPer, FedRep, FedFomo, PFedSim, PFedSV)
}


def parse_config(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Settings]]:
    """The whole run configuration, every key checked: the top level, and the settings of every method."""
    top, sections = split_sections(values)
    config = RunConfig.parse(top)
    choose("strategy", config.strategy, list(METHODS))
    for section, keys in sections.items():
        if section not in METHODS or not METHODS[section].settings_class.keys():
            key = f"{section}.{next(iter(keys))}"
            known = [name for name, method in METHODS.items() if method.settings_class.keys()]
            raise ConfigError(f"{key}: no method has keys under {section!r}; these have: {', '.join(known)}")
    return config, {
        name: method.settings_class.parse(sections.get(name, {}), prefix=f"{name}.") for name, method in METHODS.items()
    }


def default_config() -> dict[str, Value]:
    """Every key with its default, as it stands in pyproject.toml."""
    values = RunConfig().as_config()
    for name, method in METHODS.items():
        values |= method.settings_class().as_config(prefix=f"{name}.")
    return values
