"""Answers that are half there, malformed or far too large: they harm nobody but their sender."""

import json
import time
from hashlib import sha256
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from coterie.runtime import pull
from coterie.runtime.flower import (
    ObjectPushError,
    ObjectTree,
    RunNotRunningException,
    remove_content_from_message,
)
from coterie.strategies.federation import Federation
from coterie.wire.arrays import pack
from coterie.wire.checks import Layout, check_update, records_of
from coterie.wire.errors import Absent, Refused
from coterie.wire.messages import METRICS, MODEL, ORDER, Hello, Sent, TrainOrder, reply

PARTS = {"classifier": np.arange(2000, dtype=np.float32)}
LAYOUT = Layout(PARTS, np.zeros(0, int), (1, 1))
UPDATE = reply({"num-samples": 5, "loss": 0.5}, PARTS)
SENT = Sent(TrainOrder(1, upload=()))


def welcomed(place, clients="abc") -> Federation:
    """All clients said hello."""
    federation = Federation(place.grid, code="x", join_timeout=5.0)
    federation.welcome()
    for node, name in zip(place.nodes, clients, strict=True):
        place.answer(node, RecordDict({ORDER: Hello(name, "x", 0, 1, 1, 1).to_record()}))
    federation._registered = {}
    federation._pull({})
    assert federation.clients == list(clients)
    return federation


def asked(federation: Federation) -> dict[str, int]:
    messages = [
        Message(SENT.content(), dst_node_id=node, message_type="train") for node in federation._node_of.values()
    ]
    return federation._push(messages, [2**20] * len(messages))


def bare_reply(place, node: int) -> Message:
    message = place.receive(node)
    assert message is not None
    return Message(UPDATE, reply_to=message)


def obj(kind: str, children: list[str], body: bytes) -> tuple[str, bytes]:
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
    return sha256(content).hexdigest(), content


def push_objects(place, node: int, build, upload: bool = True) -> str:
    """An answer whose content is what `build` makes: (objects, tree of the content)."""
    answer = bare_reply(place, node)
    objects, content = build()
    proto = message_bytes(answer)
    root, data = obj("Message", [content.object_id], proto)
    objects[root] = data
    answer.metadata.__dict__["_message_id"] = root
    wanted, session = place.announce(
        remove_content_from_message(answer), ObjectTree(object_id=root, children=[content])
    )
    if upload:
        place.upload(node, session, {name: objects[name] for name in wanted if name in objects})
    return session


def message_bytes(answer: Message) -> bytes:
    return answer.deflate().partition(b"\0")[2]


def leaf(kind: str, body: bytes):
    name, data = obj(kind, [], body)
    return {name: data}, ObjectTree(object_id=name)


def model_of(chunk: bytes, times: int, **more):
    """A model whose array names one chunk so many times."""
    piece, data = obj("ArrayChunk", [], chunk)
    facts = {"dtype": "float32", "shape": [2000], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times, **more}
    array, array_data = obj("Array", [piece], json.dumps(facts).encode())
    record, record_data = obj("ArrayRecord", [array], json.dumps({"classifier": array}).encode())
    whole, whole_data = obj("RecordDict", [record], json.dumps({MODEL: record}).encode())
    tree = ObjectTree(object_id=piece)
    for name in (array, record, whole):
        tree = ObjectTree(object_id=name, children=[tree])
    return {piece: data, array: array_data, record: record_data, whole: whole_data}, tree


def wrapped(kind: str, inner):
    """`inner` as the only child of an object of this kind."""
    objects, tree = inner
    name, data = obj(kind, [tree.object_id], json.dumps({"x": tree.object_id}).encode())
    return {**objects, name: data}, ObjectTree(object_id=name, children=[tree])


def nested(depth: int):
    inner = leaf("ArrayChunk", b"")
    for _ in range(depth):
        inner = wrapped("RecordDict", inner)
    return inner


def many(count: int):
    pieces = [obj("ConfigRecord", [], str(i).encode()) for i in range(count)]
    name, data = obj("RecordDict", [piece for piece, _ in pieces], b"{}")
    children = [ObjectTree(object_id=piece) for piece, _ in pieces]
    return {**dict(pieces), name: data}, ObjectTree(object_id=name, children=children)


