"""Messages over Flower's grid: sent, waited for, fetched.

Whenever answers are fetched, so are those to a hello, which nobody waits for, and those that come after their round.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from coterie.strategies.hellos import Hellos

POLL_SECONDS = 0.1
REMEMBERED = 256  # late answers that are fetched, so that the SuperLink can forget them
Progress = Callable[[int, int], None]  # answers so far, answers expected


class Post:
    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._hellos = Hellos()
        self._late: deque[str] = deque(maxlen=REMEMBERED)

    def _meet(self, node: int, reply: Message) -> None:
        """A node answered hello."""
        raise NotImplementedError

    def _tell_waiting(self, nodes: Collection[int], kind: str, since: float, until: float) -> None:
        """These have not answered yet; said again and again."""

    @property
    def poll_seconds(self) -> float:
        return float(getattr(self.grid, "poll_seconds", POLL_SECONDS))

    def _push(self, messages: list[Message], limits: list[int]) -> dict[str, int]:
        """Identifier -> node of those that could be sent; the grid is told how large an answer may be, if it can use that."""
        identifiers = list(self.grid.push_messages(messages))
        if hasattr(self.grid, "limits"):
            self.grid.limits |= dict(zip(identifiers, limits, strict=True))
        nodes = [message.metadata.dst_node_id for message in messages]
        return {identifier: node for identifier, node in zip(identifiers, nodes, strict=True) if identifier}

    def _wait(
        self, pushed: Mapping[str, int], timeout: float, progress: Progress | None, asked: int, kind: str = ""
    ) -> dict[int, Message]:
        begun, deadline = time.time(), time.monotonic() + timeout
        waiting, answered = dict(pushed), dict[int, Message]()
        while waiting:
            # Looked at first: what was there in time is fetched, however long it takes.
            over = time.monotonic() > deadline
            for identifier, reply in self._pull(waiting).items():
                answered[waiting.pop(identifier)] = reply
                if progress:
                    progress(len(answered), asked)
            if waiting:
                self._tell_waiting(waiting.values(), kind, begun, begun + timeout)
            if over:
                break
            if waiting and self.poll_seconds:
                time.sleep(self.poll_seconds)
        self._late.extend(waiting)
        return answered

    def _pull(self, waiting: Mapping[str, int]) -> dict[str, Message]:
        """The answers to these messages that are there; those to a hello are dealt with, late ones are dropped."""
        asked = [*waiting, *self._hellos.waiting, *self._late]
        replies = {reply.metadata.reply_to_message_id: reply for reply in self.grid.pull_messages(asked)}
        for identifier in [identifier for identifier in self._late if identifier in replies]:
            self._late.remove(identifier)
        for identifier in [identifier for identifier in self._hellos.waiting if identifier in replies]:
            if identifier in self._hellos.waiting:  # not the second answer of a node that was asked more often
                self._meet(self._hellos.answered(identifier), replies[identifier])
        return {identifier: reply for identifier, reply in replies.items() if identifier in waiting}
