"""How a program is stopped, whoever asks for it and however often."""

import os
import signal
import threading
import time

import pytest

from coterie.runtime.foreground import STOPPING, Stopped, stoppable, undisturbed


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOPPING]


@pytest.fixture(autouse=True)
def not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_what_nohup_began_goes_on_when_its_terminal_closes() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stoppable():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_stops_once_and_afterwards_all_is_as_before(number: int) -> None:
    before = handlers()
    with pytest.raises(Stopped) as stopped, stoppable():
        try:
            signal.raise_signal(number)
            time.sleep(10)
        finally:
            for other in STOPPING:
                signal.raise_signal(other)  # while it cleans up
    assert stopped.value.code == 128 + number and str(stopped.value) == signal.Signals(number).name
    assert handlers() == before


def test_what_must_not_be_disturbed_is_not() -> None:
    before = handlers()
    with undisturbed():
        for number in STOPPING:
            os.kill(os.getpid(), number)
    assert handlers() == before


def test_in_another_thread_nothing_is_changed() -> None:
    """Python would refuse it: a library call in a thread must work all the same."""
    seen: list[bool] = []
    before = handlers()

    def work() -> None:
        with stoppable(), undisturbed():
            seen.append(handlers() == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
