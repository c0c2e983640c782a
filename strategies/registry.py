"""All methods by the names that users type. A new method is one file and one line here; from outside: plugins.py."""

import functools
import logging
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.strategies import plugins
from coterie.strategies.method import Method
from coterie.tasks.resolve import with_method
from coterie.wire.attack import AttackSettings
from coterie.wire.config import RunConfig, Settings, Value, choose, split_sections
from coterie.wire.errors import ConfigError, Refused
from coterie.wire.fingerprint import fingerprint, fingerprint_with
from coterie.wire.installed import entry_points
from coterie.wire.privacy import PrivacySettings

log = logging.getLogger(__name__)

BUILT_IN = {  # name -> where its class is, below coterie.strategies
    "coterie": "coterie:Coterie",
    "local": "local:Local",
    "fedavg": "fedavg:FedAvg",
    "fedavg-ft": "fedavg_ft:FedAvgFt",
    "fedprox": "fedprox:FedProx",
    "fedbn": "fedbn:FedBN",
    "fedper": "fedper:FedPer",
    "fedrep": "fedrep:FedRep",
    "fedbabu": "fedbabu:FedBABU",
    "fedrod": "fedrod:FedRoD",
    "ditto": "ditto:Ditto",
    "feddyn": "feddyn:FedDyn",
    "fedamp": "fedamp:FedAMP",
    "ifca": "ifca:IFCA",
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
    "fltrust": "fltrust:FLTrust",
    "rfa": "robust:RFA",
    "krum": "robust:Krum",
    "median": "robust:Median",
    "trimmed-mean": "robust:TrimmedMean",
}


def names() -> list[str]:
    """All methods that are installed here."""
    return [*BUILT_IN, *sorted({*entry_points(plugins.GROUP), *plugins.given} - set(BUILT_IN))]


def method_of(strategy: str, file: str = "") -> type[Method]:
    """The class of a method, loaded when it is asked for; `file` is where it is, if it is not installed."""
    if file:
        return _with_free_name(plugins.from_file(file))
    if strategy in BUILT_IN:
        return _built_in(strategy)
    choose("strategy", strategy, names())
    return plugins.given[strategy] if strategy in plugins.given else _with_free_name(plugins.installed(strategy))


@functools.cache
def _built_in(strategy: str) -> type[Method]:
    module, _, name = BUILT_IN[strategy].partition(":")
    found: type[Method] = getattr(import_module(f"coterie.strategies.{module}"), name)
    return found


def register(method: type[Method]) -> str:
    """Make a class that is in no file known in this process, for example one of a notebook; its name."""
    if method.name not in BUILT_IN or _built_in(method.name) is not method:
        plugins.given[method.name] = _with_free_name(plugins.checked(method, f"strategy: {method.__name__}"))
    return method.name


def _with_free_name(method: type[Method]) -> type[Method]:
    """A method from outside with a name and a section of its own."""
    if method.name in (*BUILT_IN, *built_in_sections()):
        raise ConfigError(
            f"strategy: {method.__name__} has the name {method.name!r}, which Coterie uses itself; "
            "give it another: name = 'my-method'"
        )
    if method.section and method.Settings is not built_in_sections().get(method.section):
        raise ConfigError(
            f"strategy: {method.__name__} has settings of its own; they stand under its name: section = None"
        )
    return method


def resolve(config: RunConfig) -> RunConfig:
    """The method by its name; if it comes from a file, that is beside it, read anew."""
    file = config.strategy if config.strategy.endswith(".py") else config.strategy_file
    if not file:
        config = with_method(config)
        choose("strategy", config.strategy, names())
        return config
    path = str(Path(file).expanduser().absolute())
    method = _with_free_name(plugins.from_file(path, again=True))
    if config.strategy not in (file, method.name):
        raise ConfigError(f"strategy = {config.strategy!r}: strategy-file has the method {method.name!r}")
    return config.model_copy(update={"strategy": method.name, "strategy_file": path})


def on_client(strategy: str, files: str) -> type[Method]:
    """The method as a client has it: installed, or in one of the `files` that its owner named. No other file is opened."""
    for file in filter(None, files.split(os.pathsep)):
        if plugins.from_file(file).name == strategy:
            return plugins.from_file(file)
    if strategy not in names():
        raise Refused(f"has no method {strategy!r}: install it there, or start the client with --method {strategy}.py")
    return method_of(strategy)


def code_on_client(strategy: str, files: str) -> str:
    """The fingerprint of all that a client answers with. Methods of Coterie's own are part of it, and not loaded for that."""
    return fingerprint() if strategy in BUILT_IN else fingerprint_with(on_client(strategy, files))


def section_of(strategy: str, file: str = "") -> str:
    """Where the settings of a method stand; some methods share a section."""
    method = method_of(strategy, file)
    return method.section or method.name


@functools.cache
def built_in_sections() -> dict[str, type[Settings]]:
    """Those of Coterie's own."""
    methods = {_built_in(name).section or name: _built_in(name).Settings for name in BUILT_IN}
    return {**methods, "attack": AttackSettings, "privacy": PrivacySettings}


def sections() -> dict[str, type[Settings]]:
    """All groups of settings beside the top level, of all that is installed here."""
    found: dict[str, type[Settings]] = {}
    for name in names()[len(BUILT_IN) :]:
        try:
            found[section_of(name)] = method_of(name).Settings
        except ConfigError as error:  # harms nobody who does not want it
            log.warning("%s", error)
    return found | built_in_sections()


def parse_config(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Settings]]:
    """The whole run configuration, every key checked: the top level, and the settings of every section. Those of methods
    from outside are there if the run is theirs, or the user gave some."""
    top, given = split_sections(values)
    config = resolve(RunConfig.parse(top))
    own = section_of(config.strategy, config.strategy_file)
    of_files = {
        method.name: method.Settings for method in plugins.of_files()
    }  # a comparison gives each run all settings
    known = of_files | sections() | {own: method_of(config.strategy, config.strategy_file).Settings}
    for section, keys in given.items():
        if section not in known or not known[section].keys():
            key = f"{section}.{next(iter(keys))}"
            having = [name for name, settings in known.items() if settings.keys()]
            raise ConfigError(f"{key}: no method has keys under {section!r}; these have: {', '.join(having)}")
    meant = [name for name in known if name in built_in_sections() or name in given or name == own]
    return config, {name: known[name].parse(given.get(name, {}), prefix=f"{name}.") for name in meant}


def outside_config(strategy: str = "") -> dict[str, Value]:
    """Every key of the methods from outside with its default: of those that are installed, and of the file `strategy`."""
    groups = {name: settings for name, settings in sections().items() if name not in built_in_sections()}
    if strategy.endswith(".py"):
        config = resolve(RunConfig(strategy=strategy))
        groups[section_of(config.strategy, config.strategy_file)] = method_of("", config.strategy_file).Settings
    return {key: value for name, group in groups.items() for key, value in group().as_config(f"{name}.").items()}


def default_config() -> dict[str, Value]:
    """Every key of Coterie's own with its default, as it stands in pyproject.toml."""
    values = RunConfig().as_config()
    for name, settings in built_in_sections().items():
        values |= settings().as_config(prefix=f"{name}.")
    return values
