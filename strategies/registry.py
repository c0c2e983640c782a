"""All methods by the names that users type. A new method is one file and one line here."""

from collections.abc import Mapping
from typing import Any

from coterie.strategies.afl import AFL
from coterie.strategies.base import Method
from coterie.strategies.ce import CE
from coterie.strategies.fedavg import FedAvg
from coterie.strategies.fedavg_ft import FedAvgFt
from coterie.strategies.fedbn import FedBN
from coterie.strategies.fedfomo import FedFomo
from coterie.strategies.fedper import FedPer
from coterie.strategies.fedprox import FedProx
from coterie.strategies.fedrep import FedRep
from coterie.strategies.fedsv import FedSV
from coterie.strategies.lg_fedavg import LGFedAvg
from coterie.strategies.local import Local
from coterie.strategies.per_fedavg import PerFedAvg
from coterie.strategies.pfedhn import PFedHN
from coterie.strategies.pfedme import PFedMe
from coterie.strategies.pfedocf import PFedOCF
from coterie.strategies.pfedsim import PFedSim
from coterie.strategies.pfedsv import PFedSV
from coterie.strategies.q_ffl import QFFL
from coterie.strategies.robust import RFA, Krum, Median, TrimmedMean
from coterie.strategies.s_fedavg import SFedAvg
from coterie.strategies.shapleyfl import AFedSV, AFedSVPlus
from coterie.strategies.spo import SPO
from coterie.wire.attack import AttackSettings
from coterie.wire.config import RunConfig, Settings, Value, choose, split_sections
from coterie.wire.errors import ConfigError
from coterie.wire.privacy import PrivacySettings

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        *(Local, FedAvg, FedAvgFt, FedProx, FedBN, FedPer, FedRep, FedFomo, PFedSim, PFedSV),
        *(LGFedAvg, PerFedAvg, PFedMe, PFedHN, PFedOCF),
        *(SPO, CE, AFL, QFFL),
        *(AFedSV, AFedSVPlus, FedSV, SFedAvg, RFA, Krum, Median, TrimmedMean),
    )
}

SECTIONS: dict[str, type[Settings]] = {
    **{method.section or name: method.settings_class for name, method in METHODS.items()},
    "attack": AttackSettings,
    "privacy": PrivacySettings,
}


def section_of(strategy: str) -> str:
    """Where the settings of a method stand; some methods share a section."""
    return METHODS[strategy].section or strategy


def parse_config(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Settings]]:
    """The whole run configuration, every key checked: the top level, and the settings of every section."""
    top, sections = split_sections(values)
    config = RunConfig.parse(top)
    choose("strategy", config.strategy, list(METHODS))
    for section, keys in sections.items():
        if section not in SECTIONS or not SECTIONS[section].keys():
            key = f"{section}.{next(iter(keys))}"
            known = [name for name, settings in SECTIONS.items() if settings.keys()]
            raise ConfigError(f"{key}: no method has keys under {section!r}; these have: {', '.join(known)}")
    return config, {
        name: settings.parse(sections.get(name, {}), prefix=f"{name}.") for name, settings in SECTIONS.items()
    }


def default_config() -> dict[str, Value]:
    """Every key with its default, as it stands in pyproject.toml."""
    values = RunConfig().as_config()
    for name, settings in SECTIONS.items():
        values |= settings().as_config(prefix=f"{name}.")
    return values
