"""The clients of a run, known by their names, reached over Flower's grid.

A node id is new after every restart of a client without a key, so everything above this file speaks of names. Replies are
matched to the message they answer, because an error that the SuperLink makes up does not name the node it stands for.

Nobody is waited for twice: hello goes on in the background, and who does not answer an order in time gets a pause.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coterie.strategies.observer import Waiting
from coterie.strategies.pauses import Pauses
from coterie.strategies.post import POLL_SECONDS, Post, Progress
from coterie.wire.checks import check_hello
from coterie.wire.errors import Refused, RunFailed
from coterie.wire.messages import HELLO, ORDER, Hello, Sent, size_in_bytes

log = logging.getLogger(__name__)

TELL_SECONDS = 0.2  # between two words about a wait
GRACE_SECONDS = 10.0  # for others to come, once all that are missing were refused
HELLO_BYTES = 2**16


class Federation(Post):
    def __init__(
        self,
        grid: Grid,
        *,
        code: str,
        join_timeout: float,
        quorum: float = 0.5,
        greeting: Mapping[str, str] | None = None,
        pauses: Pauses | None = None,
        barred: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(grid)
        self.barred = barred or {}  # who must not take part, and why
        self.greeting = greeting or {}  # what every client is told with hello
        self.code = code
        self.join_timeout = join_timeout
        self.quorum = exactly(quorum)
        self.hellos: dict[str, Hello] = {}  # every client ever met
        self.pauses = pauses or Pauses()
        self.partitions = 0  # how many there are; 0: not known, or all data are the clients' own
        self._node_of: dict[str, int] = {}
        self._known_nodes: set[int] = set()
        self.refused: dict[int, str] = {}  # node -> why it may not take part
        self.on_wait: Callable[[Waiting], None] = lambda waiting: None  # called again and again
        self._told_at = 0.0
        self._registered: dict[int, str] = {}

    @property
    def connected(self) -> list[str]:
        """The clients that are connected now, in a stable order."""
        return sorted(self._node_of, key=name_order)

    @property
    def clients(self) -> list[str]:
        """Those of them that can be asked: not in a pause, unless too few would be left."""
        awake = [name for name in self.connected if self.pauses.over(name)]
        return awake if len(awake) >= self.needed(len(self._node_of)) else self.connected

    def needed(self, asked: int) -> int:
        """A quorum of so many."""
        return max(1, math.ceil(self.quorum * asked))

    def refused_by_name(self) -> dict[str, str]:
        """Why nodes that are connected may not take part; by the name of their key, where they have one."""
        return {self._called(node): why for node, why in self.refused.items()}

    def _called(self, node: int) -> str:
        return self._registered.get(node) or f"node {node}"

    # Who takes part.

    def gather(self, num_clients: int, *, begun: bool = False) -> None:
        """Wait until `num_clients` clients (0: all partitions of a simulation) are there: Flower starts runs before that.

        Those that are refused, or never answer, are not waited for in vain: the others begin, if they are a quorum. A run that
        was `begun` before goes on without those that are not there in time, too.
        """
        started = time.monotonic()
        while True:
            self.welcome()
            expected = num_clients or self._commonest_partitions()
            fitting = {name for name in self._node_of if self.hellos[name].num_partitions in (0, expected)}
            if expected and len(fitting) >= expected:
                break
            if self._node_of and not expected:
                raise RunFailed(
                    "num-clients = 0: these clients bring data of their own; say how many to wait for, e.g. num-clients=4"
                )
            waited = time.monotonic() - started
            until = time.time() + self.join_timeout - waited
            self.on_wait(Waiting((), max(1, expected - len(fitting)), "join", time.time() - waited, until))
            late = waited > self.join_timeout
            bad = len(self._node_of) - len(fitting) + len(self.refused) + late * len(self._hellos.silent)
            if len(fitting) + bad >= max(1, expected) and bad:
                if late or waited > GRACE_SECONDS or not fitting:
                    if fitting and len(fitting) >= self.needed(expected):
                        break
                    raise self._too_few(len(fitting), num_clients, expected)
            elif late and begun and len(fitting) >= self.needed(expected):
                break
            elif late:
                raise self._too_few(len(fitting), num_clients, expected)
            time.sleep(self.poll_seconds)
        self.partitions = expected
        for name in sorted(set(self._node_of) - fitting):
            self._leave_out(self._node_of.pop(name), self._other_partitions(self.hellos.pop(name)))
        if len(fitting) < expected:
            log.warning("the run begins with %d of %d clients, a quorum", len(fitting), expected)

    def come_back(self) -> None:
        """After a try without a quorum: wait for one of all clients ever met, join-timeout at most. They may all have lost
        their network, or their machines, at once."""
        self.welcome(self.join_timeout)
        started, since = time.monotonic(), time.time()
        while (missing := self.needed(len(self.hellos)) - len(self._node_of)) > 0:
            if time.monotonic() - started > self.join_timeout:
                break
            self.on_wait(Waiting((), missing, "join", since, since + self.join_timeout))
            time.sleep(POLL_SECONDS)
            self.welcome()

    def _commonest_partitions(self) -> int:
        """What most say; of several that are said as often the largest."""
        said = Counter(hello.num_partitions for hello in self.hellos.values() if hello.num_partitions)
        return max(said, key=lambda number: (said[number], number), default=0)

    def _too_few(self, joined: int, num_clients: int, expected: int) -> RunFailed:
        partitions = {self.hellos[name].num_partitions for name in self._node_of} - {0, expected}
        if num_clients and partitions:
            return RunFailed(
                f"num-clients = {num_clients}: but the clients hold partitions of {sorted(partitions)}; make them equal "
                f'(flwr run . --federation-config "num-supernodes={num_clients}")'
            )
        reasons = sorted(set(self.refused.values()))[:3]
        reasons += [f"{self._called(node)} does not answer hello" for node in sorted(self._hellos.silent)][:3]
        return RunFailed(
            f"{joined} of {expected or 'any'} clients joined (join-timeout = {self.join_timeout:g} seconds). "
            + (
                f"Refused: {'; '.join(reasons)}"
                if reasons
                else "Start the others, raise join-timeout, or set num-clients to the number there is"
            )
        )

    def welcome(self, patience: float = 0.0) -> None:
        """Ask the nodes not met yet for their names; forget which nodes are gone. Answers that are not there yet come with
        those of a later exchange, unless there is `patience`, which is had once with every node."""
        online = set(self.grid.get_node_ids())
        self._node_of = {name: node for name, node in self._node_of.items() if node in online}
        if self._known_nodes - online:  # a name may be free again: ask those refused once more
            self._known_nodes -= set(self.refused)
            self.refused = {}
        self._known_nodes &= online
        self._hellos.forget_others(online)
        nodes = self._hellos.due(online - self._known_nodes)
        if nodes:
            self._registered |= self._registered_names()
            messages = [Message(self._hello(), dst_node_id=node, message_type=HELLO, group_id="0") for node in nodes]
            for identifier, node in self._push(messages, [HELLO_BYTES] * len(nodes)).items():
                self._hellos.asked(identifier, node)
        if not self._hellos.waiting:
            return
        deadline = time.monotonic() + patience
        self._pull({})
        while time.monotonic() < deadline and self._hellos.first & self._hellos.silent:
            time.sleep(self.poll_seconds)
            self._pull({})
        if patience:
            self._hellos.first.clear()

    def _hello(self) -> RecordDict:
        return RecordDict({ORDER: ConfigRecord(dict(self.greeting))} if self.greeting else {})

    def _registered_names(self) -> dict[int, str]:
        """Under which names the keys of the nodes were registered, where they were: nobody takes the name of another."""
        nodes = self.grid.get_nodes() if hasattr(self.grid, "get_nodes") else ()
        return {node.node_id: node.name for node in nodes}

    def _meet(self, node: int, reply: Message) -> None:
        """A node answered hello; once more, perhaps, if it was asked more often."""
        if node in self._known_nodes:
            return
        self._known_nodes.add(node)
        try:
            self._admit(node, check_hello(reply), self._registered.get(node, ""))
        except Refused as error:
            self._leave_out(node, str(error))

    def _leave_out(self, node: int, reason: str) -> None:
        self.refused[node] = reason
        log.warning("%s is refused: %s", self._called(node), reason)

    def _admit(self, node: int, hello: Hello, registered: str) -> None:
        if registered and hello.name != registered:
            raise Refused(
                f"a client calls itself {hello.name!r}, but its key is registered as {registered!r}; "
                f"start it with --name {registered}"
            )
        if hello.code != self.code:
            raise Refused(
                f"client {hello.name!r} runs other code ({hello.code!r}) than the server ({self.code}). A simulation daemon "
                "that was started elsewhere may still be running: stop what listens on its port (39091), and start again"
            )
        if hello.name in self.barred:
            raise Refused(f"client {hello.name!r} cannot take part: {self.barred[hello.name]}")
        if hello.name in self._node_of:
            raise Refused(f"a client called {hello.name!r} is connected already; give every client a name of its own")
        if self.partitions and hello.num_partitions not in (0, self.partitions):
            raise Refused(self._other_partitions(hello))
        self._node_of[hello.name] = node
        self.hellos[hello.name] = hello

    def _other_partitions(self, hello: Hello) -> str:
        return (
            f"client {hello.name!r} holds a partition of {hello.num_partitions}, and there are {self.partitions}; "
            f"start it with --num-partitions {self.partitions}"
        )

    # What they are asked.

    def exchange(
        self,
        sent: Mapping[str, Sent],
        server_round: int,
        timeout: float,
        progress: Progress | None = None,
        largest: Callable[[int], int] = lambda size: size + 2**22,
    ) -> tuple[dict[str, Message], dict[str, int]]:
        """Send, and wait for the replies: those that came, and the bytes sent, by client in the order of `sent`. `largest`
        says how many bytes an answer to so many bytes may have. Who is not connected any more is sent nothing."""
        messages = {
            name: Message(
                one.content(),
                dst_node_id=self._node_of[name],
                message_type=one.order.kind,
                group_id=str(server_round),
            )
            for name, one in sent.items()
            if name in self._node_of
        }
        sizes = {name: size_in_bytes(message.content) for name, message in messages.items()}
        pushed = self._push(list(messages.values()), [largest(size) for size in sizes.values()])
        kind = next(iter(sent.values())).order.kind if sent else ""
        answers = self._wait(pushed, timeout, progress, len(messages), kind)
        nodes = {name: message.metadata.dst_node_id for name, message in messages.items()}
        for name, node in nodes.items():
            if node in answers:
                self.pauses.answered(name)
            elif node in pushed.values():
                self.pauses.missed(name)
        return {name: answers[node] for name, node in nodes.items() if node in answers}, sizes

    def _tell_waiting(self, nodes: Collection[int], kind: str, since: float, until: float) -> None:
        if time.monotonic() - self._told_at < TELL_SECONDS:
            return
        self._told_at = time.monotonic()
        names = {node: name for name, node in self._node_of.items()}
        clients = sorted((names[node] for node in nodes if node in names), key=name_order)
        self.on_wait(Waiting(tuple(clients), len(nodes) - len(clients), kind.rpartition(".")[2], since, until))


def exactly(share: float) -> Fraction:
    """The number that was typed: 0.29 of 100 rounds are 29, and not the 28.999... of binary numbers."""
    return Fraction(repr(float(share)))


def name_order(name: str) -> tuple[bool, int, str]:
    """Sorts 2 before 10, and numbers before names."""
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)
