"""The laws that every method must keep, for methods of your own and for ours.

    check_method(MyMethod)                       a class
    check_method("my_method.py", mu=0.1)         a file, and settings of the method or of the run

Each law is a tiny federation on handwritten digits, in this process, with a fault in it. A broken law raises an
AssertionError that names it.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, Error, Message, MetricRecord

from coterie.strategies import plugins
from coterie.strategies.findings import as_json
from coterie.strategies.method import Method
from coterie.strategies.registry import method_of, parse_config, register
from coterie.tasks.images import load_digits
from coterie.trial import ASK, CLIENTS, TEST, TRAIN, Played, TamperedGrid, Trial
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError, NoQuorum, RunFailed
from coterie.wire.messages import HELLO, METRICS, MODEL, ORDER

LAWS: dict[str, Callable[[Trial], None]] = {}


def check_method(
    method: type[Method] | str | Path, *, laws: Sequence[str] = (), processes: bool = False, **settings: Value
) -> None:
    """Try a method (its class, its file or its name): all laws, or those of the given names.

    `settings` are keys of the method's own (`mu=0.1`) or of the run (`model="mlp"`). With `processes` the same run is also
    made of real processes, which takes half a minute; a class must then be in a file or installed.
    """
    strategy = register(method) if isinstance(method, type) else str(method)
    try:
        _check(strategy, laws, processes, settings)
    finally:
        plugins.given.pop(strategy, None)


def _check(strategy: str, laws: Sequence[str], processes: bool, settings: Mapping[str, Value]) -> None:
    config, _ = parse_config({"strategy": strategy})
    own = method_of(config.strategy, config.strategy_file)
    values: dict[str, Value] = {}
    for name, value in settings.items():
        key = name.replace("_", "-")
        values[f"{own.section or own.name}.{key}" if key in own.Settings.keys() else key] = value
    for name in laws:
        choose("laws", name, list(LAWS))
    chosen = {name: LAWS[name] for name in laws or LAWS}
    parse_config({**values, "strategy": strategy})  # mistakes in the call are not the method's
    with tempfile.TemporaryDirectory(prefix="coterie-") as home:
        trial = Trial(strategy, values, Path(home))
        for name, holds in (chosen | ({"processes": _processes} if processes else {})).items():
            try:
                holds(trial)
            except Exception as error:
                what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                raise AssertionError(f"{own.name} breaks the law {name!r} ({holds.__doc__}): {what}") from error


def law(name: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    def add(holds: Callable[[Trial], None]) -> Callable[[Trial], None]:
        LAWS[name] = holds
        return holds

    return add


def must_be_alike(one: Played, other: Played, *, but_rounding: bool = False) -> None:
    """The same bytes; `but_rounding`: the last digits of the numbers in a method's state may differ."""
    expected, got = one.outcome(), other.outcome()
    if but_rounding:
        expected["state"], got["state"] = _rounded(expected["state"]), _rounded(got["state"])
    for part, value in expected.items():
        differing = [key for key in value.keys() | got[part].keys() if value.get(key) != got[part].get(key)]
        assert not differing, f"{part}: {', '.join(sorted(differing)[:3])} differ"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


# What is told.


@law("told")
def _told(trial: Trial) -> None:
    """event lines and findings are JSON without NaN, all clients are tested, models are finite"""
    whole = trial.whole()
    assert [event["round"] for event in whole.events] == list(range(1, whole.method.num_rounds + 1))
    whole.must_have_tested(CLIENTS)
    whole.must_be_finite()
    try:
        json.dumps(as_json(whole.method.findings()), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"findings: {error}") from error


# Same seed, same result.


@law("workers")
def _workers(trial: Trial) -> None:
    """any number of workers gives the same result"""
    for workers in (1, 2):
        must_be_alike(trial.whole(), trial.play(workers=workers, fraction_train=0.75))


@law("resumes")
def _resumes(trial: Trial) -> None:
    """a new server that goes on from the state after any round ends alike"""
    for snapshot in trial.whole().snapshots[:-1]:
        must_be_alike(trial.whole(), trial.play(start=snapshot, fraction_train=0.75))


