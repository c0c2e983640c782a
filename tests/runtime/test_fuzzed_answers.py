"""Answers that a machine made up: whatever is in them, the others' arrive unharmed and memory stays bounded.

COTERIE_FUZZED=10000 tries more of them; every one is made from its number alone, so a failure replays.
"""

import gc
import json
import logging
import os
import random
import resource
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from coterie.runtime.flower import ObjectTree, get_all_nested_objects, get_object_tree, remove_content_from_message
from coterie.strategies.federation import Federation
from coterie.wire.checks import Layout, check_evaluation, check_hello, check_update
from coterie.wire.errors import Refused
from coterie.wire.messages import Hello, Sent, TrainOrder, reply

COUNT = int(os.environ.get("COTERIE_FUZZED", "400"))
MEMORY = 256 * 2**20  # bytes more than at the start, of addresses; Python and the SuperLink's state are in it
PARTS = {
    "extractor": np.linspace(-1, 1, 600, dtype=np.float32),
    "classifier": np.linspace(0, 2, 50, dtype=np.float32),
    "buffers": np.ones(8, dtype=np.float32),
    "counters": np.array([3], dtype=np.int64),
}
LAYOUT = Layout(PARTS, np.arange(4, 8), (5, 9))
HONEST = reply({"num-samples": 7, "loss": 0.25, "global.loss": 1.0}, PARTS, Hello("h", "x", 0, 1, 1, 1))
KINDS = ["Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "ConfigRecord", "MetricRecord"]
WORDS = [b"0", b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"99999999999999999999", b"true", b"[[[[[[[["]


def parsed(content: bytes) -> tuple[str, list[str], bytes]:
    head, _, body = content.partition(b"\0")
    kind, children, _ = head.decode().split(" ")
    return kind, children.split(",") if children else [], body


class Fuzzed:
    """An honest answer, changed in some places; the hashes are right, or the SuperLink would not take it."""

    def __init__(self, answer: Message, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tree = get_object_tree(answer)
        self.old = {name: one.deflate() for name, one in get_all_nested_objects(answer).items()}
        self.changes = self.rng.choice([0, 1, 1, 1, 2, 3])
        self.victims = set(self.rng.sample(sorted(self.old), min(self.changes, len(self.old))))
        self.new: dict[str, bytes] = {}
        self.root = self._copy(self.tree)

    def _copy(self, tree: ObjectTree) -> ObjectTree:
        children = [self._copy(child) for child in tree.children]
        kind, names, body = parsed(self.old[tree.object_id])
        for old, new in zip(tree.children, children, strict=True):
            body = body.replace(old.object_id.encode(), new.object_id.encode())
        names = [child.object_id for child in children]
        if tree.object_id in self.victims:
            kind, names, body, children = self._changed(kind, names, body, children)
        content = f"{kind} {','.join(names)} {len(body)}".encode() + b"\0" + body
        name = sha256(content).hexdigest()
        self.new[name] = content
        return ObjectTree(object_id=name, children=children)

    def _changed(self, kind, names, body, children):
        rng = self.rng
        how = rng.randrange(12)
        if how == 0:
            kind = rng.choice(KINDS)
        elif how == 1:
            names, children = [], []
        elif how == 2 and names:
            chunk = max(self.new, key=lambda name: len(self.new[name]))
            names, children = [chunk], [ObjectTree(object_id=chunk)]
        elif how == 3:
            body = rng.randbytes(rng.choice([0, 1, 9, 300, 2**16]))
        elif how == 4:
            body = body[: rng.randrange(len(body) + 1)]
        elif how == 5:
            body += rng.randbytes(rng.randrange(1, 200))
        elif how == 6 and body:
            for _ in range(rng.randrange(1, 8)):
                at = rng.randrange(len(body))
                body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        elif how == 7:
            names = names[:1] * rng.choice([2, 50])
        elif how in (8, 9, 10) and body[:1] == b"{":
            body = self._other_json(body)
        elif how == 11 and len(body) > 200:  # numbers of a model, beyond all bounds
            data = bytearray(body)
            for _ in range(rng.randrange(1, 40)):
                at = rng.randrange(128, len(data) - 4) & ~3
                data[at : at + 4] = np.float32(rng.choice([3e38, -3e38, np.nan, np.inf, 1e16, 0.5])).tobytes()
            body = bytes(data)
        return kind, names, body, children

    def _other_json(self, body: bytes) -> bytes:
        rng = self.rng
        try:
            facts = json.loads(body)
        except ValueError:
            return rng.choice(WORDS)
        key = rng.choice(list(facts) or [""])
        if rng.random() < 0.2:
            return rng.choice(WORDS)
        choices = [
            None,
            -1,
            10**30,
            1.5,
            "x",
            [],
            {},
            [0] * 3000,
            [-1],
            [10**9, 10**9],
            ["a"],
            "float64",
            "object",
            True,
        ]
        if rng.random() < 0.3:
            facts[rng.choice(["x:9+y", "extractor:-5+classifier:3", "é" * 50, "a:99999999999999999999999+b:1"])] = (
                facts.pop(key, 1)
            )
        else:
            facts[key] = rng.choice(choices)
        return json.dumps(facts).encode()


def fuzz(place, nodes: dict[str, int], federation: Federation, seed: int) -> tuple[str, dict[int, Message]]:
    """One exchange with an honest client and one that is made up; how the latter was taken."""
    sent = [
        Message(Sent(TrainOrder(1, upload=())).content(), dst_node_id=node, message_type="train")
        for node in nodes.values()
    ]
    pushed = federation._push(sent, [2**20] * 2)
    asked = place.receive(nodes["b"])
    answer = Message(HONEST, reply_to=asked)
    made = Fuzzed(answer, seed)
    answer.metadata.__dict__["_message_id"] = made.root.object_id
    try:
        wanted, session = place.announce(remove_content_from_message(answer), made.root)
        rng = random.Random(seed + 1)
        kept = [name for name in wanted if name in made.new and rng.random() > (0.3 if seed % 7 == 0 else 0.0)]
        place.upload(nodes["b"], session, {name: made.new[name] for name in kept})
    except Exception as error:  # the SuperLink itself does not take it
        how = f"refused by the SuperLink: {type(error).__name__}"
    else:
        how = ""
    place.answer(nodes["a"], HONEST)
    answers = federation._wait(pushed, 0.0, None, 2)
    if nodes["b"] not in answers:
        return how or "not whole in time", answers
    for check in (
        lambda reply: check_update(reply, LAYOUT, tuple(PARTS)),
        lambda reply: check_evaluation(reply, ("global",)),
        check_hello,
    ):
        try:
            taken = check(answers[nodes["b"]])
            how = how or "taken"
            if hasattr(taken, "parts"):
                assert all(np.isfinite(value).all() and abs(value).max() <= 1e15 for value in taken.parts.values())
        except Refused:
            how = how or "refused"
    return how, answers


def test_fuzzed_answers_harm_nobody_else(link, caplog):
    caplog.set_level(logging.CRITICAL, logger="flwr")  # else what it says fills the memory
    place = link(2)
    federation = Federation(place.grid, code="x", join_timeout=5.0)
    federation.welcome()
    for node, name in zip(place.nodes, "ab", strict=True):
        place.answer(node, reply({}, record=Hello(name, "x", 0, 1, 1, 1)))
    federation._registered = {}
    federation._pull({})
    nodes = {name: federation._node_of[name] for name in "ab"}
    counted: dict[str, int] = {}
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    try:
        for seed in range(COUNT):
            place.state.acknowledge_task_heartbeat(place.task.task_id)  # the run still goes on
            how, answers = fuzz(place, nodes, federation, seed)
            counted[how] = counted.get(how, 0) + 1
            honest = check_update(answers[nodes["a"]], LAYOUT, tuple(PARTS))
            assert honest.num_samples == 7, seed
            assert all(np.array_equal(value, PARTS[name]) for name, value in honest.parts.items()), seed
    except MemoryError:
        pytest.fail(f"answer {seed} took more than {MEMORY >> 20} MB")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        gc.collect()
        print(counted)
    assert counted["refused"] > COUNT // 10 and counted["taken"] > COUNT // 50
