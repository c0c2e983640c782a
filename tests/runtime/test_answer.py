"""Answers in forked processes: the same as without, whatever happens to one of them, and never with the wrong code."""

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from coterie.client.app import app
from coterie.runtime.answer import is_installed_code
from coterie.runtime.control import bundle
from coterie.runtime.flower import Fab, MessageProto, Run, build_fab_from_files, context_to_proto, message_from_proto
from coterie.runtime.forks import fork, serve_forks
from coterie.runtime.frames import frames_of, message_of, packed, unpacked
from coterie.runtime.node import Answers, KnownRun
from coterie.server.app import checked_config, initial_layout
from coterie.wire.arrays import pack, unpack
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.messages import HELLO, MODEL, ORDER, TrainOrder

CONFIG = {"num-clients": 2, "model": "linear", "local-epochs": 1}


@pytest.fixture
def answers() -> Iterator[Answers]:
    """Asked from here; the parent that forks is a process of its own."""
    ours, theirs = socket.socketpair()

    def parent() -> None:
        ours.close()
        serve_forks(theirs)

    pid = fork(parent)
    theirs.close()
    asked = Answers(ours)
    yield asked
    asked.close()
    ours.close()
    os.waitpid(pid, 0)


def known_run(tmp_path: Path, code: bytes, **node: Any) -> KnownRun:
    config = checked_config(CONFIG)
    where = {"client-name": "0", "partition-id": 0, "state-dir": str(tmp_path), **node}
    context = Context(run_id=7, node_id=3, node_config=where, state=RecordDict(), run_config=config)
    run = Run.create_empty(7)
    run.fab_id, run.fab_version = "coterie/coterie", "0.1.0"
    return KnownRun(run, Fab(_hash(code), code, {}), context_to_proto(context).SerializeToString())


def _hash(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def hello_message() -> Message:
    return Message(RecordDict(), dst_node_id=3, message_type=HELLO, group_id="0")


def train_message() -> Message:
    config = RunConfig.parse(split_sections(checked_config(CONFIG))[0])
    parts = initial_layout(config).parts
    order = TrainOrder(round=1, upload=tuple(parts), phase_parts=("+".join(parts),), phase_epochs=(1,))
    content = RecordDict({ORDER: order.to_record(), MODEL: pack(parts)})
    return Message(content, dst_node_id=3, message_type="train", group_id="1")


def ask(answers: Answers, known: KnownRun, message: Message) -> tuple[Message | None, str]:
    names, _, _, *objects = frames_of(message)
    contents = dict(zip(json.loads(names), objects, strict=True))
    frames, reason = answers.ask(known, message.metadata.message_id, contents)
    if not frames:
        return None, reason
    known.context = frames.pop()
    names, bare, _, *objects = frames
    contents = dict(zip(json.loads(names), objects, strict=True))
    identifier = message_from_proto(MessageProto.FromString(bare)).metadata.message_id
    return message_of(identifier, contents), reason


def with_code(change: Callable[[dict[str, bytes]], None]) -> bytes:
    """A bundle like ours, with some of its files changed."""
    with zipfile.ZipFile(io.BytesIO(bundle(checked_config(CONFIG)))) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.startswith(".")}
    change(files)
    return build_fab_from_files(files)[0]


def test_the_answer_is_that_of_the_app(answers: Answers, tmp_path: Path) -> None:
    known = known_run(tmp_path / "a", bundle(checked_config(CONFIG)))
    message = train_message()
    reply, reason = ask(answers, known, message)
    assert reply is not None and reason == ""
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    node = {"client-name": "0", "partition-id": 0, "state-dir": str(tmp_path / "b")}
    context = Context(run_id=7, node_id=3, node_config=node, state=RecordDict(), run_config=checked_config(CONFIG))
    alone = app(train_message(), context)
    for name, part in unpack(alone.content.array_records[MODEL]).items():
        np.testing.assert_array_equal(unpack(reply.content.array_records[MODEL])[name], part)


