"""All methods by the names that users type. A new method is one file and one line here; from outside it is an entry point."""

import functools
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any

from coterie.strategies.method import Answer, Method
from coterie.wire.attack import AttackSettings
from coterie.wire.config import RunConfig, Settings, Value, choose, split_sections
from coterie.wire.errors import ConfigError
from coterie.wire.messages import Order
from coterie.wire.privacy import PrivacySettings

BUILT_IN = {  # name -> where its class is, below coterie.strategies
    "local": "local:Local",
    "fedavg": "fedavg:FedAvg",
    "fedavg-ft": "fedavg_ft:FedAvgFt",
    "fedprox": "fedprox:FedProx",
    "fedbn": "fedbn:FedBN",
    "fedper": "fedper:FedPer",
    "fedrep": "fedrep:FedRep",
    "fedfomo": "fedfomo:FedFomo",
    "pfedsim": "pfedsim:PFedSim",
    "pfedsv": "pfedsv:PFedSV",
    "lg-fedavg": "lg_fedavg:LGFedAvg",
    "per-fedavg": "per_fedavg:PerFedAvg",
    "pfedme": "pfedme:PFedMe",
    "pfedhn": "pfedhn:PFedHN",
    "pfedocf": "pfedocf:PFedOCF",
    "spo": "spo:SPO",
    "ce": "spo.ce:CE",
    "afl": "afl:AFL",
    "q-ffl": "q_ffl:QFFL",
    "afedsv": "shapleyfl:AFedSV",
    "afedsv-plus": "shapleyfl:AFedSVPlus",
    "fedsv": "fedsv:FedSV",
    "s-fedavg": "s_fedavg:SFedAvg",
    "rfa": "robust:RFA",
    "krum": "robust:Krum",
    "median": "robust:Median",
    "trimmed-mean": "robust:TrimmedMean",
}
GROUP = "coterie.methods"  # of entry points


def names() -> list[str]:
    """All methods that are installed here."""
    return [*BUILT_IN, *(name for name in sorted(_plugged_in()) if name not in BUILT_IN)]


@functools.cache
def _plugged_in() -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


@functools.cache
def method_of(strategy: str) -> type[Method]:
    """The class of a method, loaded when it is asked for."""
    if strategy in BUILT_IN:
        module, _, name = BUILT_IN[strategy].partition(":")
        found: type[Method] = getattr(import_module(f"coterie.strategies.{module}"), name)
        return found
    choose("strategy", strategy, names())
    plugged: type[Method] = _plugged_in()[strategy].load()
    return plugged


def handlers(strategy: str) -> dict[str, tuple[type[Order], Answer]]:
    """What clients do with the messages that are this method's own."""
    return method_of(strategy).handlers()


def section_of(strategy: str) -> str:
    """Where the settings of a method stand; some methods share a section."""
    return method_of(strategy).section or strategy


@functools.cache
def sections() -> dict[str, type[Settings]]:
    """All groups of settings beside the top level."""
    methods = {section_of(name): method_of(name).Settings for name in names()}
    return {**methods, "attack": AttackSettings, "privacy": PrivacySettings}


def parse_config(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Settings]]:
    """The whole run configuration, every key checked: the top level, and the settings of every section."""
    top, given = split_sections(values)
    config = RunConfig.parse(top)
    choose("strategy", config.strategy, names())
    for section, keys in given.items():
        if section not in sections() or not sections()[section].keys():
            key = f"{section}.{next(iter(keys))}"
            known = [name for name, settings in sections().items() if settings.keys()]
            raise ConfigError(f"{key}: no method has keys under {section!r}; these have: {', '.join(known)}")
    return config, {
        name: settings.parse(given.get(name, {}), prefix=f"{name}.") for name, settings in sections().items()
    }


def default_config() -> dict[str, Value]:
    """Every key with its default, as it stands in pyproject.toml."""
    values = RunConfig().as_config()
    for name, settings in sections().items():
        values |= settings().as_config(prefix=f"{name}.")
    return values
