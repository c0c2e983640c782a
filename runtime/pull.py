"""Answers are pulled so that one bad client harms only itself.

Flower's own pull waits for objects that were announced and not uploaded, one answer after the other, unpacks whatever came, and
lets what happens then end the run. Here nobody is waited for: each call takes the objects that are there, an answer that is
not whole is kept aside, one that is malformed or too large becomes an error in its place, and the rest is not held up.
"""

import contextlib
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.runtime.flower import (
    ConfirmMessageReceivedRequest,
    ErrorCode,
    ObjectPushError,
    PullAppMessagesRequest,
    PullObjectRequest,
    Run,
    RunNotRunningException,
    SendTaskHeartbeatRequest,
    message_from_proto,
    runtime_client,
)
from coterie.runtime.objects import objects_of, unpacked_message
from coterie.wire.errors import Refused
from coterie.wire.folding import folded, is_folded, unfolded
from coterie.wire.messages import MALFORMED

LARGEST = 2**30  # bytes of an answer of which nothing was said


@dataclass
class Arriving:
    """An answer of which some objects may not be there yet."""

    bare: Any  # the message as the SuperLink tells of it, which knows who sent it and what it answers
    missing: list[str]
    largest: int
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    refused: str = ""


def patient(grid: Grid) -> Grid:
    """`grid`, with our own pull where that is possible."""
    return PatientGrid(grid) if runtime_client(grid) is not None else grid


class PatientGrid(Grid):
    """Flower's grid over HTTP, but for the pull."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self.node = grid.node
        self.limits: dict[str, int] = {}  # message -> bytes that its answer may have
        self.arriving: dict[str, Arriving] = {}  # message -> its answer

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        for identifier in set(self.arriving) - asked:
            del self.arriving[identifier]
        self.limits = {identifier: limit for identifier, limit in self.limits.items() if identifier in asked}
        with self._stopped_at_once():
            if new := asked - set(self.arriving):
                self._announced(new)
            replies = [self._advance(identifier) for identifier in list(self.arriving)]
        return [reply for reply in replies if reply is not None]

    def _announced(self, identifiers: set[str]) -> None:
        """Ask which of these were answered. If something in it upsets the SuperLink, one by one."""
        try:
            response = runtime_client(self.grid).PullMessages(PullAppMessagesRequest(message_ids=identifiers))
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            if code < httpx.codes.INTERNAL_SERVER_ERROR and code != httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                raise
            for identifier in identifiers if len(identifiers) > 1 else ():
                self._announced({identifier})
            return
        for bare, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            answered = bare.metadata.reply_to_message_id
            if answered in identifiers and answered not in self.arriving:
                largest = self.limits.get(answered, LARGEST)
                self.arriving[answered] = arriving = Arriving(bare, [], largest)
                try:
                    arriving.missing = objects_of(tree, largest)
                except Refused as error:
                    arriving.refused = str(error)

    def _advance(self, identifier: str) -> Message | None:
        """The answer, or the error that stands for it, if it is whole."""
        arriving = self.arriving[identifier]
        if arriving.refused:
            return self._end(identifier, MALFORMED, arriving.refused)
        run = arriving.bare.metadata.run_id
        while arriving.missing:
            name = arriving.missing[0]
            try:
                response = runtime_client(self.grid).PullObject(
                    PullObjectRequest(node=self.node, run_id=run, object_id=name)
                )
            except httpx.HTTPStatusError as error:
                if error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    raise
                return None  # the SuperLink stumbles over it: perhaps not the next time
            if not response.object_found:
                return self._end(identifier, ErrorCode.MESSAGE_UNAVAILABLE, "its answer was not uploaded to the end")
            if not response.object_available:
                return None
            arriving.contents[name] = response.object_content
            arriving.size += len(response.object_content)
            if arriving.size > arriving.largest:
                return self._end(identifier, MALFORMED, f"the answer has more than {arriving.largest} bytes")
            del arriving.missing[0]
        root = arriving.bare.metadata.message_id
        try:
            message = unpacked_message(root, arriving.contents, arriving.largest)
            if message.has_content() and is_folded(message.content):
                message.content = unfolded(message.content)
        except Refused as error:
            return self._end(identifier, MALFORMED, str(error))
        return self._end(identifier, 0, "", message)

    def _end(self, identifier: str, code: int, reason: str, message: Message | None = None) -> Message:
        """The SuperLink may forget this answer. Whose it is and what it answers is what the SuperLink says, not the sender."""
        arriving = self.arriving.pop(identifier)
        told = arriving.bare.metadata
        confirmation = ConfirmMessageReceivedRequest(
            node=self.node, run_id=told.run_id, message_object_id=told.message_id
        )
        with contextlib.suppress(httpx.HTTPStatusError):
            runtime_client(self.grid).ConfirmMessageReceived(confirmation)
        if message is None:
            arriving.bare.error.code, arriving.bare.error.reason = code, reason
            arriving.bare.ClearField("content")
            message = message_from_proto(arriving.bare)
        facts = {"_message_id": told.message_id, "_reply_to_message_id": identifier, "_src_node_id": told.src_node_id}
        message.metadata.__dict__.update(facts)
        return message

    # The rest is Flower's.

    def set_run(self, run: Run) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        return self.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        found: Iterable[int] = self.grid.get_node_ids()
        return found

    def get_nodes(self) -> Iterable[Any]:
        found: Iterable[Any] = self.grid.get_nodes()
        return found

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As few objects as possible; the messages themselves are left as they are."""
        small = [
            self.create_message(folded(m.content), m.metadata.message_type, m.metadata.dst_node_id, m.metadata.group_id)
            for m in messages
        ]
        with self._stopped_at_once():
            identifiers: Iterable[str] = self.grid.push_messages(small)
        return identifiers

    @contextlib.contextmanager
    def _stopped_at_once(self) -> Iterator[None]:
        """The server may have stopped the run. Flower says so by SIGINT, but looks only every half a minute."""
        try:
            yield
        except (ObjectPushError, RunNotRunningException) as error:
            if isinstance(error, RunNotRunningException) or self._is_stopped():
                signal.raise_signal(signal.SIGINT)
            raise

    def _is_stopped(self) -> bool:
        try:
            return not runtime_client(self.grid).SendTaskHeartbeat(SendTaskHeartbeatRequest()).success
        except RunNotRunningException:
            return True
        except httpx.HTTPError:  # nobody knows
            return False

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError("rounds push and pull by themselves")
