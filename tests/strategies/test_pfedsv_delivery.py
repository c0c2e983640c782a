"""pFedSV with models that are too large for one message: the same run, one model at a time; and clients that do not answer."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from safetensors.numpy import load_file

from coterie.client.app import app
from coterie.strategies.pfedsv.orders import DeliverOrder, Judgement, PersonalizeOrder
from coterie.wire.arrays import pack, unpack
from coterie.wire.messages import ORDER, OTHERS, size_in_bytes

ALL = {"strategy": "pfedsv", "partition": "pathological", "num-server-rounds": 2, "learning-rate": 0.1}
SHARED = {**ALL, "pfedsv.shared-extractor": True}
PAPER = {"pfedsv.game": "paper"}  # where everybody is asked for models in every round
SOME = {**ALL, "num-clients": 8, "fraction-train": 0.25, "num-server-rounds": 8, "pfedsv.top-k": 2, "model": "mlp"}
TIMES = {"seconds", "evaluate-seconds"}


@pytest.fixture
def one_by_one(monkeypatch):
    """Every model is large."""
    return lambda: monkeypatch.setattr("coterie.strategies.pfedsv.ONE_MESSAGE", 0)


def told(run) -> list[dict]:
    """The event lines without times, and without bytes, which differ by the headers of arrays."""
    lines = [{key: value for key, value in event.items() if key not in TIMES} for event in run.events]
    for line in lines:
        line.pop("bytes-down")
        for client in line["train"].values():
            client.pop("cpu-seconds")
    return lines


@pytest.mark.parametrize(
    "settings", [ALL, SHARED, SOME, {**SOME, **PAPER}], ids=["all", "shared extractor", "some", "paper"]
)
def test_the_same_run_in_more_messages(federate, one_by_one, settings):
    together = federate(**settings)
    one_by_one()
    apart = federate(**settings)
    assert told(apart) == told(together)
    assert apart.result["models"] == together.result["models"]
    for folder in ("models", "state"):
        for path in sorted((together.path / folder).glob("*.safetensors")):
            one, other = load_file(path), load_file(apart.path / folder / path.name)
            assert all(np.array_equal(one[name], other[name]) for name in one), path
    models = [unpack(m.content.array_records[OTHERS]) for _, m in apart.grid.sent if OTHERS in m.content.array_records]
    assert models and all(part.ndim == 1 for model in models for part in model.values())  # one in each message
    for event, before in zip(apart.events, together.events, strict=True):
        for client, number in event["bytes-down"].items():
            mine = [m for name, m in apart.grid.sent if name == client and in_round(m, event["round"])]
            assert number == sum(size_in_bytes(message.content) for message in mine)
            assert 0 <= number - before["bytes-down"][client] < 5000  # headers


def in_round(message: Message, server_round: int) -> bool:
    return message.metadata.group_id == str(server_round) and message.metadata.message_type != "evaluate"


def test_delivered_models_are_gone_after_the_game(federate, one_by_one):
    one_by_one()
    run = federate(**{**ALL, "num-server-rounds": 1})
    assert len([m for _, m in run.grid.sent if m.metadata.message_type == "train.deliver"]) == 12
    assert not list((run.path / "state" / "others").rglob("*.safetensors"))


def test_a_client_has_the_models_of_two_rounds_where_they_may_be_wanted_again(federate, one_by_one):
    one_by_one()
    run = federate(**SOME)
    for client in "01234567":
        rounds = [r for r in range(1, 9) if client in run.exchanges(r)]
        orders = [
            PersonalizeOrder.from_record(run.exchanges(r)[client][0].content.config_records[ORDER]) for r in rounds[-2:]
        ]
        both = {f"{n}-{v}" for order in orders for n, v in zip(order.held, order.held_versions, strict=True)}
        assert {path.stem for path in (run.path / "state" / "others" / client).glob("*")} == both
    assert any(event["models-sent"][client] < 2 for event in run.events[2:] for client in event["models-sent"])


def silence(client: str, kind: str, server_round: int):
    def tamper(asked: Message, answered: Message, name: str) -> Message | None:
        chosen = (name, asked.metadata.message_type, asked.metadata.group_id) == (client, kind, str(server_round))
        return None if chosen else answered

    return tamper


@pytest.mark.parametrize("kind", ["train.personalize", "train.deliver"])
def test_a_client_that_does_not_answer_keeps_its_own_model_and_is_tested(federate, one_by_one, kind):
    if kind == "train.deliver":
        one_by_one()
    run = federate(
        tamper=silence("2", kind, 2),
        **{**ALL, **PAPER, "num-server-rounds": 3, "round-timeout": 1.0, "model": "linear"},
    )
    assert run.events[1]["not-personalised"] == {"2": "no answer within 1 seconds"}
    assert run.events[0]["not-personalised"] == run.events[2]["not-personalised"] == {}
    assert set(run.events[1]["values"]) == set("013") and set(run.events[2]["values"]) == set("0123")
    tested = [set(event["evaluate"]) for event in run.events]
    assert tested == [set("0123"), set("013"), set("0123")]  # it is not asked twice in a round that it missed
    if kind == "train.deliver":  # asked no further
        assert len([1 for name, m in run.grid.sent if name == "2" and in_round(m, 2)]) == 2


def test_a_client_that_does_not_answer_to_training_is_left_out(federate):
    run = federate(
        tamper=silence("2", "train", 2),
        **{**ALL, **PAPER, "num-server-rounds": 3, "round-timeout": 1.0, "model": "linear"},
    )
    assert run.events[1]["left-out"] == {"2": "no answer within 1 seconds"}
    assert "2" not in run.events[1]["values"] and "2" in run.events[2]["values"]
    assert {age for ages in run.events[1]["age"].values() for other, age in ages.items() if other == "2"} == {1}


@pytest.fixture
def delivery(federate, one_by_one):
    """A run of one round; then client 0 is sent its first model again, changed on its way, and may be told to go on."""
    one_by_one()
    run = federate(**{**ALL, "num-server-rounds": 1, "pfedsv.top-k": 2})
    sent = [message for name, message in run.grid.sent if name == "0"]

    def ask(message: Message, change=lambda records: None) -> Message:
        records = RecordDict({ORDER: ConfigRecord(dict(message.content.config_records[ORDER]))})
        if OTHERS in message.content.array_records:
            records[OTHERS] = pack(unpack(message.content.array_records[OTHERS]))
        change(records)
        again = Message(records, dst_node_id=2, message_type=message.metadata.message_type, group_id="1")
        again.metadata.__dict__["_message_id"] = "1"
        return app(again, run.grid.contexts[2])

    return run, ask, {kind: [m for m in sent if m.metadata.message_type == kind] for kind in kinds(sent)}


def kinds(messages: list[Message]) -> set[str]:
    return {message.metadata.message_type for message in messages}


def test_a_delivered_model_with_nan_is_left_out_by_name(delivery):
    run, ask, sent = delivery

    def spoil(records: RecordDict) -> None:
        rows = {part: np.array(value) for part, value in unpack(records.array_records[OTHERS]).items()}
        rows["extractor"][3] = np.nan
        records[OTHERS] = pack(rows)

    first, second = sent["train.deliver"]
    ask(first, spoil)
    ask(second)
    judgement = Judgement.from_record(ask(sent["train.personalize"][0]).content.config_records[ORDER])
    assert judgement.left_out == (DeliverOrder.from_record(first.content.config_records[ORDER]).name,)
    assert judgement.reasons == ("extractor: numbers are not finite",) and len(judgement.members) == 1
    assert all(np.isfinite(value).all() for value in run.state("0").values())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "../../../x"}, r"a model of '../../../x', version '1': not a pseudonym"),
        ({"name": "A" * 16}, "not a pseudonym"),
        ({"version": "1/../../x"}, "not a pseudonym"),
        ({"parts": ["extractor", "classifier", "norm", "buffers", "counters"], "more": 1}, "expected the fields"),
    ],
    ids=str,
)
def test_a_delivery_that_leads_elsewhere_is_refused(delivery, change, reason):
    run, ask, sent = delivery
    before = sorted(run.path.rglob("*"))

    def spoil(records: RecordDict) -> None:
        records[ORDER] = ConfigRecord(dict(records.config_records[ORDER]) | change)

    with pytest.raises(ValueError, match=reason):
        ask(sent["train.deliver"][0], spoil)
    assert sorted(run.path.rglob("*")) == before


def test_a_delivery_to_a_client_that_lost_its_state_is_refused(delivery):
    run, ask, sent = delivery
    for path in (run.path / "state").rglob("0.safetensors"):
        path.unlink()
    with pytest.raises(ValueError, match="no model trained in round 1: it lost its state, or took no part"):
        ask(sent["train.deliver"][0])


def test_a_delivery_of_another_shape_is_refused(delivery):
    run, ask, sent = delivery

    def spoil(records: RecordDict) -> None:
        rows = unpack(records.array_records[OTHERS])
        records[OTHERS] = pack(rows | {"classifier": rows["classifier"][1:]})

    with pytest.raises(ValueError, match="classifier: expected float32"):
        ask(sent["train.deliver"][0], spoil)
    assert not list((run.path / "state" / "others").rglob("*.safetensors"))


def test_a_client_that_refuses_a_delivery(federate, one_by_one):
    """It is told of by name, asked no further, and sent everything in the next round."""
    one_by_one()
    broken: list[Message] = []

    def tamper(asked: Message, answered: Message, client: str) -> Message:
        if client == "1" and asked.metadata.message_type == "train.deliver" and not broken:
            broken.append(asked)
            from flwr.app import Error

            return Message(Error(code=2, reason="OSError: [Errno 28] No space left on device"), reply_to=asked)
        return answered

    run = federate(tamper=tamper, **{**ALL, "model": "linear"})
    assert run.events[0]["not-personalised"] == {"1": "error 2: OSError: [Errno 28] No space left on device"}
    assert run.events[1]["not-personalised"] == {} and run.events[1]["models-sent"]["1"] == 3
    assert json.loads((run.path / "result.json").read_text())["models"]["personal"]["clients"].keys() == set("0123")
