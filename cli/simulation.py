"""A simulation without a daemon: Flower's grid, with the clients in worker processes of this one.

The ServerApp's code talks to `SimulationGrid` as to any grid of Flower; a message to a node is answered by the ClientApp in
a worker. Workers are forked where that is safe to do (Linux), so that they share the data that are loaded already.
"""

import functools
import multiprocessing
import os
import queue
import sys
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from strategies.federation import RunFailed
from wire.config import Value

WAIT_SECONDS = 0.2
DEAD_WORKER = "a worker process was killed, perhaps for want of memory; try fewer --workers or a smaller model"


class Workers:
    """Processes that answer messages; `count` 0 answers in this process."""

    def __init__(self, count: int) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker) if count else None

    def submit(self, message: Message, context: Context) -> "Future[Message]":
        if self.pool:
            try:
                return self.pool.submit(_answer, message, context)
            except BrokenProcessPool:
                raise RunFailed(DEAD_WORKER) from None
        future: Future[Message] = Future()
        future.set_result(_answer(message, context))
        return future

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides


def _answer(message: Message, context: Context) -> Message:
    from client.app import app

    try:
        return app(message, context)
    except Exception as error:
        return Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)


class SimulationGrid(Grid):
    """`num_clients` nodes with ids 1, 2, ..., whose node configuration is that of Flower's simulation plus a state directory."""

    poll_seconds = 0.0  # pull_messages waits by itself

    def __init__(self, workers: Workers, num_clients: int, run_config: Mapping[str, Value], state_dir: str) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self._run = Run.create_empty(1)
        self.workers = workers
        self.futures: dict[str, Future[Message]] = {}
        self.finished: queue.SimpleQueue[str] = queue.SimpleQueue()  # whose futures are done
        self.contexts = {
            i + 2: Context(
                run_id=1,
                node_id=i + 2,
                node_config={"partition-id": i, "num-partitions": num_clients, "state-dir": state_dir},
                state=RecordDict(),
                run_config=dict(run_config),
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
        identifiers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = identifier = uuid.uuid4().hex
            self.futures[identifier] = future = self.workers.submit(
                message, self.contexts[message.metadata.dst_node_id]
            )
            future.add_done_callback(functools.partial(self._note, identifier))
            identifiers.append(identifier)
        return identifiers

    def _note(self, identifier: str, _: Future[Message]) -> None:
        self.finished.put(identifier)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are there; waits a moment for the first. A queue, because looking through all futures costs."""
        try:
            finished = [self.finished.get(timeout=WAIT_SECONDS)]
            while not self.finished.empty():
                finished.append(self.finished.get())
        except queue.Empty:
            return []
        asked = set(message_ids)
        futures = [self.futures.pop(i) for i in finished if i in self.futures and self.futures[i].done()]
        try:
            replies = [future.result() for future in futures]
        except BrokenProcessPool:
            raise RunFailed(DEAD_WORKER) from None
        return [reply for reply in replies if reply.metadata.reply_to_message_id in asked]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            for reply in self.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
        return replies
