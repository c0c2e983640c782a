"""The run configuration: every wrong key and value is refused with its name and the remedy."""

import re

import pytest
from pydantic import ValidationError

from coterie.server.app import checked_config
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import default_config, method_of, parse_config, sections
from coterie.tasks.models import ModelError
from coterie.tasks.samples import DataError
from coterie.wire.config import RunConfig, choose, split_sections
from coterie.wire.errors import ConfigError

WRONG = [
    ({"strategy": "fedavgg"}, "strategy = 'fedavgg': unknown, did you mean 'fedavg'?; choose one of coterie, local"),
    ({"strategy": "zzz"}, "strategy = 'zzz': unknown; choose one of coterie, local"),
    ({"partition": "dirichlett"}, "partition = 'dirichlett': must be 'auto', 'iid', 'dirichlet'"),
    ({"dirichlet-alpha": 0.0}, "dirichlet-alpha = 0.0: must be greater than 0"),
    ({"dirichlet-alpha": 0}, "dirichlet-alpha = 0: must be greater than 0"),
    ({"dirichlet-alpha": float("nan")}, "dirichlet-alpha = nan: must be a finite number"),
    ({"labels-per-client": 0}, "labels-per-client = 0: must be greater than or equal to 1"),
    ({"num-server-rounds": 0}, "num-server-rounds = 0: must be greater than or equal to 1"),
    ({"num-server-rounds": 2.5}, "num-server-rounds = 2.5: must be a valid integer"),
    ({"num-server-rounds": "10"}, "num-server-rounds = '10': must be a valid integer"),
    ({"num-server-rounds": True}, "num-server-rounds = True: must be a valid integer"),
    ({"num-clients": -1}, "num-clients = -1: must be greater than or equal to 0"),
    ({"seed": -1}, "seed = -1: must be greater than or equal to 0"),
    ({"fraction-train": 0.0}, "fraction-train = 0.0: must be greater than 0"),
    ({"fraction-train": 1.5}, "fraction-train = 1.5: must be less than or equal to 1"),
    ({"learning-rate": -0.1}, "learning-rate = -0.1: must be greater than 0"),
    ({"learning-rate": float("inf")}, "learning-rate = inf: must be a finite number"),
    ({"momentum": 1.0}, "momentum = 1.0: must be less than 1"),
    ({"test-fraction": 1.0}, "test-fraction = 1.0: must be less than 1"),
    ({"batch-size": 0}, "batch-size = 0: must be greater than or equal to 1"),
    ({"quorum": 0.0}, "quorum = 0.0: must be greater than 0"),
    ({"buffers": "keep"}, "buffers = 'keep': must be 'average', 'local' or 'drop'"),
    ({"device": "gpu"}, "device = 'gpu': must be auto, cpu, mps, cuda or cuda:<number>"),
    ({"round-timeout": 0.0}, "round-timeout = 0.0: must be greater than 0"),
    ({"fedprox.mu": -1.0}, "fedprox.mu = -1.0: must be greater than or equal to 0"),
    ({"fedprox.mu": "high"}, "fedprox.mu = 'high': must be a valid number"),
    ({"fedfomo.models": 0}, "fedfomo.models = 0: must be greater than or equal to 1"),
    ({"fedfomo.epsilon": 1.5}, "fedfomo.epsilon = 1.5: must be less than or equal to 1"),
    ({"fedprox.nu": 1.0}, "fedprox.nu: there is no such key, did you mean 'fedprox.mu'?"),
    ({"num-server-round": 3}, "num-server-round: there is no such key, did you mean 'num-server-rounds'?"),
    ({"zzzzzz": 3}, "zzzzzz: there is no such key; the keys here are strategy, task, model"),
    ({"num_server_rounds": 3}, "num_server_rounds: there is no such key, did you mean 'num-server-rounds'?"),
    ({"fedproxx.mu": 1.0}, "fedproxx.mu: no method has keys under 'fedproxx'; these have: "),
    ({"fedavg.mu": 1.0}, "fedavg.mu: no method has keys under 'fedavg'; these have: "),
]


@pytest.mark.parametrize(("values", "expected"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_values(values, expected):
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert str(caught.value).startswith(expected), str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError, match=r"^seed = -1: .*; batch-size = 0: "):
        parse_config({"seed": -1, "batch-size": 0})


@pytest.mark.parametrize(
    ("values", "error", "expected"),
    [
        ({"task": "digts"}, DataError, "task = 'digts': unknown. Did you mean 'digits'"),
        ({"model": "lenet"}, ModelError, "model = 'lenet': unknown. Did you mean 'lenet5'"),
        ({"task": "heart", "model": "lenet5"}, ModelError, "model = 'lenet5': needs images, this task has 13 features"),
        ({"model": "nowhere.py"}, ModelError, "model = 'nowhere.py': there is no such file"),
    ],
)
def test_the_server_refuses_tasks_and_models_before_anything_starts(values, error, expected):
    with pytest.raises(error, match=re.escape(expected)):
        checked_config(values)


def test_a_method_of_another_name_is_checked_too():
    """A setting is wrong whether or not its method runs."""
    with pytest.raises(ConfigError, match=r"fedprox\.mu"):
        parse_config({"strategy": "local", "fedprox.mu": -1.0})


def test_whole_numbers_are_numbers():
    config, settings = parse_config({"learning-rate": 1, "fedprox.mu": 2})
    assert config.learning_rate == 1.0 and settings["fedprox"].mu == 2.0


def test_frozen():
    with pytest.raises(ValidationError):
        RunConfig().seed = 2


def test_defaults_come_back_as_they_are():
    config, settings = parse_config(default_config())
    assert config == RunConfig(strategy="coterie") and set(settings) == set(sections())
    flat = config.as_config()
    for name, group in settings.items():
        flat |= group.as_config(prefix=f"{name}.")
    assert flat == default_config() | {"strategy": "coterie"}  # digits have labels
    assert parse_config({})[0] == RunConfig(strategy="coterie")


def test_all_strategies_of_the_documentation():
    expected = {"local", "fedavg", "fedprox", "fedbn", "fedper", "fedrep", "fedfomo", "fedavg-ft"}
    assert expected <= set(METHODS)
    assert all(method_of(name).name == name for name in METHODS)


def test_every_key_has_a_description_a_group_and_a_kebab_name():
    for name, field in RunConfig.model_fields.items():
        assert field.description and field.json_schema_extra["group"], name
    for settings in sections().values():
        assert all(field.description for field in settings.model_fields.values())
    assert all(re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)?", key) for key in default_config())


def test_sections():
    top, sections = split_sections({"seed": 1, "a.b": 2, "a.c-d": 3, "x.y.z": 4})
    assert top == {"seed": 1} and sections == {"a": {"b": 2, "c-d": 3}, "x": {"y.z": 4}}


def test_choose():
    assert choose("key", "b", ["a", "b"]) == "b"
    with pytest.raises(ConfigError, match=r"^key = 'c': unknown; choose one of a, b$"):
        choose("key", "c", ["a", "b"])
