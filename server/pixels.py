"""Before the first round of a run with images of the clients' own: sums of their pixels become one mean and deviation for all.

They are kept with the run as `pixels.json`. A client that tells what cannot be is left out of them, and of the run.
"""

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

from coterie.client.images import Pixels, joined
from coterie.server.agreement import tell_waiting
from coterie.strategies.federation import Federation
from coterie.strategies.observer import Observer
from coterie.wire.checks import records_of
from coterie.wire.config import RunConfig
from coterie.wire.errors import Refused, RunFailed
from coterie.wire.files import write_atomically
from coterie.wire.messages import ORDER, DescribeOrder, Description, Sent

log = logging.getLogger(__name__)

FILE = "pixels.json"


def agree_on_pixels(
    grid: Grid, config: RunConfig, channels: int, code: str, run_dir: Path, observers: Sequence[Observer]
) -> tuple[str, dict[str, str]]:
    """Mean and deviation of each channel, as a text for the clients; and who must not take part, and why."""
    if (kept := run_dir / FILE).exists():
        found = json.loads(kept.read_text(encoding="utf-8"))
        refused = found.pop("refused")
        return json.dumps(found) if found else "", refused
    federation = Federation(grid, code=code, join_timeout=config.join_timeout, quorum=config.quorum)
    federation.on_wait = partial(tell_waiting, observers)
    federation.gather(config.num_clients)
    clients = federation.clients
    replies, _ = federation.exchange(dict.fromkeys(clients, Sent(DescribeOrder(0))), 0, config.round_timeout)
    told, refused = list[Pixels](), dict[str, str]()
    for name, reply in replies.items():
        try:
            told.append(check_pixels(reply, channels))
        except Refused as error:
            refused[name] = str(error)
            log.warning("client %s cannot take part: %s", name, error)
    if len(told) < federation.needed(len(clients)):
        raise RunFailed("; ".join(refused.values()) or f"no answer within {config.round_timeout:g} seconds")
    text = joined(told)
    write_atomically(kept, json.dumps({**json.loads(text or "{}"), "refused": refused}).encode())
    return text, refused


def check_pixels(reply: Message, channels: int) -> Pixels:
    """What a client tells of its pixels, or `Refused`."""
    record = records_of(reply).config_records.get(ORDER)
    try:
        if record is None:
            raise ValueError("no record")
        pixels = Pixels.model_validate_json(str(Description.from_record(record).facts))
        for sums, squares in zip(pixels.sums, pixels.squares, strict=True):
            if not 0 <= squares <= sums <= pixels.count or sums**2 > squares * pixels.count * (1 + 1e-9):
                raise ValueError("no pixels between 0 and 255 have these sums")
        if len(pixels.sums) != channels:
            raise ValueError(f"{len(pixels.sums)} channels instead of {channels}")
    except (ValidationError, ValueError, TypeError) as error:
        raise Refused(f"what it tells of its images cannot be used ({str(error).splitlines()[0]})") from None
    return pixels
