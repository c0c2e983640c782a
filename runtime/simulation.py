"""A simulation without a daemon: Flower's grid, with the clients in worker processes of this one.

The ServerApp's code talks to `SimulationGrid` as to any grid of Flower; a message to a node is answered by the ClientApp in
a worker. Workers are forked where that is safe to do (Linux, before CUDA is used), so that they share the data that are loaded
already. There may be several simulations in one process, one after the other or in threads of their own.
"""

import errno
import json
import multiprocessing
import os
import selectors
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.serverapp import Grid

from coterie.runtime.flower import Run, TaskIdentity
from coterie.runtime.foreground import leave_it_to_the_parent
from coterie.wire.config import Value
from coterie.wire.errors import RunFailed
from coterie.wire.files import NO_ROOM
from coterie.wire.log import log_plainly

WAIT_SECONDS = 0.2
FULL_DISK = 1028  # an error code of ours, beside Flower's
DEAD_WORKER = "a worker process was killed, perhaps for want of memory; try fewer --workers or a smaller model"
NOT_FORKED = "workers import the script that started them: in a script, call Coterie under `if __name__ == '__main__':`"


class Workers:
    """Processes that answer messages, one at a time each; `count` 0 answers in this process.

    One pipe for each, and no thread: the pools of the standard library spend more on a small message than the rest of the server.
    """

    def __init__(self, count: int) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self.count = count
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.idle: list[Connection] = []
        self.busy: dict[Connection, str] = {}  # -> the message that it works on
        self.queue: deque[tuple[str, Message, Context]] = deque()
        self.done: deque[tuple[str, Message]] = deque()
        self.selector = selectors.DefaultSelector()
        self.forked = True
        self.known: dict[Connection, dict[int, Context]] = {}  # the contexts that a worker has

    def submit(self, identifier: str, message: Message, context: Context) -> None:
        if not self.count:
            self.done.append((identifier, _answer(message, context)))
            return
        if not self.processes:
            self._start(int(context.run_config.get("threads", 1)))
        self.queue.append((identifier, message, context))
        self._hand_out()

    def finished(self) -> list[tuple[str, Message]]:
        """Messages answered since the last call; waits a moment for the first."""
        if not self.done and not self.busy:
            time.sleep(WAIT_SECONDS)
        for key, _ in self.selector.select(0 if self.done else WAIT_SECONDS) if self.busy else ():
            connection: Connection = key.data
            try:
                reply = connection.recv()
            except (EOFError, OSError):
                raise self._death() from None
            self.done.append((self.busy.pop(connection), reply))
            self.idle.append(connection)
            self._hand_out()
        answers = list(self.done)
        self.done.clear()
        return answers

    def close(self) -> None:
        self.selector.close()
        with _starting:
            for connection in (*self.idle, *self.busy):
                _open.discard(connection)
                connection.close()
        self.idle.clear()
        self.busy.clear()
        for process in self.processes:
            process.terminate()
            process.join()
        self.processes.clear()

    def _start(self, threads: int) -> None:
        """Forked when the first message is there: by then the data are loaded, and shared."""
        forks = self.forked = _can_fork(threads)
        context = multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")
        with _starting:
            for _ in range(self.count):
                ours, theirs = context.Pipe()
                _open.add(ours)
                process = context.Process(target=_work, args=(theirs, list(_open) if forks else []), daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
                self.idle.append(ours)
                self.selector.register(ours, selectors.EVENT_READ, ours)

    def _death(self) -> RunFailed:
        return RunFailed(DEAD_WORKER if self.forked else f"{DEAD_WORKER}; {NOT_FORKED}")

    def _hand_out(self) -> None:
        while self.idle and self.queue:
            connection = self.idle.pop()
            identifier, message, context = self.queue.popleft()
            known = self.known.setdefault(connection, {})
            try:
                connection.send((message, id(context), None if id(context) in known else context))
            except OSError:
                raise self._death() from None
            known[id(context)] = context  # kept, so that no other gets its id
            self.busy[connection] = identifier


# A worker must hold no end of another's pipe, or one that ended would not be noticed: those that are open, of all simulations
# of this process, and a lock, so that none is forked while another's pipe is being made.
_open: set[Connection] = set()
_starting = threading.Lock()


def _can_fork(threads: int) -> bool:
    """Not after CUDA was used in this process; nor for clients with several threads, if this process may have used several:
    OpenMP then waits for ever for those that were not forked with it."""
    torch = sys.modules.get("torch")
    used = torch is not None and (torch.cuda.is_initialized() or (threads > 1 and torch.get_num_threads() > 1))
    return sys.platform == "linux" and not used


def _work(connection: Connection, inherited: Iterable[Connection]) -> None:
    """A worker's life: until the other end of its pipe is closed, which nobody else may hold open. It ends with a killed
    parent, or it would go on to write where the resumed run writes."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    leave_it_to_the_parent()
    log_plainly()
    for other in inherited:
        other.close()
    contexts: dict[int, Context] = {}
    configs: dict[str, UserConfig] = {}  # those of all contexts of a run are equal, and one object from here on
    while True:
        try:
            message, key, context = connection.recv()
            if context is not None:
                context.run_config = configs.setdefault(json.dumps(context.run_config), context.run_config)
            connection.send(_answer(message, contexts.setdefault(key, context)))
        except (EOFError, OSError):
            return


def _end_with(parent: int) -> None:
    """Not by a signal of Linux: that one comes when the thread ends that forked this process, and others may use it then."""
    while os.getppid() == parent:
        time.sleep(WAIT_SECONDS)
    os._exit(1)


def _answer(message: Message, context: Context) -> Message:
    try:
        reply: Message = import_module("coterie.client.app").app(message, context)
        return reply
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return Message(Error(code=FULL_DISK, reason=str(error)), reply_to=message)
        return Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)


class SimulationGrid(Grid):
    """`num_clients` nodes with ids 2, 3, ..., whose node configuration is that of Flower's simulation plus a state directory,
    and a name for each if the data name their owners."""

    poll_seconds = 0.0  # pull_messages waits by itself

    def __init__(
        self,
        workers: Workers,
        num_clients: int,
        run_config: Mapping[str, Value],
        state_dir: str,
        names: Sequence[str] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        """`sizes` say how long each client's answers take beside the others', for example by its samples."""
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # the same for all simulations
        self._run = Run.create_empty(1)
        self.workers = workers
        self.sizes = dict(enumerate(sizes, start=2))
        told = dict(run_config)  # one for all: whoever has read it knows it again
        self.contexts = {
            i + 2: Context(
                run_id=1,
                node_id=i + 2,
                node_config={
                    **{"partition-id": i, "num-partitions": num_clients, "state-dir": state_dir, "simulated": True},
                    "methods": run_config.get("strategy-file", ""),
                    **({"client-name": names[i]} if names else {}),
                    "models": run_config.get("model", ""),
                    "pretrained": run_config.get("pretrained", ""),
                    "shared-data": run_config.get("data", ""),
                    "data-root": run_config.get("data-root", "data"),
                },
                state=RecordDict(),
                run_config=told,
            )
            for i in range(num_clients)
        }

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """The longest first, so that in the end no worker waits long for another."""
        given = list(messages)
        for message in given:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        for message in sorted(given, key=lambda message: -self.sizes.get(message.metadata.dst_node_id, 0)):
            self.workers.submit(message.metadata.message_id, message, self.contexts[message.metadata.dst_node_id])
        return [message.metadata.message_id for message in given]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are there; waits a moment for the first."""
        asked = set(message_ids)
        replies = [reply for identifier, reply in self.workers.finished() if identifier in asked]
        for reply in replies:
            if reply.has_error() and reply.error.code == FULL_DISK:  # nobody's fault: the run stops, and can be resumed
                raise OSError(errno.ENOSPC, reply.error.reason)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            for reply in self.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
        return replies
