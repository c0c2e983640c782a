"""Who did not answer in time is asked again after a while: after longer and longer pauses, counted in rounds.

The first miss costs a client the rest of its round; the next ones 1, 3, 7 and at last 15 rounds. An answer in time ends it.
They are part of a method's state: who is asked, and so who is sampled, is the same after a restart.
"""

from collections.abc import Mapping
from typing import Any

LONGEST = 16  # rounds from a miss to the next question


class Pauses:
    def __init__(self) -> None:
        self.round = 0
        self._misses: dict[str, int] = {}
        self._until: dict[str, int] = {}  # the round in which it is asked again

    def missed(self, client: str) -> None:
        self._misses[client] = self._misses.get(client, 0) + 1
        self._until[client] = self.round + min(2 ** (self._misses[client] - 1), LONGEST)

    def answered(self, client: str) -> None:
        self._misses.pop(client, None)
        self._until.pop(client, None)

    def over(self, client: str) -> bool:
        return self.round >= self._until.get(client, 0)

    def in_words(self, client: str) -> str:
        times = self._misses[client]
        return f"not asked: it missed {times} time{'s' * (times > 1)} in a row; again in round {self._until[client]}"

    def state_dict(self) -> dict[str, Any]:
        return {"misses": self._misses, "until": self._until}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._misses, self._until = dict(state["misses"]), dict(state["until"])
