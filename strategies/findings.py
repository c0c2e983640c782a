"""What a method found out about clients: one kind of thing, which run directory, report and library show alike.

    pairs    a number for each pair of clients, (clients, clients): relevance, similarity, preferences
    scores   a number for each client: suspects
    groups   lists of clients: coalitions
    links    for each client a list of clients: collaborators
    shares   for each client what its model is mixed of: name of a model -> share
    places   for each client a point in a plane: where its model stands among the others'

`facts` say more of it, in words of its own: a bound, what a simulation knows of the truth. All of it fits into JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal["pairs", "scores", "groups", "links", "shares", "places"]


@dataclass(frozen=True)
class Finding:
    name: str
    kind: Kind
    values: Any
    clients: Sequence[str] = field(default_factory=list)  # pairs: who stands behind rows and columns
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def pairs(cls, name: str, clients: Sequence[str], values: np.ndarray, **facts: Any) -> "Finding":
        return cls(name, "pairs", np.asarray(values, dtype=float), list(clients), facts)

    def as_json(self) -> dict[str, Any]:
        values = self.values.tolist() if isinstance(self.values, np.ndarray) else self.values
        return {"kind": self.kind, "clients": list(self.clients), "values": values, "facts": dict(self.facts)}

    @classmethod
    def from_json(cls, name: str, told: Mapping[str, Any]) -> "Finding":
        if told["kind"] not in get_args(Kind):
            raise ValueError(f"{name}: {told['kind']!r} is no kind of finding")
        values = np.array(told["values"], dtype=float) if told["kind"] == "pairs" else told["values"]
        return cls(name, told["kind"], values, told["clients"], told["facts"])


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """What `findings.json` holds."""
    return {finding.name: finding.as_json() for finding in findings}


def from_json(told: Mapping[str, Any]) -> dict[str, Finding]:
    return {name: Finding.from_json(name, value) for name, value in told.items()}
