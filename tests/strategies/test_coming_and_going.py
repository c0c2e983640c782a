"""Clients come and go at any moment: of a training, a test, a further exchange, a hello, a judgement after the last round."""

import copy
import random

import pytest
from flwr.app import Error, Message

from coterie.runtime import simulation
from coterie.runtime.simulation import Workers
from coterie.server.app import run
from coterie.server.checkpoints import read_events
from coterie.simulate import prepare
from coterie.strategies import federation, hellos, post
from coterie.strategies.registry import BUILT_IN, method_of
from coterie.trial import Played, TamperedGrid, Trial
from coterie.wire.errors import RunFailed
from coterie.wire.messages import HELLO

STEADY = {"0", "1", "2"}  # a quorum of six
EVERYBODY = {"0", "1", "2", "3", "4", "5"}
TICK = 0.2  # seconds that a look for answers takes
SMALL = {
    **{"task": "digits", "num-clients": 6, "partition": "iid", "num-server-rounds": 6, "local-epochs": 1},
    **{"model": "linear", "round-timeout": 2.0, "join-timeout": 3.0, "round-retries": 3, "baseline": "local"},
    **{"spo.hidden": 8, "spo.server-steps": 2, "spo.rays": 3, "spo.search-steps": 2, "spo.local-steps": 2},
    **{"spo.fine-tune-epochs": 1, "pfedhn.hidden": 8, "pfedhn.server-steps": 2, "pfedme.inner-steps": 2},
    **{"ocf.trial-rounds": 2},
}
BY_DEFAULT = ["fedavg", "coterie", "pfedsv", "pfedocf", "spo", "ce", "pfedsim", "afedsv-plus"]


class Clock:
    """Nobody waits: time passes with every look for answers."""

    now = 1e9

    def time(self) -> float:
        return self.now

    monotonic = perf_counter = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Restless(TamperedGrid):
    """From the first order on, at every call: a client leaves, comes back with its node or with a new one while the old one
    still counts as online, is lost with its answer, answers late, or with an error; its hello arrives in a later exchange."""

    def __init__(self, config, path, pool, seed: str, clock: Clock, steady=STEADY) -> None:
        super().__init__(config, path, None, (), pool)
        self.rng, self.clock, self.steady = random.Random(seed), clock, steady
        self.dead: dict[int, float] = {}  # nodes that answer no more -> until when they count as online
        self.absent: dict[str, object] = {}  # clients without a node -> their context
        self.box: list[tuple[float, int, str, Message]] = []  # when, in which exchange, an answer is there; to what
        self.begun, self.next_node, self.happened, self.exchanges = False, 100, 0, 0

    def happen(self) -> None:
        self.dead = {node: until for node, until in self.dead.items() if until > self.clock.now}
        here = {node: self.name_of(node) for node in self.contexts if self.name_of(node) not in self.steady}
        if not self.begun or self.rng.random() < 0.6:
            return
        self.happened += 1
        if self.absent and (not here or self.rng.random() < 0.6):
            name = self.rng.choice(sorted(self.absent))
            context = self.absent.pop(name)
            if self.rng.random() < 0.5 or context.node_id in self.contexts:
                context = copy.copy(context)
                context.node_id, self.next_node = self.next_node, self.next_node + 1
            self.dead.pop(context.node_id, None)
            self.contexts[context.node_id] = context
        elif here:
            node = self.rng.choice(sorted(here))
            self.absent[here[node]] = self.contexts.pop(node)
            self.dead[node] = self.clock.now + self.rng.choice((0.0, 0.0, 1.0, 4.0))
            if self.rng.random() < 0.5:  # its answers were not uploaded
                self.box = [entry for entry in self.box if entry[3].metadata.src_node_id != node]

    def get_node_ids(self):
        self.happen()
        return [*self.contexts, *self.dead]

    def push_messages(self, messages):
        messages = list(messages)
        orders = any(message.metadata.message_type != HELLO for message in messages)
        self.begun, self.exchanges = self.begun or orders, self.exchanges + orders
        identifiers = []
        for number, message in enumerate(messages):
            self.happen()
            node = message.metadata.dst_node_id
            if node not in self.contexts:
                identifiers.append("" if node not in self.dead or self.rng.random() < 0.5 else f"lost-{node}-{number}")
                continue
            identifiers += super().push_messages([message])
            ((identifier, answer),) = self.workers.done
            self.workers.done.clear()
            steady, late = self.name_of(node) in self.steady or not self.begun, self.clock.now
            greeted = message.metadata.message_type == HELLO
            if not steady and not greeted and self.rng.random() < 0.2:
                answer = Message(Error(code=3, reason="it fell over"), reply_to=message)
                answer.metadata.__dict__["_reply_to_message_id"] = identifier
            if not steady:
                late += 0.0 if greeted else self.rng.choice((0.0, 0.0, 0.5, 1.5, 4.0))
            exchange = self.exchanges + (self.rng.choice((0, 1, 2, 3)) if greeted and not steady else 0)
            self.box.append((late, exchange, identifier, answer))
        return identifiers

    def pull_messages(self, message_ids):
        self.clock.now += TICK
        self.happen()
        asked = set(message_ids)
        now = (self.clock.now, self.exchanges)
        there = [entry for entry in self.box if entry[0] <= now[0] and entry[1] <= now[1] and entry[2] in asked]
        self.box = [entry for entry in self.box if entry not in there]
        self.rng.shuffle(there)
        return [answer for *_, answer in there]


