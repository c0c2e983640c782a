"""The SuperLink as a client sees it: Flower's Fleet API, over gRPC with TLS, with the client's own key.

This is what Flower's SuperNode says, without its Runtime API, its executor and its pauses of seconds. Where Flower is not as
expected, this cannot be imported, and `coterie client` starts Flower's own programs.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

from coterie.runtime.flower import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    Fab,
    FleetStub,
    GetFabRequest,
    GetRunRequest,
    Node,
    NodeAuthClientInterceptor,
    ObjectTree,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    Run,
    RuntimeVersionClientInterceptor,
    SendNodeHeartbeatRequest,
    create_channel,
    fab_from_proto,
    iterate_object_tree,
    message_from_proto,
    message_to_proto,
    public_key_to_bytes,
    run_from_proto,
)

CALL_SECONDS = 120.0  # enough for one object, at most 5 MB, over a slow line
AWAY_SECONDS = 600.0  # how long the server may be away before a call is given up
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
PULSE_SECONDS = 2.0  # between two signs of life
WRONG_TIME = "Invalid timestamp"  # Flower has no other way to tell
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class KeyRefused(Exception):
    """The server does not let this key in."""


class WrongClock(KeyRefused):
    """The clocks of this machine and the server's differ too much: calls are signed with the time."""


class RunEnded(Exception):
    """The run that a call was about is over."""


class Lost(Exception):
    """The server cannot be spoken with."""


class Fleet:
    def __init__(
        self,
        server: str,
        authority: bytes,
        key: ec.EllipticCurvePrivateKey,
        say: Callable[[str], None],
        pulse: Path,
    ) -> None:
        self.server, self.say = server, say
        self.pulse, self.last_pulse = pulse, -PULSE_SECONDS
        self.public_key = public_key_to_bytes(key.public_key())
        interceptors = [
            RuntimeVersionClientInterceptor(component_name="SuperNode"),
            NodeAuthClientInterceptor(key, key.public_key()),
        ]
        self.channel = create_channel(server, False, authority, interceptors=interceptors)
        self.stub = FleetStub(self.channel)
        self.node = Node()
        self.ended = threading.Event()

    def activate(self, last_node: int) -> int:
        """Go online. `last_node`: as which node it did so before, 0 if never; one that was killed still counts as online."""
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        if last_node:
            with contextlib.suppress(KeyRefused, Lost, RunEnded):  # offline already, or the server has a new database
                self._call(self.stub.DeactivateNode, DeactivateNodeRequest(node_id=last_node))
        try:
            self.node = Node(node_id=self._call(self.stub.ActivateNode, request).node_id)
        except Lost as error:
            raise KeyRefused(str(error)) from None
        threading.Thread(target=self._keep_alive, daemon=True).start()
        return int(self.node.node_id)

    def deactivate(self) -> None:
        self.ended.set()
        if self.node.node_id:
            with contextlib.suppress(grpc.RpcError):  # it will notice by itself
                self.stub.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id), timeout=2.0)
        self.channel.close()

    def _keep_alive(self) -> None:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        while not self.ended.wait(HEARTBEAT_DEFAULT_INTERVAL / 2):
            with contextlib.suppress(grpc.RpcError):  # the next call of the main thread finds out
                self.stub.SendNodeHeartbeat(request, timeout=CALL_SECONDS)
                self.heard()

    def heard(self) -> None:
        """Leave a sign for whoever watches this client: its connection works."""
        if self.node.node_id and time.monotonic() - self.last_pulse > PULSE_SECONDS:
            self.last_pulse = time.monotonic()
            with contextlib.suppress(OSError):
                self.pulse.touch()

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The next message, without its content, and what that consists of."""
        response = self._call(self.stub.PullMessages, PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        return message_from_proto(response.messages_list[0]), response.message_object_trees[0]

    def content(self, message: Message, tree: ObjectTree) -> dict[str, bytes]:
        """All objects of a message; afterwards the server forgets them."""
        run = message.metadata.run_id
        contents: dict[str, bytes] = {}
        for item in iterate_object_tree(tree):
            if item.object_id not in contents:
                contents[item.object_id] = self._object(run, item.object_id)
        confirmation = ConfirmMessageReceivedRequest(
            node=self.node, run_id=run, message_object_id=message.metadata.message_id
        )
        self._call(self.stub.ConfirmMessageReceived, confirmation)
        return contents

    def _object(self, run: int, object_id: str) -> bytes:
        deadline, pause = time.monotonic() + CALL_SECONDS, FIRST_PAUSE
        while True:
            response = self._call(
                self.stub.PullObject, PullObjectRequest(node=self.node, run_id=run, object_id=object_id)
            )
            if response.object_found and response.object_available:
                return bytes(response.object_content)
            if not response.object_found or time.monotonic() > deadline:
                raise RunEnded(f"object {object_id} of run {run} is not there any more")
            time.sleep(pause)  # it is still on its way to the server
            pause = min(1.5 * pause, LONGEST_PAUSE)

    def reply(self, message: Message, tree: ObjectTree, contents: Mapping[str, bytes], seconds: float) -> None:
        run = message.metadata.run_id
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(message)],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
        response = self._call(self.stub.PushMessages, request)
        for object_id in response.objects_to_push:
            push = PushObjectRequest(
                node=self.node,
                run_id=run,
                object_id=object_id,
                object_content=contents[object_id],
                session_id=response.session_id,
            )
            if not self._call(self.stub.PushObject, push).stored:
                raise RunEnded(f"run {run} does not wait for this answer any more")

    def run(self, run_id: int) -> tuple[Run, Fab]:
        run = run_from_proto(self._call(self.stub.GetRun, GetRunRequest(node=self.node, run_id=run_id)).run)
        request = GetFabRequest(node=self.node, hash_str=run.fab_hash, run_id=run_id)
        return run, fab_from_proto(self._call(self.stub.GetFab, request).fab)

    def _call(self, method: Any, request: Any) -> Any:
        """Again and again while the server is away: it may be restarting, and must not lose an answer by that."""
        deadline, pause, told = time.monotonic() + AWAY_SECONDS, FIRST_PAUSE, False
        while True:
            try:
                response = method(request, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                code, details = error.code(), _in_words(str(error.details()))
                if code is grpc.StatusCode.UNAUTHENTICATED:
                    raise (WrongClock if details == WRONG_TIME else KeyRefused)(details) from None
                if code is grpc.StatusCode.PERMISSION_DENIED:
                    raise RunEnded(details) from None
                if code not in AWAY or time.monotonic() > deadline:
                    raise Lost(details) from None
                if not told and pause > 1:
                    self.say(f"the server {self.server} does not answer ({details}); waiting for it")
                    told = True
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if told:
                self.say(f"the server {self.server} answers again")
            self.heard()
            return response


def _in_words(details: str) -> str:
    """Flower's errors are JSON with a sentence in it."""
    try:
        return str(json.loads(details)["public_message"])
    except (ValueError, KeyError, TypeError):
        return details
