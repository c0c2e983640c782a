"""A client's node: takes messages from the server one by one, has each answered in a process of its own, sends the replies.

What Flower's SuperNode leaves to chance is settled here: a process that dies is reported to the server at once, an answer that
is no message as an error, and a client that was killed comes back at once and sends the reply that was ready, or says that
there is none.
"""

import contextlib
import json
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from google.protobuf.message import DecodeError

from coterie.runtime.device import Device
from coterie.runtime.fleet import Fleet, KeyRefused, Lost, RunEnded, WrongClock
from coterie.runtime.flower import (
    ErrorCode,
    Fab,
    MessageProto,
    ObjectTree,
    Run,
    context_to_proto,
    get_fused_config_from_fab,
    message_from_proto,
    message_to_proto,
)
from coterie.runtime.forks import End, Ending
from coterie.runtime.frames import frames_of, packed, unpacked
from coterie.wire.files import write_atomically

SHORTEST_POLL, LONGEST_POLL = 0.1, 3.0  # seconds between questions for work
POLL_SHARE = 0.3  # of the time since the last message: who worked just now is asked again soon
IDLE_SECONDS = 300.0  # then the process of the last run is ended, and its memory is free
REMEMBERED_RUNS = 8  # whose context is kept

LONGEST_REASON = 2000  # characters


class BadBundle(Exception):
    """What the server sent as the run's code is not a bundle."""


@dataclass
class KnownRun:
    run: Run
    fab: Fab
    context: bytes  # with what the app keeps between messages


class Answers:
    """The process of the run that is going on, which is asked for answers."""

    def __init__(self, parent: socket.socket, any_code: bool = True) -> None:
        self.parent, self.any_code = parent, any_code
        self.control: socket.socket | None = None
        self.told: Connection | None = None
        self.run_id = 0
        self.died = False

    def ask(self, known: KnownRun, message_id: str, contents: Mapping[str, bytes]) -> tuple[list[bytes], str]:
        """The frames of the reply, or none and the reason."""
        try:
            if self.run_id != known.run.run_id or self.control is None:
                self._open(known)
            assert self.control is not None and self.told is not None
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self.control, [b"m"], [theirs.fileno()])
            frames = self._exchange(Connection(ours.detach()), known, message_id, contents)
            code = int(self.told.recv_bytes())
        except (OSError, EOFError) as error:
            self.close()
            self.died = True
            return [], f"the process of the run ended ({type(error).__name__})"
        return frames, "" if frames else _reason(code)

    def _exchange(
        self, connection: Connection, known: KnownRun, message_id: str, contents: Mapping[str, bytes]
    ) -> list[bytes]:
        header = {"message": message_id, "objects": list(contents)}
        with contextlib.closing(connection), contextlib.suppress(OSError, EOFError, ValueError, TypeError):
            for frame in (json.dumps(header).encode(), known.context, *contents.values()):
                connection.send_bytes(frame)
            first = connection.recv_bytes()
            rest = [connection.recv_bytes() for _ in range(len(json.loads(first)) + 3)]
            return [first, *rest]
        return []

    def _open(self, known: KnownRun) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.parent, [b"r"], [theirs.fileno()])
        self.control, self.told, self.run_id = ours, Connection(os.dup(ours.fileno())), known.run.run_id
        setup = {
            "fab-id": known.run.fab_id,
            "fab-version": known.run.fab_version,
            "fab-hash": known.fab.hash_str,
            "context": known.context.hex(),
            "any-code": self.any_code,
            "warm": not self.died,  # else it may have died of that
        }
        self.told.send_bytes(json.dumps(setup).encode())
        self.told.send_bytes(known.fab.content)

    def close(self) -> None:
        for end in (self.control, self.told):
            if end is not None:
                end.close()
        self.control = self.told = None


def _reason(code: int) -> str:
    if code < 0:
        cause = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
        return f"the process that answered was ended by {signal.Signals(-code).name}{cause}"
    return f"the process that answered ended with code {code}"


