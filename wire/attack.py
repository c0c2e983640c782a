"""Clients that do harm on purpose, for experiments: which ones, and what they do (client/attacks.py).

In a simulation the run configuration chooses them, by name (`attack.clients`) or a share of all, drawn by the seed
(`attack.fraction`); server and clients come to the same choice, so a report can tell how many were found. In a
deployment a client does harm if its node configuration says so: `attack='sign-flip'`.
"""

from collections.abc import Sequence

from pydantic import Field, field_validator

from coterie.wire.config import Settings, choose
from coterie.wire.errors import ConfigError
from coterie.wire.installed import names
from coterie.wire.randomness import generator

KINDS = (
    *("none", "open-set", "closed-set", "disguise", "data-noise", "gradient-poison", "random-gradient", "sign-flip"),
    *("collude", "stale", "huge", "nan"),
)
GROUP = "coterie.attacks"  # of entry points: subclasses of coterie.client.attacks.Attack


def kinds() -> list[str]:
    """All kinds of harm that are known here."""
    return names(GROUP, KINDS)


class AttackSettings(Settings):
    kind: str = Field("none", description="What bad clients do.", json_schema_extra={"choices": list(KINDS)})
    fraction: float = Field(0.0, ge=0.0, le=1.0, description="Share of the clients that are bad, drawn by the seed.")
    clients: str = Field("", description="Or which clients are bad: names separated by commas.")
    strength: float = Field(
        1.0, ge=0.0, description="How much of it: share of samples or labels, or factor on what is sent."
    )
    foreign: str = Field(
        "auto",
        description="open-set: the data set whose images are taken; auto: one like the task's; none: pixels in random order.",
    )

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        return choose("attack.kind", kind, kinds())


def bad_clients(attack: AttackSettings, names: Sequence[str], seed: int) -> set[str]:
    """Who of all clients `names` is bad."""
    if attack.kind == "none":
        return set()
    if attack.clients:
        chosen = {name.strip() for name in attack.clients.split(",") if name.strip()}
        if len(chosen) > len(names):
            raise ConfigError(
                f"attack.clients = {attack.clients!r}: {len(chosen)} bad clients of {len(names)} clients; name fewer"
            )
        if strangers := sorted(chosen - set(names)):
            raise ConfigError(
                f"attack.clients = {attack.clients!r}: there is no client {strangers[0]!r}; take {', '.join(names)}"
            )
        return chosen
    if not attack.fraction:
        raise ConfigError(f"attack.kind = {attack.kind!r}: nobody does it; give attack.fraction or attack.clients")
    number = round(attack.fraction * len(names))
    return {names[i] for i in generator(seed, "attack").choice(len(names), size=number, replace=False)}


def known_bad_clients(
    attack: AttackSettings, clients: Sequence[str], dealt: Sequence[str], seed: int
) -> set[str] | None:
    """Who is bad by the run configuration; None where it does not say, or clients have names other than the `dealt` ones."""
    if attack.kind == "none" or not (attack.clients or set(clients) == set(dealt)):
        return None
    return bad_clients(attack, clients if attack.clients else dealt, seed)
