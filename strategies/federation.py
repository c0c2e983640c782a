"""The clients of a run, known by their names, reached over Flower's grid.

A node id is new after every restart of a client without a key, so everything above this file speaks of names. Replies are
matched to the message they answer, because an error that the SuperLink makes up does not name the node it stands for.
"""

import logging
import time
from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coterie.wire.checks import check_hello
from coterie.wire.errors import Refused, RunFailed
from coterie.wire.messages import HELLO, ORDER, Hello, Sent, size_in_bytes

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
Progress = Callable[[int, int], None]  # answers so far, answers expected


class Federation:
    def __init__(
        self, grid: Grid, *, code: str, join_timeout: float, greeting: Mapping[str, str] | None = None
    ) -> None:
        self.grid = grid
        self.greeting = greeting or {}  # what every client is told with hello
        self.code = code
        self.join_timeout = join_timeout
        self.hellos: dict[str, Hello] = {}  # every client ever met
        self._node_of: dict[str, int] = {}
        self._known_nodes: set[int] = set()
        self.refused: dict[int, str] = {}  # node -> why it may not take part

    @property
    def clients(self) -> list[str]:
        """The clients that are connected now, in a stable order."""
        return sorted(self._node_of, key=name_order)

    def gather(self, num_clients: int) -> None:
        """Wait until `num_clients` clients (0: all partitions of a simulation) are there: Flower starts runs before that."""
        deadline = time.monotonic() + self.join_timeout
        while True:
            self.welcome()
            expected = num_clients or max((hello.num_partitions for hello in self.hellos.values()), default=0)
            if expected and len(self._node_of) >= expected:
                break
            if self._node_of and not expected:
                raise RunFailed(
                    "num-clients = 0: these clients bring data of their own; say how many to wait for, e.g. num-clients=4"
                )
            if time.monotonic() > deadline or (self.refused and len(self._known_nodes) >= max(1, expected)):
                raise RunFailed(
                    f"{len(self._node_of)} of {expected or 'any'} clients joined (join-timeout = {self.join_timeout:g} seconds). "
                    + (
                        f"Refused: {'; '.join(sorted(set(self.refused.values()))[:3])}"
                        if self.refused
                        else "Start the others, raise join-timeout, or set num-clients to the number there is"
                    )
                )
            time.sleep(POLL_SECONDS)
        partitions = {hello.num_partitions for hello in self.hellos.values()} - {0}
        if num_clients and partitions and partitions != {num_clients}:
            raise RunFailed(
                f"num-clients = {num_clients}: but the clients hold partitions of {sorted(partitions)}; make them equal "
                f'(flwr run . --federation-config "num-supernodes={num_clients}")'
            )

    def welcome(self) -> None:
        """Ask the nodes not met yet for their names; forget which nodes are gone."""
        online = set(self.grid.get_node_ids())
        self._node_of = {name: node for name, node in self._node_of.items() if node in online}
        if self._known_nodes - online:  # a name may be free again: ask those refused once more
            self._known_nodes -= set(self.refused)
            self.refused = {}
        self._known_nodes &= online
        new = sorted(online - self._known_nodes)
        messages = [Message(self._hello(), dst_node_id=node, message_type=HELLO, group_id="0") for node in new]
        registered = self._registered_names() if new else {}
        for node, reply in self._send(messages, self.join_timeout, None):
            self._known_nodes.add(node)
            try:
                self._admit(node, check_hello(reply), registered.get(node, ""))
            except Refused as error:
                self.refused[node] = str(error)
                log.warning("node %s is left out: %s", node, error)

    def _hello(self) -> RecordDict:
        return RecordDict({ORDER: ConfigRecord(dict(self.greeting))} if self.greeting else {})

    def _registered_names(self) -> dict[int, str]:
        """Under which names the keys of the nodes were registered, where they were: nobody takes the name of another."""
        nodes = self.grid.get_nodes() if hasattr(self.grid, "get_nodes") else ()
        return {node.node_id: node.name for node in nodes}

    def _admit(self, node: int, hello: Hello, registered: str) -> None:
        if registered and hello.name != registered:
            raise Refused(
                f"a client calls itself {hello.name!r}, but its key is registered as {registered!r}; "
                f"start it with --name {registered}"
            )
        if hello.code != self.code:
            raise Refused(
                f"client {hello.name!r} runs other code ({hello.code}) than the server ({self.code}). A simulation daemon that "
                "was started elsewhere may still be running: stop what listens on its port (39091), and start again"
            )
        if hello.name in self._node_of:
            raise Refused(f"a client called {hello.name!r} is connected already; give every client a name of its own")
        self._node_of[hello.name] = node
        self.hellos[hello.name] = hello

    def exchange(
        self, sent: Mapping[str, Sent], server_round: int, timeout: float, progress: Progress | None = None
    ) -> tuple[dict[str, Message], dict[str, int]]:
        """Send, and wait for the replies: those that came, and the bytes sent, by client in the order of `sent`."""
        messages = {
            name: Message(
                one.content(),
                dst_node_id=self._node_of[name],
                message_type=one.order.kind,
                group_id=str(server_round),
            )
            for name, one in sent.items()
        }
        answers = dict(self._send(list(messages.values()), timeout, progress))
        nodes = {name: message.metadata.dst_node_id for name, message in messages.items()}
        replies = {name: answers[node] for name, node in nodes.items() if node in answers}
        return replies, {name: size_in_bytes(message.content) for name, message in messages.items()}

    def _send(self, messages: list[Message], timeout: float, progress: Progress | None) -> list[tuple[int, Message]]:
        deadline = time.monotonic() + timeout
        identifiers = list(self.grid.push_messages(messages))
        waiting = {i: m.metadata.dst_node_id for i, m in zip(identifiers, messages, strict=True) if i}
        answered: list[tuple[int, Message]] = []
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answered.append((node, reply))
                    if progress:
                        progress(len(answered), len(messages))
            if waiting:
                if time.monotonic() > deadline:
                    break
                if pause := getattr(self.grid, "poll_seconds", POLL_SECONDS):
                    time.sleep(pause)
        return answered


def name_order(name: str) -> tuple[bool, int, str]:
    """Sorts 2 before 10, and numbers before names."""
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)
