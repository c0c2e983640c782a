"""The round loop: bad clients harm nobody, repeated rounds change nothing, the same seed gives the same result."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, Error, Message

from coterie.server.app import initial_layout
from coterie.strategies.registry import BUILT_IN as METHODS
from coterie.strategies.registry import default_config, method_of, parse_config, section_of
from coterie.wire.arrays import pack, unpack
from coterie.wire.errors import RunFailed
from coterie.wire.messages import HELLO, METRICS, MODEL, ORDER, TRAIN, EvaluateOrder, TrainOrder

CLIENTS = ["0", "1", "2", "3"]
SOME = [
    "local",
    "fedavg",
    "pfedsv",
    "pfedocf",
    "ce",
]  # all of them keep the laws of coterie.testing, where this is tried, too


def is_training(message: Message) -> bool:
    kinds = (TRAIN, "train.fomo", "train.coalitions", "train.rays", "train.meta", "train.moreau")
    return message.metadata.message_type in kinds


def bad(client: str, kind: str, rounds=(1, 2)):
    """A client whose training always goes wrong."""

    def tamper(asked: Message, answer: Message, name: str) -> Message | None:
        if name != client or not is_training(asked) or int(asked.metadata.group_id) not in rounds:
            return answer
        if kind == "silent":
            return None
        if kind == "error":
            return Message(Error(code=2, reason="RuntimeError: out of luck"), reply_to=asked)
        if kind == "nan":
            parts = answer.content.array_records.get(MODEL)
            if parts:
                first = next(iter(parts))
                parts[first] = Array(np.full_like(parts[first].numpy(), np.nan))
            else:
                answer.content.metric_records[METRICS]["loss"] = float("nan")
        if kind == "huge":
            parts = answer.content.array_records[MODEL]
            first = next(iter(parts))
            parts[first] = Array(np.full_like(parts[first].numpy(), 3e38))
        if kind == "torn":
            parts = answer.content.array_records[MODEL]
            first = next(iter(parts))
            array = parts[first]
            parts[first] = Array(array.dtype, array.shape, array.stype, array.data[:30] + b"((" + array.data[32:])
        return answer

    return tamper


REASONS = {
    "nan": "not finite",
    "error": "error 2: RuntimeError: out of luck",
    "silent": "no answer within 0.5 seconds",
    "torn": "cannot be read",
    "huge": "numbers up to 3e+38; they must not exceed 1e+15",
}


@pytest.mark.parametrize("strategy", SOME)
@pytest.mark.parametrize("kind", ["nan", "error"])
def test_a_bad_client_is_left_out_by_name(strategy, kind, federate):
    check_left_out(strategy, kind, federate)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("fedavg", "silent"), ("fedfomo", "silent"), ("fedavg", "torn"), ("fedper", "torn"), ("fedavg", "huge")],
)
def test_a_silent_or_torn_client_is_left_out_by_name(strategy, kind, federate):
    check_left_out(strategy, kind, federate)


def check_left_out(strategy, kind, federate):
    run = federate(
        tamper=bad("2", kind), strategy=strategy, model="mlp", round_timeout=0.5 if kind == "silent" else 30.0
    )
    for event in run.events:
        assert list(event["left-out"]) == ["2"]
        alone = strategy == "local"  # uploads nothing
        expected = "not a finite number" if alone and kind == "nan" else REASONS[kind]
        assert expected in event["left-out"]["2"]
        assert set(event["train"]) == {"0", "1", "3"}
        assert set(event["bytes-up"]) - ({"2"} if strategy == "ce" else set()) == {
            "0",
            "1",
            "3",
        }  # there it judges models
        paused = {"2"} if kind == "silent" and event["round"] == 1 else set()  # not asked again before the next round
        assert "2" not in event.get("weights", {}) and set(event["evaluate"]) == set(CLIENTS) - paused
        assert set(event["not-tested"]) == paused
    assert all(np.isfinite(value).all() for value in run.model.values())
    assert all(np.isfinite(value).all() for client in CLIENTS for value in run.personal(client).values())
    assert run.result["not-tested"] == {} and set(run.result["models"]["personal"]["clients"]) == set(CLIENTS)


def lying(**lies):
    """Client 2 says something of itself that is not so."""

    def tamper(asked: Message, answer: Message, name: str) -> Message | None:
        if name == "2" and asked.metadata.message_type == HELLO:
            answer.content.config_records[ORDER].update(lies)
        return answer

    return tamper


def nobody(asked: Message, answer: Message, name: str) -> Message | None:
    return None if name == "2" else answer


LIES = {
    "../../x": ({"name": "../../x"}, "'../../x': a client's name has"),
    "..": ({"name": ".."}, "'..': a client's name has"),
    "markup": ({"name": "<b>x</b>"}, "'<b>x</b>': a client's name has"),
    "another's name": ({"name": "1"}, "a client called '1' is connected already"),
    "partitions": ({"num_partitions": 7}, "holds a partition of 7, and there are 4"),
    "counts": ({"num_train": 10**12}, "from 0 to 1000000000"),
    "code": ({"code": "x" * 129}, "must be a fingerprint"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_hello_leaves_the_others_as_they_would_be_without_its_client(lie, federate, tmp_path, caplog):
    said, why = LIES[lie]
    settings = {"strategy": "fedper", "model": "mlp", "join_timeout": 0.3}
    without, run = federate(tamper=nobody, **settings), federate(tamper=lying(**said), **settings)
    assert (run.path / "result.json").read_bytes() == (without.path / "result.json").read_bytes()
    for client in ("0", "1", "3"):
        model = f"models/{client}.safetensors"
        assert (run.path / model).read_bytes() == (without.path / model).read_bytes()
    assert all(why in event["not-admitted"]["node 4"] for event in run.events)
    report = (run.path / "report.html").read_text()
    assert "node 4" in report and "<b>x" not in report and json.dumps(why)[1:-1].replace("<", "\\u003c") in report
    assert why in caplog.text
    assert not [path for path in tmp_path.rglob("x*")]


@pytest.mark.parametrize("strategy", ["fedavg", "pfedsv", "pfedsim"])
@pytest.mark.parametrize("kind", ["huge", "torn"])
def test_the_others_are_as_they_would_be_without_it(strategy, kind, federate):
    """As if the client were there, and failed at every training."""
    settings = {"strategy": strategy, "model": "mlp"}
    failed, run = (federate(tamper=bad("2", kind), **settings) for kind in ("error", kind))
    assert all(np.array_equal(value, failed.model[name]) for name, value in run.model.items())
    for client in ("0", "1", "3"):
        assert all(np.array_equal(value, failed.personal(client)[part]) for part, value in run.personal(client).items())


def test_the_others_get_what_they_would_get_without_it(federate):
    """The weighted mean of the three good uploads."""
    run = federate(tamper=bad("2", "nan"), strategy="fedavg", num_server_rounds=1)
    good = {name: answer for name, answer in run.grid.answered if name != "2" and MODEL in answer.content.array_records}
    counts = {name: answer.content.metric_records[METRICS]["num-samples"] for name, answer in good.items()}
    models = {name: unpack(answer.content.array_records[MODEL]) for name, answer in good.items()}
    for part in ("extractor", "classifier"):
        mean = sum(counts[n] * models[n][part].astype(float) for n in good) / sum(counts.values())
        np.testing.assert_allclose(run.model[part], mean, rtol=1e-5, atol=1e-7)


def test_a_client_that_cannot_be_tested_is_named(federate):
    def tamper(asked, answer, name):
        if asked.metadata.message_type == "evaluate" and name == "1":
            return Message(Error(code=2, reason="MemoryError: no"), reply_to=asked)
        return answer

    run = federate(tamper=tamper, strategy="fedavg", model="mlp")
    assert run.result["not-tested"] == {"1": "error 2: MemoryError: no"}
    assert set(run.result["models"]["global"]["clients"]) == {"0", "2", "3"} and run.result["clients"] == CLIENTS
    assert run.events[-1]["not-tested"] == {"1": "error 2: MemoryError: no"}


def test_nobody_can_be_tested(federate):
    def tamper(asked, answer, name):
        return (
            Message(Error(code=2, reason="MemoryError: no"), reply_to=asked)
            if asked.metadata.message_type == "evaluate"
            else answer
        )

    with pytest.raises(RunFailed, match=r"round 2: no client could be tested\. 0: error 2: MemoryError: no"):
        federate(tamper=tamper, strategy="fedavg", model="mlp", evaluate_every=2)


def test_nobody_has_samples_to_test_with(federate, tmp_path):
    np.savez(tmp_path / "few.npz", x=np.arange(8.0).reshape(4, 2), y=np.array([0, 1, 0, 1]))
    with pytest.raises(RunFailed, match="no client has a sample to test with: take fewer clients"):
        federate(strategy="fedavg", task="own", data=str(tmp_path / "few.npz"))


# --- quorum ----------------------------------------------------------------------------------------------------------


class FirstTry:
    """In round 2, on the first try only, three of four answers are lost."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, asked, answer, name):
        if is_training(asked) and asked.metadata.group_id == "2":
            self.seen.append(name)
            if self.seen.count(name) == 1 and name != "0":
                return Message(Error(code=5, reason="Node Unavailable"), reply_to=asked)
        return answer


