"""A program that runs until it is stopped: what it says to the terminal, and how signals end it and its processes."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.code = 128 + number


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Within, a signal that asks to end raises Stopped; from then on the others are ignored, so that nothing disturbs the
    cleaning up. In any other thread than the main one nothing happens: Python gives signals to that alone."""
    with _handling(_stop):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within, signals that ask to end are ignored: a second Ctrl-C must not leave half of it undone."""
    with _handling(signal.SIG_IGN):
        yield


def leave_it_to_the_parent() -> None:
    """In a new process: Ctrl-C in a terminal reaches all of them, and the parent decides; other signals end it."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # `nohup`: it stays so
    before = {number: signal.signal(number, handler) for number in STOPPING if number not in ignored}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
