"""Flower's SuperLink with fewer questions to its database, of which it asks about ten for every object of a message.

What changes seldom is asked again only after SECONDS: which node a key belongs to, whether a run still goes on, whether the
tokens of tasks have expired. Bytes are added up, and written once in that time; those of a run's last second never, so `flwr
list` shows a little less (Coterie's own figures are not from there). A client that asks for work is answered without the
database if no message was stored for it; every LOOK_SECONDS the database is asked all the same.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

SECONDS = 1.0
LOOK_SECONDS = 3.0


class Kept:
    """Answers that are given again for a while; None is never kept."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.answers: dict[Hashable, tuple[float, Any]] = {}

    def get(self, question: Hashable, ask: Callable[[], Any]) -> Any:
        until, answer = self.answers.get(question, (0.0, None))
        if time.monotonic() < until:
            return answer
        answer = ask()
        if answer is None:
            self.answers.pop(question, None)
        else:
            self.answers[question] = (time.monotonic() + self.seconds, answer)
        return answer


def make_lean(state: Any, handlers: Any) -> None:
    """Change Flower's class for the state of a SuperLink, and its module of handlers for clients, in place. Raises
    AttributeError before anything is changed if they are not as expected."""
    mailbox = Mailbox()
    wrappers = [
        (state, "_cleanup_expired_task_tokens", _seldom),
        (state, "store_traffic", _added_up),
        (state, "store_message_and_object_tree", mailbox.storing),
        (state, "get_message_ins", mailbox.getting),
        (handlers, "check_abort", _abort_seldom),
    ]
    found = [getattr(where, name) for where, name, _ in wrappers]
    for (where, name, wrap), original in zip(wrappers, found, strict=True):
        setattr(where, name, wrap(original))


def _seldom(clean_up: Any) -> Any:
    kept = Kept()

    def cleaned(self: Any) -> None:
        kept.get("", lambda: clean_up(self) or True)

    return cleaned


def _abort_seldom(check_abort: Any) -> Any:
    """That a run goes on is true for a while; that it does not is looked up."""
    kept = Kept()

    def checked(run_id: int, statuses: list[str], state: Any) -> str | None:
        reason: list[str] = []

        def ask() -> bool | None:
            reason.append(check_abort(run_id, statuses, state) or "")
            return None if reason[0] else True

        kept.get((run_id, *statuses), ask)
        return reason[0] or None if reason else None

    return checked


def _added_up(store_traffic: Any) -> Any:
    lock, sums = threading.Lock(), dict[int, list[float]]()

    def added(self: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        with lock:
            known = sums.setdefault(run_id, [0, 0, 0.0])
            known[0], known[1] = known[0] + bytes_sent, known[1] + bytes_recv
            if time.monotonic() < known[2]:
                return
            sent, received, _ = known
            sums[run_id] = [0, 0, time.monotonic() + SECONDS]
        store_traffic(self, run_id, bytes_sent=int(sent), bytes_recv=int(received))

    return added


class Mailbox:
    """For which clients messages were stored, in this process; what was before, and whatever is missed, is found by looking."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.empty: dict[int, float] = {}  # node -> until when the database need not be asked

    def storing(self, store: Any) -> Any:
        def stored(state: Any, message: Any, *rest: Any) -> Any:
            result = store(state, message, *rest)
            with self.lock:
                self.empty.pop(message.metadata.dst_node_id, None)
            return result

        return stored

    def getting(self, get: Any) -> Any:
        def got(state: Any, node_id: int, *args: Any, **options: Any) -> Any:
            with self.lock:
                if time.monotonic() < self.empty.get(node_id, 0.0):
                    return []
                self.empty[node_id] = (
                    time.monotonic() + LOOK_SECONDS
                )  # before the look: what is stored meanwhile ends it
            found = get(state, node_id, *args, **options)
            if found:
                with self.lock:
                    self.empty.pop(node_id, None)
            return found

        return got
