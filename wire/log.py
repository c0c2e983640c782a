"""Where the lines go that Coterie logs: every module logs to its own logger under `coterie`."""

import logging


def join_flowers_log() -> None:
    """In a ServerApp: to Flower's log, which Flower carries to `flwr log`, `coterie submit` and `coterie up`."""
    ours, flower = logging.getLogger("coterie"), logging.getLogger("flwr")
    ours.setLevel(flower.getEffectiveLevel())
    for handler in flower.handlers:
        ours.addHandler(handler)


def log_plainly() -> None:
    """In a forked worker: to standard error, and not through the parent's console, whose locks may be held for ever here."""
    plain = logging.StreamHandler()
    plain.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    for name in ("coterie", "flwr"):
        logging.getLogger(name).handlers = [plain]
