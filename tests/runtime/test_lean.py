"""The SuperLink asks its database less, and nobody notices: with Flower's own state, and with a clock of our own."""

from types import SimpleNamespace

import pytest

from coterie.runtime import lean
from coterie.runtime.flower import SqlLinkState, message_handler


class Clock:
    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(lean.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_an_answer_is_kept_for_a_while_and_none_never(clock) -> None:
    asked: list[int | None] = []
    kept = lean.Kept(2.0)

    def ask(answer):
        return kept.get("who", lambda: asked.append(answer) or answer)

    assert [ask(None), ask(None), ask(7), ask(8)] == [None, None, 7, 7]
    clock.now += 2
    assert ask(None) is None and ask(9) == 9
    assert asked == [None, None, 7, None, 9]


class State:
    """What Flower's state has of these; `log` is what reached the database."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.messages: list[tuple[int, str]] = []

    def _cleanup_expired_task_tokens(self) -> None:
        self.log.append("clean")

    def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        self.log.append((run_id, bytes_sent, bytes_recv))

    def store_message_and_object_tree(self, message, tree, session) -> None:
        self.messages.append((message.metadata.dst_node_id, tree))

    def get_message_ins(self, node_id: int, limit: int) -> list[str]:
        self.log.append("look")
        found = [one for one in self.messages if one[0] == node_id][:limit]
        for one in found:
            self.messages.remove(one)
        return [text for _, text in found]


@pytest.fixture
def state(clock):
    kind = type("Lean", (State,), dict(State.__dict__))
    handlers = SimpleNamespace(check_abort=lambda run, statuses, state: state.log.append("status") or state.reason)
    lean.make_lean(kind, handlers)
    made = kind()
    made.reason, made.handlers = None, handlers
    return made


def order(node: int) -> SimpleNamespace:
    return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node))


def test_bytes_are_added_up_and_written_with_the_next(state, clock) -> None:
    for _ in range(10):
        state.store_traffic(1, bytes_sent=3, bytes_recv=1)
    clock.now += lean.SECONDS
    state.store_traffic(1, bytes_sent=0, bytes_recv=5)
    state.store_traffic(2, bytes_sent=1, bytes_recv=0)
    assert state.log == [(1, 3, 1), (1, 27, 14), (2, 1, 0)]


def test_a_message_is_there_at_once_and_an_idle_client_costs_nothing(state, clock) -> None:
    def get(node):
        return state.get_message_ins(node_id=node, limit=1)

    assert [get(1), get(1), get(2)] == [[], [], []]
    assert state.log == ["look", "look"]
    state.store_message_and_object_tree(order(1), "a", "")
    state.store_message_and_object_tree(order(1), "b", "")
    assert [get(1), get(1), get(1), get(1), get(2)] == [["a"], ["b"], [], [], []]
    assert state.log == ["look"] * 5
    state.messages.append((2, "stored by a process before this one"))
    clock.now += lean.LOOK_SECONDS
    assert get(2) == ["stored by a process before this one"]


def test_that_a_run_goes_on_is_kept_and_that_it_ended_is_not(state, clock) -> None:
    def check(run=1):
        return state.handlers.check_abort(run, ["finished"], state)

    assert [check(), check(), check(2)] == [None, None, None] and state.log == ["status"] * 2
    state.reason = "Run is finished."
    clock.now += lean.SECONDS
    assert [check(), check()] == ["Run is finished."] * 2 and state.log == ["status"] * 4


def test_tokens_are_cleaned_once_in_a_while(state, clock) -> None:
    for _ in range(5):
        state._cleanup_expired_task_tokens()
    clock.now += lean.SECONDS
    state._cleanup_expired_task_tokens()
    assert state.log == ["clean"] * 2


def test_flower_has_all_of_it_and_nothing_is_changed_if_something_is_missing() -> None:
    kind = type("Old", (State,), dict(State.__dict__))
    with pytest.raises(AttributeError):
        lean.make_lean(kind, SimpleNamespace())
    assert kind.store_traffic is State.store_traffic
    names = [name for name in vars(State) if not name.startswith("__")]
    assert all(callable(getattr(SqlLinkState, name)) for name in names) and callable(message_handler.check_abort)
