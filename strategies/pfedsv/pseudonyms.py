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


class Pseudonyms:
    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret

    def begin(self, seed: int, *, private: bool) -> None:
        """A secret for this run, unless it has one."""
        if not self.secret:
            public = hashlib.sha256(f"pseudonyms {seed}".encode()).digest()
            self.secret = secrets.token_bytes(32) if private else public

    def of(self, other: str, *, told_to: str) -> str:
        text = f"{len(told_to)}:{told_to}{other}".encode()
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()[:16]

    def roster(self, others: Iterable[str], *, told_to: str) -> dict[str, str]:
        """Pseudonym -> client, in the order of the pseudonyms, which tells nothing about who they are."""
        names = {self.of(other, told_to=told_to): other for other in others if other != told_to}
        return dict(sorted(names.items()))

    def state_dict(self) -> dict[str, str]:
        return {"secret": self.secret.hex()}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        self.secret = bytes.fromhex(state["secret"])
