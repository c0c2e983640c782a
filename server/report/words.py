"""What a report says first, in a sentence or three."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.server.report.trouble import TAKES

GAINS, LOSES, CANNOT_TELL = "gains", "loses", "cannot tell"
MOST_NAMED = 3  # clients that a sentence names one by one
MOST_GROUPS = 4


def summary(run: Mapping[str, Any]) -> list[str]:
    """The sentences about one run."""
    return [
        sentence for sentence in (_gained(run) or _reached(run), _suspect(run), _takers(run), together(run)) if sentence
    ]


def _gained(run: Mapping[str, Any]) -> str:
    told = [(name, verdict, gain) for name, verdict, gain in _known(run) if verdict]
    if not told:
        return ""
    count = {verdict: [name for name, said, _ in told if said == verdict] for verdict in (GAINS, LOSES, CANNOT_TELL)}
    scale, unit = (100, "points") if run["percent"] else (1, f"of {run['metric']}")
    gaining = (
        f"{len(count[GAINS])} of {len(told)} clients gain" if count[GAINS] else f"None of {len(told)} clients gains"
    )
    parts = [f"{gaining} by training with others"]
    if count[CANNOT_TELL]:
        parts.append(f"{len(count[CANNOT_TELL])} cannot tell")
    losers = sorted((gain, name) for name, verdict, gain in told if verdict == LOSES)
    if len(losers) > MOST_NAMED:
        parts.append(f"{len(losers)} lose")
    elif losers:
        parts.append(", ".join(f"{name} loses {-gain * scale:.1f}" for gain, name in losers))
    else:
        parts.append("none loses")
    median = float(np.median([gain for *_, gain in told])) * scale
    return f"{', '.join(parts)}; median {f'{median:+.1f}'.replace('+0.0', '0.0').replace('-0.0', '0.0')} {unit}."


def _known(run: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    rows = zip(run["clients"], run.get("verdict") or [], run.get("gain") or [], strict=False)
    return [(name, verdict, gain) for name, verdict, gain in rows if gain is not None]


def _reached(run: Mapping[str, Any]) -> str:
    values = [(value, name) for name, value in zip(run["clients"], run["personal"], strict=True) if value is not None]
    if not values:
        return f"{len(run['clients'])} clients; none of them could be tested."
    worst, name = (max if run["lower"] else min)(values)
    mean = float(np.mean([value for value, _ in values]))
    shown = [f"{100 * value:.1f} %" if run["percent"] else f"{value:.3g}" for value in (mean, worst)]
    return f"{len(values)} clients have a test {run['metric']} of {shown[0]} on average; the worst is {name} with {shown[1]}."


def _suspect(run: Mapping[str, Any]) -> str:
    if run.get("suspects") is None:
        return ""
    return (
        f"{named(run['suspects'])} {'is' if len(run['suspects']) == 1 else 'are'} suspect." if run["suspects"] else ""
    )


def _takers(run: Mapping[str, Any]) -> str:
    names = [row["client"] for row in run.get("trouble", []) if row["what"] == TAKES]
    return f"{named(names)} {'takes and does' if len(names) == 1 else 'take and do'} not give." if names else ""


def together(run: Mapping[str, Any]) -> str:
    """Who trains with whom."""
    groups = [[run["clients"][place] for place in members] for members in sorted(run.get("groups") or [], key=min)]
    several = [members for members in groups if len(members) > 1]
    alone = [members[0] for members in groups if len(members) == 1]
    if not several:
        return "Everybody is best off alone." if alone else ""
    if len(several) == 1 and not alone:
        return f"All {len(several[0])} train together."
    if len(several) <= MOST_GROUPS and all(len(in_ranges(members)) <= MOST_NAMED + 1 for members in several):
        text = f"{_and([_bracketed(in_ranges(members)) for members in several])} train together"
    else:
        sizes = sorted(map(len, several))
        size = f"{sizes[0]} to {sizes[-1]}" if sizes[0] < sizes[-1] else str(sizes[0])
        text = f"{len(several)} coalitions of {size} clients train together"
    return text + (f"; {named(alone)} {'stays' if len(alone) == 1 else 'stay'} alone." if alone else ".")


def named(names: Sequence[str]) -> str:
    """A and B; 12 clients."""
    ranges = in_ranges(names)
    return _and(ranges) if len(ranges) <= MOST_NAMED else f"{len(names)} clients"


def by_name(name: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Sorts A2 before A10, and numbers before names."""
    parts = [part for part in re.split(r"([0-9]{1,18})", name) if part]
    return [(False, int(part), "") if re.fullmatch("[0-9]+", part) else (True, 0, part) for part in parts], name


def in_ranges(names: Sequence[str]) -> list[str]:
    """A1, A2, A3, B7: A1-A3, B7."""
    parted = sorted(
        (match[1], int(match[2]), name) for name in names if (match := re.fullmatch(r"(.*?)(\d{1,9})", name))
    )
    texts = [name for name in names if not re.fullmatch(r"(.*?)(\d{1,9})", name)]
    runs: list[list[tuple[str, int, str]]] = []
    for one in parted:
        if runs and runs[-1][-1][0] == one[0] and runs[-1][-1][1] + 1 == one[1]:
            runs[-1].append(one)
        else:
            runs.append([one])
    for run in runs:
        texts += [f"{run[0][2]}-{run[-1][2]}"] if len(run) > 2 else [name for *_, name in run]
    return texts


def _bracketed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _and(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