def test_state_in_the_context_is_kept_between_messages(answers: Answers, tmp_path: Path) -> None:
    def keep_count(files: dict[str, bytes]) -> None:
        files["coterie/__init__.py"] = b"""
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
client_app = ClientApp()
server_app = None
@client_app.query("hello")
def hello(message, context):
    count = context.state["count"]["n"] + 1 if "count" in context.state else 1
    context.state["count"] = ConfigRecord({"n": count})
    return Message(RecordDict({"count": ConfigRecord({"n": count})}), reply_to=message)
"""

    known = known_run(tmp_path, with_code(keep_count))
    counts = []
    for _ in range(3):
        reply, _ = ask(answers, known, hello_message())
        assert reply is not None and reply.has_content(), reply
        counts.append(reply.content["count"]["n"])
    assert counts == [1, 2, 3]


def test_only_the_very_same_code_is_taken_from_memory() -> None:
    assert is_installed_code(bundle(checked_config(CONFIG)))

    def other_client(files: dict[str, bytes]) -> None:
        files["client/app.py"] += b"\n"

    def other_entry(files: dict[str, bytes]) -> None:
        files["coterie/__init__.py"] += b"\n"

    def more(files: dict[str, bytes]) -> None:
        files["client/more.py"] = b"\n"

    def less(files: dict[str, bytes]) -> None:
        del files["tasks/chart.py"]

    def other_app(files: dict[str, bytes]) -> None:
        files["pyproject.toml"] = files["pyproject.toml"].replace(b"coterie:client_app", b"client.app:app")

    for change in (other_client, other_entry, more, less, other_app):
        assert not is_installed_code(with_code(change)), change.__name__


