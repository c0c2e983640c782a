"""Where the lines go that Coterie logs: every module logs to its own logger under `coterie`."""

import logging


def join_flowers_log() -> None:
    """In a ServerApp: to Flower's log, which Flower carries to `flwr log`, `coterie submit` and `coterie up`."""
    ours, flower = logging.getLogger("coterie"), logging.getLogger("flwr")
    ours.setLevel(flower.getEffectiveLevel())
    for handler in flower.handlers:
        ours.addHandler(handler)
