"""Hellos that are under way. A node that does not answer is asked again, after longer and longer pauses."""

import time
from collections.abc import Collection

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0  # seconds


class Hellos:
    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}  # message -> node
        self.first: set[int] = set()  # nodes that nobody has waited for yet
        self._pauses: dict[int, float] = {}
        self._again: dict[int, float] = {}  # node -> when to ask it again

    @property
    def silent(self) -> set[int]:
        """Nodes that were asked and have not answered."""
        return set(self.waiting.values())

    def due(self, nodes: Collection[int]) -> list[int]:
        now = time.monotonic()
        return sorted(node for node in nodes if self._again.get(node, now) <= now)

    def asked(self, identifier: str, node: int) -> None:
        if node not in self._pauses:
            self.first.add(node)
        pause = self._pauses[node] = min(2 * self._pauses.get(node, FIRST_PAUSE / 2), LONGEST_PAUSE)
        self._again[node] = time.monotonic() + pause
        self.waiting[identifier] = node

    def answered(self, identifier: str) -> int:
        """Which node it was; it may be asked at any time."""
        node = self.waiting[identifier]
        self.waiting = {other: asked for other, asked in self.waiting.items() if asked != node}
        self._again.pop(node, None)
        self._pauses.pop(node, None)
        return node

    def forget_others(self, online: Collection[int]) -> None:
        """Who went away is asked at once when it is back; how long its pauses had become is not forgotten."""
        self.waiting = {identifier: node for identifier, node in self.waiting.items() if node in online}
        self._again = {node: when for node, when in self._again.items() if node in online}
