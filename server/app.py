"""The ServerApp: reads the configuration, makes the method, runs the rounds, writes the run directory."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.client.images import has_images
from coterie.server.agreement import agree_on_tables, check_tables
from coterie.server.checkpoints import read_events
from coterie.server.findings import PairMatrix, found, suspects_in_words, write_findings
from coterie.server.living import held
from coterie.server.observers import observers_of
from coterie.server.pixels import agree_on_pixels
from coterie.server.report import NoPage, write_report
from coterie.server.results import judged_in_words
from coterie.server.roundlog import RoundLog
from coterie.server.rundir import RunDirectory, begun_run_dir, new_run_dir
from coterie.server.status import StatusFile, told_first
from coterie.strategies.judging import judge
from coterie.strategies.observer import Observer
from coterie.strategies.registry import method_of, parse_config, section_of
from coterie.tasks.metrics import ALWAYS, OF_VALUES
from coterie.tasks.models import has_batchnorm
from coterie.tasks.resolve import dealt_names, model_name, network_of, spec_of
from coterie.tasks.schema import read_schema
from coterie.tasks.sources import is_table_run
from coterie.tasks.spec import usual_of
from coterie.tasks.training import kinds_of
from coterie.wire.arrays import pack
from coterie.wire.attack import AttackSettings, known_bad_clients
from coterie.wire.checks import Layout
from coterie.wire.config import RunConfig, Settings, Value
from coterie.wire.errors import ConfigError, CoterieError, RunFailed
from coterie.wire.files import NO_ROOM, flush, waiting_for_room
from coterie.wire.fingerprint import fingerprint_with
from coterie.wire.log import join_flowers_log
from coterie.wire.privacy import PrivacySettings
from coterie.wire.unfinished import noted

log = logging.getLogger(__name__)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    join_flowers_log()
    logging.getLogger("flwr").addFilter(one_line_errors)
    config = checked_config(context.run_config)
    config["run-id"] = config["run-id"] or str(context.run_id)
    path = begun_run_dir(config) or new_run_dir(config)
    config["run-dir"] = str(path)
    log.info("run directory: %s", path)
    with noted(context.run_id, config, len(read_events(path))), told_first(path):
        result = run(grid, config, path, [RoundLog(int(config["num-server-rounds"]))])
    if result["mean-test-accuracy"]:
        log.info("mean test accuracy: %s", result["mean-test-accuracy"])
    else:
        log.info("mean test loss: %s", {kind: model["mean"]["loss"] for kind, model in result["models"].items()})
    if "suspects" in (findings := found(path)):
        log.info("%s", suspects_in_words(findings["suspects"]))
    for finding in findings.values():
        if "in-words" in finding.facts:
            log.info("%s", finding.facts["in-words"])
    for line in judged_in_words(result):
        log.info("%s", line)


def one_line_errors(record: logging.LogRecord) -> bool:
    """A log filter: Flower reports what a ServerApp raises with its stack, of which a user's mistake needs the message only."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, CoterieError | OSError):
        record.msg, record.args, record.exc_info = "%s", (str(error),), None
    return True


def checked_config(values: Mapping[str, Any]) -> dict[str, Value]:
    """Every key of the run, defaults filled in; refuses wrong ones before anything starts."""
    config, settings = parse_config({**usual_of(str(values.get("task", RunConfig().task))), **values})
    if is_table_run(config) and config.table_schema:
        config = config.model_copy(update={"table_schema": read_schema(config.table_schema).to_json()})
    spec = spec_of(config)
    checked = config.as_config()
    if not is_table_run(config):
        checked |= {"model": model_name(spec, config.model)}
    for name, group in settings.items():
        checked |= group.as_config(prefix=f"{name}.")
    check_metric(config)
    method = method_of(config.strategy, config.strategy_file)
    method.check(config)
    if method.needs_server_data and not config.server_data:
        raise ConfigError(
            f"strategy = {config.strategy!r}: plays its game on validation data of the server's own, and server-data is empty; "
            "give a share of the task's test samples (server-data='0.2'), a number of them ('2000'), or a file"
        )
    mode = checked["privacy.mode"]
    check_learning(config, str(mode))
    if mode not in ("off", *method.private):
        others = " or ".join(f"'{other}'" for other in (*method.private, "off"))
        raise ConfigError(
            f"privacy.mode = {mode!r}: strategy {config.strategy!r} {method.not_private}; "
            f"use privacy.mode={others}, or another strategy"
        )
    if is_table_run(config):
        check_tables(config, cast(PrivacySettings, settings["privacy"]))
        model_name(spec, config.model)
    else:
        initial_layout(config, settings["privacy"])  # a model that does not fit the task, or a wrong file of the user's
    return checked