@pytest.fixture
def disturbed(tmp_path, monkeypatch):
    """Run a method among clients that come and go: its result, and the grid."""
    clock = Clock()
    for module in (federation, hellos, post, simulation):
        monkeypatch.setattr(module, "time", clock)

    def go(strategy: str, seed: int, steady=STEADY):
        given = {**SMALL, "strategy": strategy}
        if method_of(strategy).needs_server_data:
            given["server-data"] = "60"
        if strategy in ("pfedsim", "coterie"):
            given["fraction-train"] = 0.75
        path = tmp_path / f"{strategy}-{seed}"
        path.mkdir()
        config = prepare(given)
        grid = Restless(config, path, Workers(0), f"{strategy} {seed}", clock, steady)
        return run(grid, config, path), grid

    return go


def must_go_on(strategy: str, seed: int, disturbed) -> None:
    """A quorum is always there, so the run ends well, and those who were always there were always tested."""
    result, grid = disturbed(strategy, seed)
    assert grid.happened > 5
    assert result["rounds"] == 6 and result["models"]
    for kind in result["models"].values():
        assert set(kind["clients"]) >= STEADY
    assert set(result["judged"]) >= STEADY
    assert set(result["clients"]) >= set(result["models"]["personal"]["clients"])


@pytest.mark.parametrize("strategy", BY_DEFAULT)
def test_while_a_quorum_stays_nothing_that_others_do_ends_a_run(strategy, disturbed):
    must_go_on(strategy, 1, disturbed)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BUILT_IN)
def test_every_method_goes_on_while_a_quorum_stays(strategy, disturbed):
    for seed in range(2, 7):
        must_go_on(strategy, seed, disturbed)


@pytest.mark.parametrize("strategy", BY_DEFAULT)
def test_where_nobody_stays_a_run_ends_well_or_says_why(strategy, disturbed):
    for seed in (1, 2):
        try:
            result, _ = disturbed(strategy, seed, steady=set())
        except RunFailed as error:
            assert str(error)
        else:
            assert result["models"]


# --- all at once, the last test, a run that goes on ------------------------------------------------------------------


class Cut(TamperedGrid):
    """A network that is cut for some seconds: no node is online, and no answer arrives."""

    def __init__(self, config, path, when, seconds, clock) -> None:
        super().__init__(config, path, self.leave, (), Workers(0))
        self.when, self.seconds, self.clock, self.until = when, seconds, clock, 0.0

    def leave(self, asked, answer, name):
        if self.when == (asked.metadata.message_type, asked.metadata.group_id):
            self.when, self.until = None, self.clock.now + self.seconds
        return answer if self.clock.now >= self.until else None

    def get_node_ids(self):
        return super().get_node_ids() if self.clock.now >= self.until else []

    def pull_messages(self, message_ids):
        self.clock.now += TICK
        return super().pull_messages(message_ids)


@pytest.fixture
def cut(tmp_path, monkeypatch):
    clock = Clock()
    for module in (federation, hellos, post, simulation):
        monkeypatch.setattr(module, "time", clock)

    def go(when, seconds, **values):
        path = tmp_path / "run"
        path.mkdir(exist_ok=True)
        given = {**SMALL, "strategy": "fedavg", "round-retries": 2, "baseline": "none"}
        config = prepare(given | {key.replace("_", "-"): value for key, value in values.items()})
        begun = clock.now
        result = run(Cut(config, path, when, seconds, clock), config, path)
        return result, read_events(path), clock.now - begun

    return go


@pytest.mark.parametrize("strategy", ["fedavg", "spo", "coterie"])
@pytest.mark.parametrize("when", [("train", "2"), ("evaluate", "1")])
def test_all_clients_that_are_gone_at_once_are_waited_for(strategy, when, cut):
    """The round is repeated when they are back: join-timeout is longer than that."""
    when = ("train.rays", "2") if strategy == "spo" and when[0] == "train" else when
    when = ("evaluate.head", "1") if strategy == "coterie" and when[0] == "evaluate" else when
    result, events, seconds = cut(when, 20.0, join_timeout=30.0, strategy=strategy)
    assert [set(event["train"]) for event in events] == [EVERYBODY] * 6
    assert set(result["models"]["personal"]["clients"]) == EVERYBODY
    assert 20 < seconds < 35


def test_who_is_gone_for_good_is_waited_for_in_every_try_and_no_longer(cut):
    with pytest.raises(RunFailed, match=r"round 2: 0 of 0 clients .* 3 tries\. Nobody who could train is connected"):
        cut(("train", "2"), 1e6, join_timeout=30.0)


def test_a_last_round_in_which_nobody_could_be_tested_is_tested_again(cut):
    result, events, _ = cut(("evaluate", "6"), 20.0, join_timeout=30.0)
    assert set(result["models"]["global"]["clients"]) == EVERYBODY and len(events) == 6


def test_a_run_whose_last_test_failed_is_resumed(cut):
    """The round does not count: without a test of it a run that was resumed would end without a result, too."""
    with pytest.raises(RunFailed, match="round 6: no client could be tested"):
        cut(("evaluate", "6"), 1e6, join_timeout=30.0)
    result, events, _ = cut(None, 0.0, join_timeout=30.0)
    assert set(result["models"]["global"]["clients"]) == EVERYBODY and len(events) == 6


def test_a_run_goes_on_with_fewer_clients_than_it_began_with(tmp_path):
    """pFedSV with three places for three others: one of them did not come back after the kill."""
    trial = Trial(
        "pfedsv", {"pfedsv.top-k": 3, "num-server-rounds": 2, "join-timeout": 0.3, "model": "linear"}, tmp_path
    )
    begun = trial.play(after=Played.keep)
    went_on = trial.play(start=begun.snapshots[0], away=["3"])
    assert set(went_on.events[-1]["train"]) == {"0", "1", "2"} and went_on.method.top_k == 3
