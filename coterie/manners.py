"""What a run changes in the process that calls it, and that all of it is put back. Several threads may have a run each."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Shared:
    """A change that the first of the runs that are going on makes, and the last one takes back."""

    def __init__(self, change: Callable[..., Callable[[], None]]) -> None:
        self.change = change  # returns how to undo it
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # another thread's run does not go on in a new process

    def _begin(self) -> None:
        self.lock, self.runs = threading.Lock(), 0

    @contextmanager
    def __call__(self, *arguments: Any) -> Iterator[None]:
        with self.lock:
            self.runs += 1
            if self.runs == 1:
                self.undo = self.change(*arguments)
        try:
            yield
        finally:
            with self.lock:
                self.runs -= 1
                if not self.runs:
                    self.undo()


def _tame_torch() -> Callable[[], None]:
    threads, state, limited = torch.get_num_threads(), torch.get_rng_state(), "OMP_NUM_THREADS" in os.environ
    torch.set_num_threads(1)

    def undo() -> None:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        if not limited:
            os.environ.pop("OMP_NUM_THREADS", None)  # set for worker processes

    return undo


# One thread: after a fork, a parent's threads are not there, and torch would wait for them without end.
tame_torch = Shared(_tame_torch)
