"""One seed for a run; every consumer draws from a generator of its own.

The generator depends on (seed, purpose, round, client) and on nothing else, so results do not depend on the number of
workers, on the order of replies, or on who else drew before.
"""

import hashlib

import numpy as np


def derive_seed(seed: int, purpose: str, server_round: int = 0, client: str = "") -> int:
    digest = hashlib.sha256(repr((seed, purpose, server_round, client)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits: torch and numpy both take it


def generator(seed: int, purpose: str, server_round: int = 0, client: str = "") -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, purpose, server_round, client))