def check_learning(config: RunConfig, privacy: str) -> None:
    """Settings that do not go together."""
    if config.class_weights != "none" and privacy == "dp-sgd":
        raise ConfigError(
            f"class-weights = {config.class_weights!r}: tells how many samples of each label there are, which no noise covers; "
            "leave it out with privacy.mode='dp-sgd'"
        )
    if config.class_weights == "balanced" and (not is_table_run(config) or privacy != "off"):
        raise ConfigError(
            "class-weights = 'balanced': goes by the labels that the clients of tables tell of, without privacy; use 'client'"
        )
    if strangers := set(kinds_of(config.augment)) - {"flip", "crop"}:
        raise ConfigError(
            f"augment = {config.augment!r}: {min(strangers)!r} is unknown; write flip, crop, or flip,crop"
        )
    if config.augment and (len(spec_of(config).input_shape) != 3 or privacy == "dp-sgd"):
        raise ConfigError(f"augment = {config.augment!r}: is for images, and not for dp-sgd; leave it out")
    if config.patience and not config.validation_fraction:
        raise ConfigError(f"patience = {config.patience}: needs validation samples, and validation-fraction is 0")
    if config.folds == 1 or config.fold > config.folds or (config.folds and config.test_data == "published"):
        raise ConfigError(
            f"folds = {config.folds}, fold = {config.fold}: take 2 folds or more, a fold of them, and test-data='own'"
        )


def run(
    grid: Grid,
    values: Mapping[str, Value],
    run_dir: Path,
    observers: Sequence[Observer] = (),
    label_overlap: PairMatrix | None = None,
) -> dict[str, Any]:
    """All rounds of a run; its result. `label_overlap` is the truth about pairs of clients, which only a simulation knows."""
    with held(run_dir), waiting_for_room(float(values["disk-patience"])):
        others = observers_of(str(values.get("observers", "")), run_dir, values)
        observers = [StatusFile(run_dir, values), *observers, *others]
        try:
            result = _run(grid, values, run_dir, observers, label_overlap)
            flush(run_dir / "models", "*.safetensors")  # of a simulation's clients
        except BaseException as error:
            error = _full_disk(error, run_dir) or error
            for observer in observers:
                observer.failed(error)
            raise error
        for observer in observers:
            observer.ended(result)
        return result


def _full_disk(error: BaseException, run_dir: Path) -> RunFailed | None:
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        return None
    return RunFailed(
        f"the disk is full, and was so for all of disk-patience ({error.filename or run_dir}); all finished rounds are there: "
        f"make room, then `coterie resume {run_dir}`"
    )


def _run(
    grid: Grid,
    values: Mapping[str, Value],
    run_dir: Path,
    observers: Sequence[Observer],
    label_overlap: PairMatrix | None,
) -> dict[str, Any]:
    config, settings = parse_config(values)
    name, file = config.strategy, config.strategy_file
    kind = method_of(name, file)
    directory = RunDirectory(run_dir, values, fingerprint_with(kind))
    privacy = settings["privacy"]
    assert isinstance(privacy, PrivacySettings)
    greeting, refused = dict[str, str](), dict[str, str]()
    if is_table_run(config):
        config, refused = agree_on_tables(grid, config, privacy, directory.code, run_dir, observers)
        greeting = {"schema": config.table_schema}
    elif has_images(config) and config.scaling == "federation" and not config.server_data and privacy.mode == "off":
        channels = spec_of(config).input_shape[0]
        text, refused = agree_on_pixels(grid, config, channels, directory.code, run_dir, observers)
        greeting = {"pixels": text} if text else {}
    check_metric(config)
    layout = initial_layout(config, privacy)
    announce_privacy(config, privacy)
    config = config.model_copy(update={"run_dir": str(run_dir)})
    method = kind(config, settings[section_of(name, file)], layout, [directory, *observers])
    method.greeting, method.refused = greeting, refused
    if directory.state:
        method.load_state_dict(directory.state)
        log.info("going on after round %d", method.last_round)
    method.start(grid, pack(layout.parts), num_rounds=config.num_server_rounds, timeout=config.round_timeout)
    clients = method.federation.connected
    dealt = dealt_names(config, len(clients))
    bad = known_bad_clients(cast(AttackSettings, settings["attack"]), clients, dealt, config.seed)
    write_findings(run_dir, method.findings(), label_overlap, bad)
    result = directory.finish(judge(method, directory.tested, privacy.mode))
    try:
        write_report(run_dir)
    except NoPage as error:
        log.warning("%s", error)
    return result


def announce_privacy(config: RunConfig, privacy: PrivacySettings) -> None:
    if privacy.mode == "weights":
        log.warning("privacy.mode = 'weights': noise is added to uploaded weights; this gives no formal guarantee")
    if privacy.mode == "dp-sgd" and has_batchnorm(network_of(config)):
        log.warning("privacy.mode = 'dp-sgd': BatchNorm mixes samples; GroupNorm takes its place in this run")


def check_metric(config: RunConfig) -> None:
    """Whether the task has what the metric is about."""
    regression = spec_of(config).kind == "regression"
    suited = ("auto", *OF_VALUES) if regression else ("auto", *ALWAYS, "brier", "loss")
    if config.metric not in suited:
        kind = "values" if regression else "labels"
        raise ConfigError(
            f"metric = {config.metric!r}: task {config.task!r} has {kind}; choose one of {', '.join(suited)}"
        )


def initial_layout(config: RunConfig, privacy: Settings | None = None) -> Layout:
    """The initial model; its weights depend on the seed alone."""
    group_norm = isinstance(privacy, PrivacySettings) and privacy.mode == "dp-sgd"
    network = network_of(config, group_norm=group_norm)
    classes, features = network.classifier.weight.shape
    return Layout(network.dump(), network.variances(), (classes, features), group_norm)
