"""What Coterie logs in a ServerApp is part of Flower's log."""

import io
import logging
from collections.abc import Iterator

import pytest

from coterie.wire.log import join_flowers_log


@pytest.fixture
def flowers_log() -> Iterator[io.StringIO]:
    """Flower's log, and all loggers as before afterwards."""
    ours, flower = logging.getLogger("coterie"), logging.getLogger("flwr")
    before = [(logger, logger.level, list(logger.handlers)) for logger in (ours, flower)]
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setLevel(logging.INFO)
    flower.handlers, ours.handlers = [handler], []
    flower.setLevel(logging.DEBUG)
    yield written
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


def test_lines_of_ours_are_in_flowers_log_once(flowers_log: io.StringIO) -> None:
    log = logging.getLogger("coterie.strategies.rounds")
    log.info("nobody listens yet")
    join_flowers_log()
    join_flowers_log()  # a second run in the same process
    log.info("round %d/%d", 1, 2)
    log.debug("too small to tell")
    logging.getLogger("flwr").warning("and Flower's own")
    assert flowers_log.getvalue() == "round 1/2\nand Flower's own\n"
