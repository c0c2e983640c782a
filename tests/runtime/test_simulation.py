"""Workers of a simulation: several at once, forked or not, and a dead one is noticed."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict

from coterie.client.app import app
from coterie.runtime import simulation
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import checked_config
from coterie.wire.errors import RunFailed
from coterie.wire.messages import HELLO, ORDER

CLIENTS = 3


def hellos(workers: Workers, state: Path, **more: Any) -> list[dict[str, Any]]:
    """What all clients answer to a hello."""
    config = checked_config({"num-clients": CLIENTS, "model": "linear", **more})
    grid = SimulationGrid(workers, CLIENTS, config, str(state))
    messages = [Message(RecordDict(), dst_node_id=node, message_type=HELLO) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(messages))
    assert all(reply.has_content() for reply in replies), replies
    return sorted((dict(reply.content.config_records[ORDER]) for reply in replies), key=lambda hello: hello["name"])


def test_several_at_once_in_threads_and_one_after_the_other(tmp_path: Path) -> None:
    alone = hellos(Workers(0), tmp_path / "alone")
    assert [hello["name"] for hello in alone] == ["0", "1", "2"]
    said: dict[int, list[dict[str, Any]]] = {}
    pools = [Workers(2) for _ in range(3)]

    def simulate(number: int) -> None:
        said[number] = hellos(pools[number], tmp_path / str(number))

    threads = [threading.Thread(target=simulate, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [said.get(number) for number in range(3)] == [alone] * 3
    assert hellos(pools[0], tmp_path / "again") == alone
    for pool in pools:
        pool.close()
    assert not simulation._open


def test_the_longest_comes_first_and_identifiers_in_the_order_of_the_messages(tmp_path: Path) -> None:
    class Noted(Workers):
        def submit(self, identifier: str, message: Message, context: Any) -> None:
            begun.append((identifier, message.metadata.dst_node_id))

    begun: list[tuple[str, int]] = []
    config = checked_config({"num-clients": 4, "model": "linear"})
    grid = SimulationGrid(Noted(0), 4, config, str(tmp_path), sizes=[5, 9, 5, 7])
    messages = [Message(RecordDict(), dst_node_id=node, message_type=HELLO) for node in (5, 2, 3, 4)]
    identifiers = list(grid.push_messages(messages))
    assert [node for _, node in begun] == [3, 5, 2, 4]  # 9, 7, then the two of 5 as they came
    assert dict(begun) == dict(zip(identifiers, (5, 2, 3, 4), strict=True))
    assert len({id(context.run_config) for context in grid.contexts.values()}) == 1


def test_workers_need_not_be_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = hellos(Workers(0), tmp_path / "alone")
    monkeypatch.setattr(simulation, "_can_fork", lambda threads: False)
    pool = Workers(1)
    try:
        assert hellos(pool, tmp_path / "spawned") == alone
    finally:
        pool.close()


def test_a_dead_worker_is_noticed_whatever_other_workers_were_started_since(tmp_path: Path) -> None:
    first, second = Workers(1), Workers(1)
    try:
        hellos(first, tmp_path / "first")
        hellos(second, tmp_path / "second")
        (worker,) = first.processes
        os.kill(worker.pid or 0, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(RunFailed, match="a worker process was killed"):
            hellos(first, tmp_path / "first")
        assert time.monotonic() - started < 10
    finally:
        first.close()
        second.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked here")
def test_a_worker_may_log_whatever_the_process_was_doing_when_it_was_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another thread was just drawing the progress bar, through which warnings are written."""
    console = threading.Lock()

    class Drawn(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with console:
                pass

    def answer(message: Message, context: Any) -> Message:
        logging.getLogger("coterie.client.training").warning("it is late")
        return app(message, context)

    monkeypatch.setattr(logging.getLogger("coterie"), "handlers", [Drawn()])
    monkeypatch.setattr("coterie.client.app.app", answer)
    pool = Workers(1)
    thread = threading.Thread(target=lambda: hellos(pool, tmp_path), daemon=True)
    try:
        with console:
            thread.start()
            thread.join(30)
        assert not thread.is_alive()
    finally:
        pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked here")
def test_when_it_is_safe_to_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert simulation._can_fork(1) and simulation._can_fork(2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert simulation._can_fork(1) and not simulation._can_fork(2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not simulation._can_fork(1)


THREADS = """
import json, sys
import torch
from coterie.runtime.simulation import SimulationGrid, Workers
from coterie.server.app import checked_config
from flwr.app import Message, RecordDict

if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.randn(3_000_000).exp().sum()  # as a user's own work before, with both threads
    config = checked_config({"num-clients": 2, "model": "linear", "threads": int(sys.argv[1])})
    workers = Workers(1)
    grid = SimulationGrid(workers, 2, config, "state")
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=2, message_type="query.hello")])
    print(json.dumps({"forked": workers.forked, "answered": reply.has_content()}))
    workers.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked here")
@pytest.mark.parametrize("threads", [1, 2])
def test_clients_with_several_threads_are_not_forked_from_a_process_that_used_several(
    tmp_path: Path, threads: int
) -> None:
    """OpenMP would wait for ever in the forked process."""
    script = tmp_path / "script.py"
    script.write_text(THREADS)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, str(script), str(threads)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"forked": threads == 1, "answered": True}