MALFORMED = {
    "protobuf": (lambda: wrapped("RecordDict", leaf("ConfigRecord", b"\xff\xff\xff")), "cannot be unpacked"),
    "metrics": (lambda: wrapped("RecordDict", leaf("MetricRecord", b"\x0a\x02\xff")), "cannot be unpacked"),
    "no json": (lambda: leaf("RecordDict", b"no json"), "cannot be unpacked"),
    "a list": (lambda: leaf("RecordDict", b"[1, 2]"), "cannot be unpacked"),
    "a number": (lambda: model_of(b"1234", 1, shape=7), "cannot be unpacked"),
    "no chunks": (lambda: model_of(b"1234", 1, arraychunk_ids=None), "cannot be unpacked"),
    "a chunk too far": (lambda: model_of(b"1234", 1, arraychunk_ids=[0, 1]), "cannot be unpacked"),
    "deep json": (lambda: leaf("RecordDict", b"[" * 100_000), "cannot be unpacked"),
    "an array for a record": (lambda: leaf("Array", b"{}"), "a Array inside a Message"),
    "a message in a message": (lambda: wrapped("Message", leaf("ConfigRecord", b"")), "a Message inside a Message"),
    "records in records": (lambda: nested(9), "a RecordDict inside a RecordDict"),
    "a chunk named 1500 times": (lambda: model_of(bytes(2**19), 1500), "would unpack to 7864"),
    "more than it may": (lambda: model_of(bytes(2**20), 1), "more than 1048576 bytes"),
    "many objects": (lambda: many(200), "more than 65 objects"),
    "one long record": (lambda: leaf("RecordDict", b" " * 2**20), "more than 1048576 bytes"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_answer_is_refused_and_the_others_arrive(kind, link):
    place = link(3)
    federation = welcomed(place)
    build, reason = MALFORMED[kind]
    pushed = asked(federation)
    nodes = {name: node for name, node in federation._node_of.items()}
    push_objects(place, nodes["b"], build)
    place.answer(nodes["a"], UPDATE)
    place.answer(nodes["c"], UPDATE)
    answers = federation._wait(pushed, 5.0, None, 3)
    assert set(answers) == set(nodes.values())
    with pytest.raises(Refused) as caught:
        records_of(answers[nodes["b"]])
    assert reason in str(caught.value) and not isinstance(caught.value, Absent)
    for name in "ac":
        update = check_update(answers[nodes[name]], LAYOUT, ("classifier",))
        np.testing.assert_array_equal(update.parts["classifier"], PARTS["classifier"])
    assert len(place.state.object_store) == 0  # nothing of it is kept


@pytest.mark.parametrize("link", ["memory", "disk"], indirect=True)
def test_who_announces_and_never_uploads_is_the_only_one_that_is_missed(link):
    """The honest one answers after it, in the same round."""
    place = link(3)
    federation = welcomed(place)
    pushed = asked(federation)
    nodes = dict(federation._node_of)
    push_objects(place, nodes["a"], lambda: model_of(b"1234", 1), upload=False)
    assert federation._pull(pushed) == {}
    for name in "bc":
        place.answer(nodes[name], UPDATE)
    started = time.monotonic()
    answers = federation._wait(pushed, 0.3, None, 3)
    assert set(answers) == {nodes["b"], nodes["c"]}
    assert time.monotonic() - started < 20  # Flower waits for 180 s


@pytest.mark.parametrize("link", ["memory", "disk"], indirect=True)
def test_an_upload_in_drips_is_kept_aside_until_it_is_whole(link):
    place = link(2)
    federation = welcomed(place, "ab")
    pushed = asked(federation)
    nodes = dict(federation._node_of)
    answer = bare_reply(place, nodes["a"])
    answer.metadata.__dict__["_message_id"] = answer.object_id
    wanted, session = place.announce(remove_content_from_message(answer), get_object_tree(answer))
    objects = {name: one.deflate() for name, one in get_all_nested_objects(answer).items()}
    place.answer(nodes["b"], UPDATE)
    (first,) = federation._pull(pushed)
    assert pushed[first] == nodes["b"]
    waiting = {identifier: node for identifier, node in pushed.items() if node == nodes["a"]}
    for name in wanted:
        assert federation._pull(waiting) == {}
        place.upload(nodes["a"], session, {name: objects[name]})
    (whole,) = federation._pull(waiting).values()
    np.testing.assert_array_equal(check_update(whole, LAYOUT, ("classifier",)).parts["classifier"], PARTS["classifier"])


def test_a_superlink_that_stumbles_over_an_object_is_asked_for_it_again(link, monkeypatch):
    place = link(2)
    federation = welcomed(place, "ab")
    pushed = asked(federation)
    client, failed = pull.runtime_client(place.grid.grid), []

    class Stumbling:
        def __getattr__(self, name):
            return getattr(client, name)

        def PullObject(self, request):
            if len(failed) < 2:
                failed.append(request.object_id)
                call = httpx.Request("POST", "https://localhost")
                httpx.Response(500, request=call).raise_for_status()
            return client.PullObject(request)

    monkeypatch.setattr(pull, "runtime_client", lambda grid: Stumbling())
    for node in pushed.values():
        place.answer(node, UPDATE)
    assert set(federation._wait(pushed, 5.0, None, 2)) == set(pushed.values()) and len(failed) == 2


def test_an_answer_cannot_pass_for_that_of_another(link):
    """What is inside says that it answers the order to b; the SuperLink knows better."""
    place = link(2)
    federation = welcomed(place, "ab")
    pushed = asked(federation)
    nodes = dict(federation._node_of)
    of_b = next(identifier for identifier, node in pushed.items() if node == nodes["b"])
    asked_a = place.receive(nodes["a"])
    lie = Message(UPDATE, reply_to=asked_a)
    lie.metadata.__dict__["_reply_to_message_id"] = of_b
    lie.metadata.__dict__["_message_id"] = lie.object_id
    objects = {name: one.deflate() for name, one in get_all_nested_objects(lie).items()}
    tree, truth = get_object_tree(lie), Message(UPDATE, reply_to=asked_a)
    truth.metadata.__dict__["_message_id"] = lie.metadata.message_id
    wanted, session = place.announce(remove_content_from_message(truth), tree)
    place.upload(nodes["a"], session, {name: objects[name] for name in wanted})
    place.answer(nodes["b"], reply({"num-samples": 9}, PARTS))
    answers = federation._wait(pushed, 5.0, None, 2)
    assert answers[nodes["a"]].content.metric_records[METRICS]["num-samples"] == 5
    assert answers[nodes["b"]].content.metric_records[METRICS]["num-samples"] == 9


def test_what_comes_through_is_what_was_sent(link):
    place = link(1)
    federation = welcomed(place, "a")
    pushed = asked(federation)
    content = RecordDict(
        {"m": pack({"x": np.arange(200_000.0)}), "c": ConfigRecord({"a": b"x"}), "n": MetricRecord({"l": [1.5, 2.5]})}
    )
    place.grid.limits = dict.fromkeys(pushed, 2**22)
    place.answer(place.nodes[0], content)
    (answer,) = federation._wait(pushed, 5.0, None, 1).values()
    assert answer.content == content and answer.metadata.src_node_id == place.nodes[0]


class Stopped:
    """A SuperLink whose run may have been stopped while a message was on its way."""

    node = None

    def __init__(self, error, alive):
        self.error, self._runtime_client = error, self
        self.alive = alive

    def push_messages(self, messages):
        raise self.error

    def SendTaskHeartbeat(self, request):
        if isinstance(self.alive, BaseException):
            raise self.alive
        return SimpleNamespace(success=self.alive)


PUSH = ObjectPushError("object", 1, "session")


@pytest.mark.parametrize(
    ("error", "alive", "end"),
    [
        (PUSH, False, KeyboardInterrupt),
        (PUSH, RunNotRunningException(), KeyboardInterrupt),
        (RunNotRunningException(), None, KeyboardInterrupt),
        (PUSH, True, ObjectPushError),
        (PUSH, httpx.ConnectError("gone"), ObjectPushError),
    ],
)
def test_a_run_that_its_server_stopped_is_told_so_at_once(error, alive, end):
    with pytest.raises(end):
        pull.PatientGrid(Stopped(error, alive)).push_messages([])
