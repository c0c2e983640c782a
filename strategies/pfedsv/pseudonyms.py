"""Names under which a client knows the others: its own for each of them, so that two clients cannot match theirs.

    pseudonym of j for i = HMAC(secret, i, j)

Only the server has the secret. Where clients take partitions of a public data set, the seed tells everything about everybody,
and the secret is derived from it, so that a run can be repeated. Where a client brings data of its own, clients know the seed
and must not learn the rest: the secret is drawn at random.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

import numpy as np

REMEMBERED = 2**23  # pseudonyms, of eight bytes each


class Pseudonyms:
    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret
        self._place: dict[str, int] = {}  # of every name in the arrays of `_made`
        self._made: dict[str, np.ndarray] = {}  # told to -> its first pseudonyms, as numbers, by place

    def begin(self, seed: int, *, private: bool) -> None:
        """A secret for this run, unless it has one."""
        if not self.secret:
            public = hashlib.sha256(f"pseudonyms {seed}".encode()).digest()
            self.secret = secrets.token_bytes(32) if private else public

    def of(self, other: str, *, told_to: str) -> str:
        text = f"{len(told_to)}:{told_to}{other}".encode()
        return hmac.digest(self.secret, text, "sha256").hex()[:16]

    def roster(self, others: Iterable[str], *, told_to: str) -> dict[str, str]:
        """Pseudonym -> client, in the order of the pseudonyms, which tells nothing about who they are."""
        names = [other for other in others if other != told_to]
        places = [self._place.setdefault(name, len(self._place)) for name in names]
        numbers = self._numbers(told_to, max(places, default=-1) + 1)[places]
        order = np.argsort(numbers, kind="stable")
        text = numbers[order].tobytes().hex()
        return {text[16 * i : 16 * i + 16]: names[place] for i, place in enumerate(order.tolist())}

    def _numbers(self, told_to: str, count: int) -> np.ndarray:
        """The pseudonyms for this client of at least so many names; they never change, and making one takes longest."""
        made = self._made.pop(told_to, np.empty(0, ">u8"))
        if len(made) < count:
            new = [self.of(name, told_to=told_to) for name in list(self._place)[len(made) :]]
            made = np.frombuffer(made.tobytes() + bytes.fromhex("".join(new)), ">u8")
        self._made[told_to] = made  # the last of them
        while len(self._made) > 1 and sum(map(len, self._made.values())) > REMEMBERED:
            del self._made[next(iter(self._made))]
        return made

    def state_dict(self) -> dict[str, str]:
        return {"secret": self.secret.hex()}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        self.secret = bytes.fromhex(state["secret"])
        self._made.clear()