@pytest.mark.parametrize("strategy", SOME)
def test_a_repeated_round_gives_what_it_would_have_given_at_once(strategy, federate):
    settings = {"strategy": strategy, "model": "lenet5", "num_server_rounds": 3, "momentum": 0.5}
    smooth = federate(**settings)
    fault = FirstTry()
    repeated = federate(tamper=fault, **settings)
    assert [fault.seen.count(client) for client in CLIENTS] == [2, 2, 2, 2]
    assert repeated.result == smooth.result
    assert (repeated.path / "result.json").read_bytes() == (smooth.path / "result.json").read_bytes()
    assert all(np.array_equal(value, smooth.model[name]) for name, value in repeated.model.items())
    assert [event["left-out"] for event in repeated.events] == [{}, {}, {}]


def test_a_run_without_quorum_ends_and_says_why(federate, tmp_path):
    def tamper(asked, answer, name):
        if is_training(asked) and asked.metadata.group_id == "2" and name != "3":
            return Message(Error(code=2, reason="OSError: disk"), reply_to=asked)
        return answer

    with pytest.raises(RunFailed) as caught:
        federate(tamper=tamper, strategy="fedavg", model="linear", round_retries=1)
    assert str(caught.value) == (
        "round 2: 1 of 4 clients answered well and quorum = 0.5 needs 2, in 2 tries. "
        "0: error 2: OSError: disk; 1: error 2: OSError: disk; 2: error 2: OSError: disk"
    )
    assert len((tmp_path / "run-1" / "events.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "run-1" / "result.json").exists() and (tmp_path / "run-1" / "checkpoint").is_dir()


@pytest.mark.parametrize(
    ("quorum", "good", "goes_on"),
    [
        (0.5, 2, True),
        (0.5, 1, False),
        (0.75, 3, True),
        (0.75, 2, False),
        (1.0, 3, False),
        (0.1, 1, True),
        (0.1, 0, False),
    ],
)
def test_quorum_is_a_share_of_those_asked(quorum, good, goes_on, federate):
    def tamper(asked, answer, name):
        lost = is_training(asked) and int(name) >= good
        return Message(Error(code=5, reason="gone"), reply_to=asked) if lost else answer

    settings = {"strategy": "fedavg", "model": "linear", "quorum": quorum, "round_retries": 0, "num_server_rounds": 1}
    if goes_on:
        assert len(federate(tamper=tamper, **settings).events[0]["left-out"]) == 4 - good
    else:
        with pytest.raises(RunFailed, match="round 1"):
            federate(tamper=tamper, **settings)


def test_the_quorum_is_that_of_the_number_typed(federate):
    """0.28 of 25 clients are 7, though 0.28 * 25 is 7.000000000000001 in binary numbers."""

    def tamper(asked, answer, name):
        lost = is_training(asked) and int(name) >= 7
        return Message(Error(code=5, reason="gone"), reply_to=asked) if lost else answer

    settings = {"strategy": "fedavg", "model": "linear", "num_clients": 25, "round_retries": 0, "num_server_rounds": 1}
    assert len(federate(tamper=tamper, quorum=0.28, **settings).events[0]["train"]) == 7


# --- sampling --------------------------------------------------------------------------------------------------------


def trained(run) -> list[tuple[str, ...]]:
    return [tuple(event["train"]) for event in run.events]


@pytest.mark.parametrize(("fraction", "size"), [(0.5, 2), (0.25, 1), (0.01, 1), (1.0, 4), (0.75, 3)])
def test_a_share_of_the_clients_trains(fraction, size, federate):
    run = federate(strategy="fedavg", model="linear", fraction_train=fraction)
    assert [len(set(names)) for names in trained(run)] == [size, size]
    assert all(set(event["evaluate"]) == set(CLIENTS) for event in run.events)


def test_sampling_is_seeded(federate):
    settings = {"strategy": "fedavg", "model": "linear", "fraction_train": 0.5, "num_server_rounds": 12}
    one, two, other = (trained(federate(seed=seed, **settings)) for seed in (3, 3, 4))
    assert one == two != other
    assert len(set(one)) > 1 and {name for names in one for name in names} == set(CLIENTS)


@pytest.mark.parametrize("strategy", SOME)
def test_clients_that_never_trained_are_tested_too(strategy, federate):
    run = federate(strategy=strategy, model="linear", fraction_train=0.25, num_server_rounds=1)
    assert len(trained(run)[0]) == (4 if strategy == "pfedocf" else 1)  # before its game everybody trains
    assert set(run.result["models"]["personal"]["clients"]) == set(CLIENTS) and run.result["clients"] == CLIENTS
    for client in CLIENTS:
        assert (run.path / "models" / f"{client}.safetensors").is_file()


def test_evaluation_every_so_often_and_after_the_last_round(federate):
    run = federate(strategy="fedavg", model="linear", num_server_rounds=5, evaluate_every=2)
    assert ["evaluate" in event for event in run.events] == [False, True, False, True, True]
    assert run.result["rounds"] == 5


# --- event lines -----------------------------------------------------------------------------------------------------

ALWAYS = {
    "round",
    "left-out",
    "train",
    "bytes-up",
    "bytes-down",
    "seconds",
    "evaluate",
    "mean",
    "not-tested",
    "evaluate-seconds",
}


def documented_keys():
    """The first column of the table in docs/reference/run-directory.md."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "run-directory.md").read_text()
    rows = text.split("## A line of `events.jsonl`")[1].split("\n## ")[0].splitlines()
    return {key for row in rows if row.startswith("| `") for key in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.mark.parametrize("strategy", METHODS)
def test_event_lines(strategy, federate):
    run = federate(strategy=strategy, model="mlp")
    lines = (run.path / "events.jsonl").read_text().splitlines()

    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [event["round"] for event in events] == [1, 2]
    for event in events:
        assert ALWAYS <= set(event) <= documented_keys()
        assert list(event["train"]) == list(event["evaluate"]) == CLIENTS
        for client in CLIENTS:
            assert {"num-samples", "loss", "steps", "cpu-seconds"} <= set(event["train"][client])
    if strategy in ("fedavg", "fedprox", "fedavg-ft"):
        size = 4 * (64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10)
        for value in [*events[-1]["bytes-up"].values(), *events[-1]["bytes-down"].values()]:
            assert size < value < size + 2 * 200
        assert sum(events[-1]["weights"].values()) == pytest.approx(1)


def test_numbers_too_large_for_a_mean_do_not_spoil_the_line(federate):
    def tamper(asked, answer, name):
        metrics = answer.content.metric_records.get(METRICS)
        if metrics and asked.metadata.message_type == "evaluate" and name == "1":
            metrics["global.loss"] = metrics["personal.loss"] = 1.7e308
        return answer

    run = federate(tamper=tamper, strategy="fedavg", model="linear", num_server_rounds=1)
    line = (run.path / "events.jsonl").read_text()
    assert "Infinity" not in line and "NaN" not in line
    assert (
        list(run.result["not-tested"]) == ["1"] and "global.loss: not a finite number" in run.result["not-tested"]["1"]
    )


# --- same seed, same result ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fedavg", "fedfomo"])
def test_the_number_of_workers_does_not_matter(strategy, federate):
    settings = {"strategy": strategy, "fraction_train": 0.75, "num_clients": 5}
    runs = [federate(workers=workers, **settings) for workers in (0, 1, 2)]
    results = [(run.path / "result.json").read_bytes() for run in runs]
    assert results[0] == results[1] == results[2]
    for run in runs[1:]:
        assert all(np.array_equal(value, runs[0].model[name]) for name, value in run.model.items())
    other = federate(seed=2, **settings)
    assert other.result["models"] != runs[0].result["models"]


# --- states ----------------------------------------------------------------------------------------------------------


def made(strategy, **values):
    config, settings = parse_config({**default_config(), "strategy": strategy, "server-data": "100", **values})
    return method_of(strategy)(config, settings[section_of(strategy)], initial_layout(config))


@pytest.mark.parametrize("strategy", SOME)
def test_a_run_goes_on_from_its_state(strategy, federate, tmp_path):
    """One round, then a new server with the saved state: the second round is that of a run in one piece."""
    from safetensors.numpy import load, save

    whole = federate(strategy=strategy, model="mlp", num_server_rounds=3, fraction_train=0.75)
    first = federate(strategy=strategy, model="mlp", num_server_rounds=2, fraction_train=0.75)
    state = json.loads((first.path / "checkpoint" / "state.json").read_text()) | {"arrays": first.model}
    config = json.loads((first.path / "config.json").read_text())
    method = made(strategy, **{key: value for key, value in config.items() if key != "strategy"})
    method.load_state_dict(state)
    again = method.state_dict()
    assert again["method"] == strategy and again["round"] == 2 and again["values"] == state["values"]
    assert all(np.array_equal(value, first.model[name]) for name, value in load(save(again["arrays"])).items())
    assert set(again["arrays"]) == set(first.model)
    method.start(first.grid, pack({}), num_rounds=3)
    assert method.last_round == 3
    for name, value in method.state_dict()["arrays"].items():
        assert np.array_equal(value, whole.model[name]), name


def test_the_state_of_another_method_is_refused():
    state = made("fedavg").state_dict()
    with pytest.raises(ValueError, match="a state of fedavg, version 1, cannot be loaded into fedper, version 1"):
        made("fedper").load_state_dict(state)
    with pytest.raises(ValueError, match="version 99"):
        made("fedavg").load_state_dict(state | {"version": 99})


def test_the_orders_are_those_of_the_round(federate):
    run = federate(strategy="fedper", model="mlp")
    for _, message in run.grid.sent:
        record = message.content.config_records.get(ORDER)
        if is_training(message):
            assert str(TrainOrder.from_record(record).round) == message.metadata.group_id
        elif message.metadata.message_type == "evaluate":
            assert str(EvaluateOrder.from_record(record).round) == message.metadata.group_id


def test_workers_answer_with_an_error_when_a_client_fails(federate, monkeypatch):

    def broken(*_, **__):
        raise RuntimeError("no hands")

    monkeypatch.setattr("coterie.client.training.train_network", broken)
    with pytest.raises(RunFailed, match="RuntimeError: no hands"):
        federate(strategy="fedavg", model="linear", round_retries=0)


def test_pauses_last_over_a_restart(federate, tmp_path):
    """Who is asked decides who is sampled: one that was silent before the kill is in its pause after it, too."""
    killed_in = {"5"}

    def tamper(asked, answer, name):
        if asked.metadata.group_id in killed_in:
            raise KeyboardInterrupt
        return None if name == "2" and asked.metadata.group_id != "0" else answer

    settings = {"strategy": "fedavg", "model": "linear", "num-clients": 5, "num-server-rounds": 7, "round-timeout": 0.1}
    settings |= {"fraction-train": 0.5, "quorum": 0.4}
    with pytest.raises(KeyboardInterrupt):
        federate(tamper, path=tmp_path / "killed", **settings)
    killed_in.clear()
    resumed, whole = federate(tamper, path=tmp_path / "killed", **settings), federate(tamper, **settings)
    timeless = [
        [{key: value for key, value in event.items() if not key.endswith("seconds")} for event in run.events]
        for run in (resumed, whole)
    ]
    for event in (event for events in timeless for event in events):
        for told in event["train"].values():
            del told["cpu-seconds"]
    assert timeless[0] == timeless[1] and len(timeless[0]) == 7
    assert any("missed 3 times in a row" in str(event.get("not-tested")) for event in timeless[1])
    assert resumed.result == whole.result


def test_who_connects_while_others_are_tested_has_its_turn_in_the_next_round(federate, monkeypatch):
    """Its hello arrives with their answers: it is neither tested in this round nor in a pause."""
    tampered = federate.__globals__["TamperedGrid"]

    class LateHello(tampered):
        held = None

        def pull_messages(self, message_ids):
            replies = list(super().pull_messages(message_ids))
            for reply in replies:
                if reply.metadata.message_type == HELLO and reply.metadata.src_node_id == 4:
                    self.held = reply
            testing = any(reply.metadata.message_type == "evaluate" for reply in replies)
            replies = [reply for reply in replies if reply is not self.held]
            if testing and self.held:
                replies, self.held = [self.held, *replies], None
            return replies

    monkeypatch.setitem(federate.__globals__, "TamperedGrid", LateHello)
    run = federate(strategy="fedavg", model="linear", join_timeout=0.3)
    first, second = run.events
    assert set(first["evaluate"]) == {"0", "1", "3"} and first["not-tested"] == {}
    assert set(second["evaluate"]) == set(CLIENTS) == set(second["train"]) == set(run.result["clients"])