class ClientNode:
    def __init__(self, fleet: Fleet, answers: Answers, node_config: Mapping[str, Any], home: Path) -> None:
        self.fleet, self.answers, self.node_config = fleet, answers, dict(node_config)
        self.runs: OrderedDict[int, KnownRun] = OrderedDict()
        self.id_file, self.message_file, self.reply_file = home / "node-id", home / "message", home / "reply"

    def serve(self) -> None:
        """Until an exception ends it."""
        last = self.id_file.read_text() if self.id_file.exists() else ""
        node_id = self.fleet.activate(int(last) if last.isdecimal() else 0)
        write_atomically(self.id_file, str(node_id).encode())
        self.fleet.say(f"connected to {self.fleet.server}")
        self._make_up()
        self.node_id, heard = node_id, time.monotonic()
        while True:
            try:
                if (received := self.fleet.receive()) is not None:
                    self._handle(*received)
                    heard = time.monotonic()
                    continue
            except RunEnded as error:
                self.fleet.say(f"a run is over ({error})")
            silent = time.monotonic() - heard
            if silent > IDLE_SECONDS:
                self.answers.close()
            time.sleep(min(max(POLL_SHARE * silent, SHORTEST_POLL), LONGEST_POLL))

    def _make_up(self) -> None:
        """If it was killed over a message: send the reply that was ready, else say that there will be none. Without that
        the server would wait until the round's timeout."""
        if self.message_file.exists():
            with contextlib.suppress(RunEnded, Lost, DecodeError, ValueError):
                message = message_from_proto(MessageProto.FromString(self.message_file.read_bytes()))
                frames = unpacked(self.reply_file.read_bytes()) if self.reply_file.exists() else []
                self._send(frames or _error(message, "the client was restarted while it worked on this message"), 0.0)
        self._forget()

    def _forget(self) -> None:
        for file in (self.reply_file, self.message_file):
            file.unlink(missing_ok=True)

    def _handle(self, message: Message, tree: ObjectTree) -> None:
        about, started = message.metadata, time.monotonic()
        with contextlib.suppress(OSError):  # on a full disk it is just not made up for
            self.message_file.write_bytes(message_to_proto(message).SerializeToString())
        try:
            known = self._known(about.run_id)
            contents = self.fleet.content(message, tree)
            frames, reason = self.answers.ask(known, about.message_id, contents)
            del contents
            if frames:
                known.context = frames.pop()
            else:
                frames = _error(message, reason)
            with contextlib.suppress(OSError):
                self.reply_file.write_bytes(packed(frames))
            seconds = time.monotonic() - started
            self._send(frames, seconds)
        except BadBundle as error:
            reason, seconds = f"the run's bundle cannot be read: {error}", 0.0
            self._send(_error(message, reason), seconds)
        except RunEnded as error:
            reason = f"the run is over ({error})"
        self._forget()
        self.fleet.say(f"round {about.group_id}, {about.message_type}: {reason or f'{seconds:.1f} s'}")

    def _send(self, frames: list[bytes], seconds: float) -> None:
        names, bare, tree, *objects = frames
        contents = dict(zip(json.loads(names), objects, strict=True))
        self.fleet.reply(
            message_from_proto(MessageProto.FromString(bare)), ObjectTree.FromString(tree), contents, seconds
        )

    def _known(self, run_id: int) -> KnownRun:
        if run_id not in self.runs:
            run, fab = self.fleet.run(run_id)
            try:
                config = get_fused_config_from_fab(fab.content, run)
            except Exception as error:  # it is a stranger's file, and may be anything
                raise BadBundle(f"{type(error).__name__}: {error}") from None
            context = Context(run_id, self.node_id, self.node_config, RecordDict(), config, series_id=run.series_id)
            self.runs[run_id] = KnownRun(run, fab, context_to_proto(context).SerializeToString())
            if len(self.runs) > REMEMBERED_RUNS:
                self.runs.popitem(last=False)
        self.runs.move_to_end(run_id)
        return self.runs[run_id]


def _error(message: Message, reason: str) -> list[bytes]:
    return frames_of(Message(Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=reason), reply_to=message))


def run_node(parent: socket.socket, device: Device, say: Callable[[str], None]) -> None:
    """The process of the node, from its start to its end; tells the parent how it ended."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    private = load_ssh_private_key(device.key.read_bytes(), password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)  # the command looked at it before
    home = device.state / "flower"
    fleet = Fleet(device.server, device.authority.read_bytes(), private, say, home / "connected")
    end = End(Ending.STOPPED)
    try:
        ClientNode(fleet, Answers(parent, device.any_code), device.node_config, home).serve()
    except WrongClock as error:
        end = End(Ending.CLOCK, str(error)[:LONGEST_REASON])
    except KeyRefused as error:
        end = End(Ending.REFUSED, str(error)[:LONGEST_REASON])
    except (Lost, OSError) as error:
        end = End(Ending.LOST, str(error)[:LONGEST_REASON])
    except Exception as error:
        end = End(Ending.BROKEN, f"{type(error).__name__}: {error}"[:LONGEST_REASON])
        raise
    finally:
        fleet.deactivate()
        with contextlib.suppress(OSError):
            parent.sendall(end.to_bytes())
