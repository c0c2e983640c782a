"""The run configuration: every key that server and clients both read, with its default, its bounds and its help text.

Keys are in kebab-case, as in `[tool.flwr.app.config]`. Keys of one method stand under its name (`fedprox.mu`) and are checked
by that method's own settings class (strategies/).
"""

import difflib
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.wire.errors import ConfigError

Value = bool | int | float | str


class Settings(BaseModel):
    """A frozen group of settings, read from kebab-case keys under a common prefix."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        keys = cls.keys()
        for key in values:
            if key not in keys:
                raise ConfigError(_unknown(prefix + key, [prefix + known for known in keys]))
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_explain(error, prefix)) from None

    @classmethod
    def keys(cls) -> list[str]:
        return [name.replace("_", "-") for name in cls.model_fields]

    def as_config(self, prefix: str = "") -> dict[str, Value]:
        return {prefix + key: value for key, value in self.model_dump(by_alias=True).items()}


WHAT, DATA, TRAINING, ROUNDS, PLACES = "What to run", "Data", "Local training", "Rounds and faults", "Places"


def setting(default: Any, group: str, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"group": group}, **bounds)


class RunConfig(Settings):
    strategy: str = setting(
        "auto",
        WHAT,
        "Who trains with whom: a method, or your own .py file; auto: coterie where labels are classes, else fedavg.",
    )
    task: str = setting("digits", WHAT, "What is learned: a data set, or 'own' with --data.")
    model: str = setting(
        "auto", WHAT, "The network, or your own .py file. auto: lenet5 for images, mlp for tables, linear for values."
    )
    pretrained: str = setting("", WHAT, "Weights to begin with: a state dict of the network, as .safetensors.")
    seed: int = setting(1, WHAT, "All randomness comes from it.", ge=0)

    metric: Literal["auto", "accuracy", "balanced-accuracy", "auroc", "auprc", "f1", "brier", "r2", "mae", "loss"] = (
        setting(
            "auto",
            WHAT,
            "What models are chosen by, games are played on and tables sorted by. auto: as each method has it, and accuracy.",
        )
    )
    threshold: float = setting(
        0.5,
        WHAT,
        "Of two labels, the second is said if its probability is above it: for F1, sensitivity, specificity.",
        gt=0.0,
        lt=1.0,
    )
    baseline: Literal["auto", "local", "none"] = setting(
        "auto",
        WHAT,
        "Also train each client alone, to say who gains. auto: local where that is cheap and nobody trains privately.",
    )

    num_clients: int = setting(
        0, DATA, "How many clients take part. 0: all (a simulation has 10, or the task's natural clients).", ge=0
    )
    partition: Literal["auto", "iid", "dirichlet", "pathological", "shards", "natural"] = setting(
        "auto",
        DATA,
        "How data are spread over clients. auto: natural where the task has natural clients, else pathological.",
    )
    dirichlet_alpha: float = setting(0.5, DATA, "Concentration of the dirichlet partition; small: unequal.", gt=0.0)
    dirichlet_balanced: bool = setting(
        False, DATA, "Dirichlet partition: a client that has its equal share gets no more of the labels that follow."
    )
    labels_per_client: int = setting(2, DATA, "Labels of each client in the pathological partition.", ge=1)
    shards_per_client: int = setting(2, DATA, "Label-sorted shards of each client in the shards partition.", ge=1)
    long_tail: float = setting(
        1.0,
        DATA,
        "Samples of the most frequent label for one of the rarest, before data are dealt; 1: as they are.",
        ge=1.0,
    )
    shift: Literal["none", "rotate", "rotate-invert", "tilt", "permute-labels", "swap-labels", "lone", "lones"] = (
        setting("none", DATA, "For experiments: client i is of kind i mod shift-groups, and kinds differ in this.")
    )
    shift_groups: int = setting(3, DATA, "For experiments: how many kinds of clients there are.", ge=1)
    client_samples: str = setting(
        "", DATA, "Most samples that a client has to train and validate with: 60, or a range like 6-48 to draw from."
    )
    test_data: Literal["own", "published"] = setting(
        "own",
        DATA,
        "What clients test with: a share of their own data, or of the published test set, which then nobody trains with.",
    )
    test_fraction: float = setting(0.2, DATA, "Share of each client's data kept for testing.", gt=0.0, lt=1.0)
    validation_fraction: float = setting(
        0.1, DATA, "Share of each client's other data kept for validation.", ge=0.0, lt=1.0
    )
    folds: int = setting(
        0,
        DATA,
        "Test every sample once: as many runs, each with another share of every client's data for testing.",
        ge=0,
    )
    fold: int = setting(0, DATA, "Only this one of the folds, counted from 1. 0: all.", ge=0)
    data: str = setting(
        "", DATA, "Your own data for task 'own': .npz, .csv, .py, an image folder, or tables: north.csv,south.csv."
    )
    label: str = setting("", DATA, "Tables: the column to learn. Empty: `label` or `target`, of one file the last.")
    ignore: str = setting("", DATA, "Tables: columns to leave out, separated by commas.")
    table_schema: str = setting("", DATA, "Tables: a file of `coterie schema`. Empty: the clients agree at the start.")
    missing: str = setting("", DATA, "Tables: codes for missing cells beside NA, ? and the like, e.g. -1,chol=0.")
    min_count: int = setting(5, DATA, "Tables: a category that fewer rows of a client have is told to nobody.", ge=1)
    scaling: Literal["federation", "site"] = setting(
        "federation", DATA, "Tables, your own images: scaled by all clients' statistics, or by each client's own."
    )
    delimiter: str = setting("", DATA, "Tables: what separates cells. Empty: it is found.")
    decimal: str = setting("", DATA, "Tables: the decimal sign. Empty: it is found.")
    encoding: str = setting("utf-8", DATA, "Tables: how text is written, e.g. latin-1.")
    bad_files: Literal["leave-out", "refuse"] = setting(
        "leave-out", DATA, "Folders of images: what to do with files that cannot be read."
    )
    classes: str = setting("", DATA, "Labels of your own data: a number, names separated by commas, or regression.")
    input_shape: str = setting(
        "", DATA, "Shape of your own data: 1,28,28 for images, 13 for 13 features. Task linear: its features."
    )
    linear_groups: int = setting(3, DATA, "Task linear: groups of clients with like coefficients.", ge=1)
    linear_deviation: float = setting(
        0.1, DATA, "Task linear: how far a client's coefficients are from its group's, per feature.", ge=0.0
    )
    linear_noise: float = setting(1.0, DATA, "Task linear: standard deviation of the noise.", ge=0.0)
    linear_samples: str = setting("100", DATA, "Task linear: samples of each client, or a range like 20-80.")
    server_data: str = setting(
        "",
        DATA,
        "The server's validation data, kept from all clients: a number or a share of the task's (test) samples, or a path.",
    )

    local_epochs: int = setting(2, TRAINING, "Passes over a client's data per round.", ge=1)
    batch_size: int = setting(32, TRAINING, "Samples per step.", ge=1)
    learning_rate: float = setting(0.05, TRAINING, "Step length of local SGD.", gt=0.0)
    momentum: float = setting(0.0, TRAINING, "Momentum of local SGD.", ge=0.0, lt=1.0)
    weight_decay: float = setting(0.0, TRAINING, "L2 penalty of local SGD.", ge=0.0)
    dropout: float = setting(0.0, TRAINING, "Share of mlp's hidden units that a step leaves out.", ge=0.0, lt=1.0)
    class_weights: Literal["none", "balanced", "client"] = setting(
        "none",
        TRAINING,
        "Rare labels count more in training: by the counts of all clients (tables), or of each client's own.",
    )
    augment: str = setting("", TRAINING, "Images: change them at random in training: flip, crop, or both (flip,crop).")
    patience: int = setting(
        0,
        TRAINING,
        "Clients keep the model of their best round by validation; the run ends when all had so many without a better one. "
        "0: off.",
        ge=0,
    )
    buffers: Literal["average", "local", "drop"] = setting(
        "average",
        TRAINING,
        "BatchNorm's running statistics: averaged, kept by each client, or none (normalise by the batch).",
    )
    device: str = setting("auto", TRAINING, "auto, cpu, cuda, cuda:1 or mps.", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    threads: int = setting(
        1, TRAINING, "Threads per client; other numbers may change the last digits of results.", ge=1
    )

    num_server_rounds: int = setting(20, ROUNDS, "Rounds of training.", ge=1)
    fraction_train: float = setting(1.0, ROUNDS, "Share of the clients that train in a round.", gt=0.0, le=1.0)
    evaluate_every: int = setting(1, ROUNDS, "Evaluate all clients every so many rounds (and after the last).", ge=1)
    quorum: float = setting(0.5, ROUNDS, "Share of the asked clients that must answer well.", gt=0.0, le=1.0)
    round_retries: int = setting(2, ROUNDS, "How often a round without quorum is repeated before the run ends.", ge=0)
    round_timeout: float = setting(300.0, ROUNDS, "Seconds to wait for the answers of a round.", gt=0.0)
    join_timeout: float = setting(
        120.0, ROUNDS, "Seconds to wait for all clients at first, later for a quorum.", gt=0.0
    )
    disk_patience: float = setting(
        600.0, ROUNDS, "Seconds to wait for room on a full disk before the run stops; it can be resumed.", ge=0.0
    )

    data_root: str = setting("data", PLACES, "Directory of the data sets.")
    strategy_file: str = setting("", PLACES, "The file of a method of your own; set by --strategy my_method.py.")
    observers: str = setting(
        "",
        PLACES,
        "Who else is told how the run goes: tensorboard, mlflow or one that is installed, separated by commas.",
    )
    run_dir: str = setting("", PLACES, "Directory of the run; must be new. Empty: runs/TIME-STRATEGY-TASK.")
    run_id: str = setting(
        "",
        PLACES,
        "Under which name clients keep what belongs to the run. Empty: a new one, as every new run needs it.",
    )


def split_sections(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Top-level keys, and the keys of each section: {"fedprox.mu": 1.0} becomes {"fedprox": {"mu": 1.0}}."""
    top: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for key, value in config.items():
        section, dot, rest = key.partition(".")
        if dot:
            sections.setdefault(section, {})[rest] = value
        else:
            top[key] = value
    return top, sections


def choose(key: str, value: str, choices: list[str]) -> str:
    """`value`, if it is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{key} = {value!r}: unknown{_hint(value, choices)}; choose one of {', '.join(choices)}")
    return value


def _hint(value: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(value, choices, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _unknown(key: str, keys: list[str]) -> str:
    hint = _hint(key, keys) or f"; the keys here are {', '.join(keys)}"
    return f"{key}: there is no such key{hint}"


def _explain(error: ValidationError, prefix: str) -> str:
    lines = []
    for problem in error.errors():
        if problem["type"] == "value_error":  # a check of ours, in its own words
            lines.append(str(problem["ctx"]["error"]))
            continue
        key = prefix + str(problem["loc"][0]).replace("_", "-")
        message = problem["msg"]
        if problem["type"] == "string_pattern_mismatch":
            message = "Input should be auto, cpu, mps, cuda or cuda:<number>"
        lines.append(f"{key} = {problem['input']!r}: {message[0].lower()}{message[1:].replace('input should', 'must')}")
    return "; ".join(lines).replace("input should", "must")