def test_other_code_is_loaded_from_its_bundle(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app of the bundle answers, not the one that is imported here: its hello carries another fingerprint."""

    def other(files: dict[str, bytes]) -> None:
        files["wire/fingerprint.py"] = files["wire/fingerprint.py"].replace(b"hexdigest()[:12]", b"hexdigest()[:11]")

    reply, reason = ask(answers, known_run(tmp_path, bundle(checked_config(CONFIG))), hello_message())
    assert reply is not None, reason
    ours = reply.content.config_records[ORDER]["code"]
    known = known_run(tmp_path, with_code(other))
    known.run.run_id = 8
    reply, reason = ask(answers, known, hello_message())
    assert reply is not None and reply.has_content(), reply
    theirs = reply.content.config_records[ORDER]["code"]
    assert len(str(ours)) == 12 and len(str(theirs)) == 11


def test_a_client_may_refuse_other_code(answers: Answers, tmp_path: Path) -> None:
    def other(files: dict[str, bytes]) -> None:
        files["client/app.py"] = b"raise SystemExit('it was run')\n"

    answers.any_code = False
    reply, _ = ask(answers, known_run(tmp_path, with_code(other)), hello_message())
    assert reply is not None and reply.has_error() and "only the code that is installed" in str(reply.error.reason)
    known = known_run(tmp_path, bundle(checked_config(CONFIG)))
    known.run.run_id = 8
    reply, _ = ask(answers, known, hello_message())
    assert reply is not None and reply.has_content()


def test_a_bundle_that_cannot_be_loaded_is_an_answer_too(answers: Answers, tmp_path: Path) -> None:
    def broken(files: dict[str, bytes]) -> None:
        files["client/app.py"] = b"import nothing_of_that_name\n"

    reply, _ = ask(answers, known_run(tmp_path, with_code(broken)), hello_message())
    assert reply is not None and reply.has_error()
    assert reply.error.code == 1 and "nothing_of_that_name" in str(reply.error.reason)


@pytest.mark.parametrize(
    ("body", "said"),
    [("raise KeyError('gone')", "KeyError"), ("return None", "NoneType"), ("import os; os._exit(3)", "code 3")],
)
def test_whatever_the_app_does_there_is_an_answer(answers: Answers, tmp_path: Path, body: str, said: str) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["coterie/__init__.py"] = f"""
from flwr.clientapp import ClientApp
client_app = ClientApp()
server_app = None
@client_app.query("hello")
def hello(message, context):
    {body}
""".encode()

    reply, reason = ask(answers, known_run(tmp_path, with_code(change)), hello_message())
    if reply is None:
        assert said in reason
    else:
        assert reply.has_error() and said in str(reply.error.reason)


def test_a_killed_answer_is_reported_and_the_next_one_is_given(answers: Answers, tmp_path: Path) -> None:
    """As when memory runs out: first in an answer, then also where the data set is kept for the next ones."""
    script = tmp_path / "data.py"
    script.write_text(
        "import os, signal\nimport numpy as np\n"
        f"if os.path.exists({str(tmp_path / 'kill')!r}):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def load():\n    rng = np.random.default_rng(0)\n"
        "    return {'x': rng.normal(size=(40, 1, 8, 8)).astype('float32'), 'y': np.arange(40) % 10}\n"
    )
    code = bundle(checked_config(CONFIG))
    node = {"data": str(script), "state-dir": str(tmp_path)}
    (tmp_path / "kill").touch()
    reply, reason = ask(answers, known_run(tmp_path, code, **node), hello_message())
    assert reply is None and signal.SIGKILL.name in reason and "memory" in reason
    (tmp_path / "kill").unlink()
    known = known_run(tmp_path, code, **node)
    reply, reason = ask(answers, known, hello_message())
    assert reply is not None and reply.has_content(), reply
    assert answers.told is not None
    reply, reason = ask(answers, known, hello_message())
    assert reply is not None and reply.has_content()


def test_data_are_loaded_once_for_all_answers(answers: Answers, tmp_path: Path) -> None:
    """By the first answer, and by the process of the run for all others."""
    script, loads = tmp_path / "data.py", tmp_path / "loads"
    script.write_text(
        "import os\nimport numpy as np\n"
        f"def load():\n    print(os.getpid(), file=open({str(loads)!r}, 'a'))\n    rng = np.random.default_rng(0)\n"
        "    return {'x': rng.normal(size=(40, 1, 8, 8)).astype('float32'), 'y': np.arange(40) % 10}\n"
    )
    known = known_run(tmp_path, bundle(checked_config(CONFIG)), data=str(script))
    for _ in range(4):
        reply, reason = ask(answers, known, hello_message())
        assert reply is not None and reply.has_content(), (reply, reason)
    assert len(set(loads.read_text().split())) == 2


def test_a_killed_process_of_a_run_is_replaced(answers: Answers, tmp_path: Path) -> None:
    known = known_run(tmp_path, bundle(checked_config(CONFIG)))
    assert ask(answers, known, hello_message())[0] is not None
    assert answers.control is not None
    answers.control.shutdown(socket.SHUT_RDWR)  # to this side it looks as if the other had died
    reply, reason = ask(answers, known, hello_message())
    assert reply is None and "the process of the run ended" in reason
    assert ask(answers, known, hello_message())[0] is not None


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_does_not_grow_over_200_messages(answers: Answers, tmp_path: Path) -> None:
    known = known_run(tmp_path, bundle(checked_config(CONFIG)))
    sizes = []
    for number in range(1, 201):
        reply, reason = ask(answers, known, train_message())
        assert reply is not None and reply.has_content(), reason
        if number in (50, 200):
            deadline = time.monotonic() + 30
            while len(_children(os.getpid())) > 2 and time.monotonic() < deadline:
                time.sleep(0.05)  # an answer is read before its process has ended
            sizes.append([rss(pid) for pid in (os.getpid(), *_children(os.getpid()))])
    assert len(sizes[0]) == len(sizes[1]) == 3  # this process, the parent, the run; no answer is left over
    for before, after in zip(*sizes, strict=True):
        assert after < before + 30 * 2**20


def _children(pid: int) -> list[int]:
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [other for child in found for other in (int(child), *_children(int(child)))]


def test_frames_are_read_back_whole_or_not_at_all() -> None:
    frames = [b"", b"a\nb", bytes(1000)]
    data = packed(frames)
    assert unpacked(data) == frames
    assert unpacked(data[:-1]) == []
    with pytest.raises(ValueError):
        unpacked(b"")
