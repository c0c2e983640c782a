"""All methods by the names that users type. A new method is one file and one line here."""

from collections.abc import Mapping
from typing import Any

from strategies.afl import AFL
from strategies.base import Method
from strategies.ce import CE
from strategies.fedavg import FedAvg
from strategies.fedavg_ft import FedAvgFt
from strategies.fedbn import FedBN
from strategies.fedfomo import FedFomo
from strategies.fedper import FedPer
from strategies.fedprox import FedProx
from strategies.fedrep import FedRep
from strategies.fedsv import FedSV
from strategies.lg_fedavg import LGFedAvg
from strategies.local import Local
from strategies.per_fedavg import PerFedAvg
from strategies.pfedhn import PFedHN
from strategies.pfedme import PFedMe
from strategies.pfedocf import PFedOCF
from strategies.pfedsim import PFedSim
from strategies.pfedsv import PFedSV
from strategies.q_ffl import QFFL
from strategies.robust import RFA, Krum, Median, TrimmedMean
from strategies.s_fedavg import SFedAvg
from strategies.shapleyfl import AFedSV, AFedSVPlus
from strategies.spo import SPO
from wire.attack import AttackSettings
from wire.config import ConfigError, RunConfig, Settings, Value, choose, split_sections
from wire.privacy import PrivacySettings

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