@law("repeated round")
def _repeated(trial: Trial) -> None:
    """a round that is repeated gives what it would have given at once"""
    tries = 0

    def lose(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        nonlocal tries
        if grid.phase == TRAIN and asked.metadata.group_id == "2":
            tries += 1
            if 1 < tries <= 3:  # of three answers two: no quorum
                return Message(Error(code=5, reason="Node Unavailable"), reply_to=asked)
        return answer

    repeated = trial.play(tamper=lose, fraction_train=0.75, quorum=0.7)
    assert repeated.method.num_rounds < 2 or tries > 3, "round 2 was not repeated"
    must_be_alike(trial.whole(), repeated, but_rounding=True)  # what is sent again may be summed in another order


# Clients with little data.


@law("idle client")
def _idle(trial: Trial) -> None:
    """a client with one sample, that says it has none, harms nobody"""
    digits = load_digits()
    file = trial.home / "one.npz"
    np.savez(file, x=digits.x[:1], y=digits.y[:1])

    def deny(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        if name == "3" and answer.has_content() and "num-samples" in answer.content.metric_records.get(METRICS, {}):
            answer.content.metric_records[METRICS]["num-samples"] = 0
        return answer

    played = trial.play(tamper=deny, data={"3": str(file)}, num_server_rounds=2)
    played.must_have_tested(CLIENTS)
    played.must_be_finite()


@law("never sampled")
def _never_sampled(trial: Trial) -> None:
    """clients that never trained are tested, too"""
    trial.play(fraction_train=0.25, num_server_rounds=1).must_have_tested(CLIENTS)


@law("single client")
def _single(trial: Trial) -> None:
    """a single client is served, or refused with a reason"""
    if played := _unless_refused(trial, num_clients=1, num_server_rounds=2):
        played.must_have_tested(["0"])
        played.must_be_finite()


@law("no validation data")
def _no_validation(trial: Trial) -> None:
    """clients without validation data are served, or refused with a reason"""
    if played := _unless_refused(trial, validation_fraction=0.0, num_server_rounds=2):
        played.must_have_tested(CLIENTS)
        played.must_be_finite()


def _unless_refused(trial: Trial, **values: Value) -> Played | None:
    try:
        return trial.play(**values)  # type: ignore[arg-type]
    except NoQuorum:
        raise  # clients failed: nobody refused anything
    except (ConfigError, RunFailed):
        return None


# Clients that come and go.


@law("late client")
def _late(trial: Trial) -> None:
    """a client that joins after round 1 takes part"""

    def unnumbered(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        if asked.metadata.message_type == HELLO:
            answer.content.config_records[ORDER]["num_partitions"] = 0  # so that three may begin without the fourth
        return answer

    played = trial.play(
        tamper=unnumbered, nodes=4, away=["3"], after=lambda played, _: played.grid.away.clear(), num_clients=3
    )
    if played.method.num_rounds > 1:
        played.must_have_tested(CLIENTS)
    played.must_be_finite()


@law("leaving client")
def _leaving(trial: Trial) -> None:
    """a client that leaves after round 1 is left out by name, and the others go on"""

    def gone(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        if name in grid.away:
            return Message(Error(code=5, reason="Node Unavailable"), reply_to=asked)
        return answer

    played = trial.play(tamper=gone, after=lambda played, _: played.grid.away.add("0"))
    if played.method.num_rounds > 1:
        _must_be_left_out(played, "0", played.events[1:2])
        played.must_have_tested(CLIENTS[1:])
    played.must_be_finite()


# Answers that are bad.


def _must_be_left_out(played: Played, client: str, events: list[dict[str, object]]) -> None:
    for event in events:
        left_out, trained = event["left-out"], event["train"]
        assert isinstance(left_out, dict) and isinstance(trained, dict)
        assert client in left_out, f"round {event['round']}: client {client} is not left out by name"
        assert client not in trained, f"round {event['round']}: client {client} is left out, and yet trained"


def spoil(answer: Message) -> Message:
    """Its first array becomes NaN; without arrays, its numbers."""
    models = answer.content.array_records.get(MODEL)
    if models:
        first = next(iter(models))
        models[first] = Array(np.full_like(models[first].numpy(), np.nan))
    else:
        metrics = answer.content.metric_records.get(METRICS, MetricRecord())
        for name, value in metrics.items():
            if isinstance(value, float):
                metrics[name] = float("nan")
    return answer


@law("nan")
def _nan(trial: Trial) -> None:
    """a client that uploads NaN is left out by name, and models stay finite"""

    def harm(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        return spoil(answer) if name == "2" and grid.phase == TRAIN and answer.has_content() else answer

    def judge(played: Played, number: int) -> None:  # at once: what one NaN does to the next round is not the point
        _must_be_left_out(played, "2", played.events[-1:])

    played = trial.play(tamper=harm, after=judge, num_server_rounds=2)
    played.must_have_tested(CLIENTS)
    played.must_be_finite()


@law("nan when asked")
def _nan_when_asked(trial: Trial) -> None:
    """NaN in an answer to another question than training harms nobody"""

    def harm(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message:
        other = grid.phase == ASK and asked.metadata.message_type != HELLO
        return spoil(answer) if name == "2" and other and answer.has_content() else answer

    if trial.whole().grid.asked_more:
        played = trial.play(tamper=harm, num_server_rounds=2)
        played.must_be_finite()


@law("silent client")
def _silent(trial: Trial) -> None:
    """a client that never answers an order is left out by name, and not waited for"""

    def swallow(grid: TamperedGrid, asked: Message, answer: Message, name: str) -> Message | None:
        return None if name == "3" and grid.phase != TEST and asked.metadata.message_type != HELLO else answer

    played = trial.play(tamper=swallow, round_timeout=0.05, num_server_rounds=2)
    _must_be_left_out(played, "3", played.events)
    played.must_have_tested(CLIENTS)
    played.must_be_finite()


def _processes(trial: Trial) -> None:
    """real processes give the same result"""
    from coterie.deploy import up  # not needed for the others

    config = trial.config(fraction_train=0.75, join_timeout=120.0, baseline="none")
    played, wanted = up({**config, "run-dir": str(trial.home / "processes")}, progress=False), trial.whole().result
    judged = {"baseline", "judged", "metric", "not-judged"}  # what comes after the rounds, and is not the method's
    assert {key: told for key, told in played.result.items() if key not in judged} == wanted, "result.json differs"
