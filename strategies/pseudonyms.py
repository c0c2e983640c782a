"""Names under which a client knows the others: its own for each of them, so that two clients cannot match theirs.

    pseudonym of j for i = HMAC(secret, i, j)

Only the server has the secret. Where clients take partitions of a public data set, the seed tells everything about everybody,
and the secret is derived from it, so that a run can be repeated. Where a client brings data of its own, clients know the seed
and must not learn the rest: the secret is drawn at random.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable


class Pseudonyms:
    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    @classmethod
    def for_run(cls, seed: int, *, private: bool) -> "Pseudonyms":
        return cls(secrets.token_bytes(32) if private else hashlib.sha256(f"pseudonyms {seed}".encode()).digest())

    def of(self, other: str, *, told_to: str) -> str:
        text = f"{len(told_to)}:{told_to}{other}".encode()
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()[:16]

    def roster(self, others: Iterable[str], *, told_to: str) -> dict[str, str]:
        """Pseudonym -> client, in the order of the pseudonyms, which tells nothing about who they are."""
        names = {self.of(other, told_to=told_to): other for other in others if other != told_to}
        return dict(sorted(names.items()))
