"""Who takes part: strangers, namesakes, clients that come late or come back."""

from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from coterie.strategies.federation import Federation, name_order
from coterie.strategies.observer import Waiting
from coterie.wire.errors import RunFailed
from coterie.wire.messages import HELLO, ORDER, Hello, Sent, TrainOrder


def hello(name: str, code: str = "abc", partitions: int = 0, num_train: int = 10) -> Hello:
    return Hello(name, code, partitions, num_train, 1, 2)


class Nodes(Grid):
    """Nodes that say what they are told to say: a Hello, an Error, a RecordDict, or nothing (None)."""

    poll_seconds = 0.0
    source = 0  # the node that all replies claim to come from; 0: each from its own

    def __init__(self, **nodes) -> None:
        self.nodes = {int(node[1:]): says for node, says in nodes.items()}
        self.asked: list[int] = []
        self.sent: list[Message] = []
        self.box: dict[str, Message] = {}

    def set_run(self, run):
        pass

    @property
    def run(self):
        return None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        identifiers = []
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            self.asked.append(node)
            self.sent.append(message)
            identifier = message.metadata.__dict__["_message_id"] = f"{len(self.asked)}-{number}"
            says = self.nodes.get(node)
            if isinstance(says, Hello):
                says = RecordDict({ORDER: says.to_record()})
            if says is not None:
                self.box[identifier] = Message(says, reply_to=message)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids):
        replies = [self.box.pop(i) for i in list(message_ids) if i in self.box]
        for reply in replies:
            reply.metadata.__dict__["_src_node_id"] = self.source or reply.metadata.src_node_id
        return replies


ORDERED = Sent(TrainOrder(1, upload=()))


def node_of(names: Federation, grid: Nodes, client: str) -> int:
    """Which node is asked when this client is meant."""
    names.exchange({client: ORDERED}, 1, 0.0)
    return grid.asked[-1]


def federation(grid: Nodes, join_timeout: float = 0.3, quorum: float = 0.5) -> Federation:
    return Federation(grid, code="abc", join_timeout=join_timeout, quorum=quorum)


def test_clients_in_a_stable_order():
    names = federation(
        grid := Nodes(n7=hello("10", partitions=3), n3=hello("b", partitions=3), n5=hello("2", partitions=3))
    )
    names.gather(0)
    assert names.clients == ["2", "10", "b"] and sorted(grid.asked) == [3, 5, 7]
    assert sorted(["b", "10", "9", "a", "0"], key=name_order) == ["0", "9", "10", "a", "b"]


def test_all_partitions_are_waited_for():
    grid = Nodes(n1=hello("0", partitions=2))
    with pytest.raises(RunFailed, match=r"1 of 2 clients joined \(join-timeout = 0.3 seconds\)\. Start the others"):
        federation(grid).gather(0)


def test_a_client_that_comes_a_little_later():
    class Late(Nodes):
        def get_node_ids(self):
            if len(self.asked) == 1:
                self.nodes[2] = hello("b")
            return super().get_node_ids()

    names = federation(Late(n1=hello("a")), join_timeout=5)
    names.gather(2)
    assert names.clients == ["a", "b"]


def test_a_run_that_goes_on_does_so_with_a_quorum():
    """Whoever did not survive what ended it would end it for good otherwise."""
    grid = Nodes(n1=hello("a"), n2=hello("b"))
    with pytest.raises(RunFailed, match="2 of 3 clients joined"):
        federation(grid).gather(3)
    names = federation(grid)
    names.gather(3, begun=True)
    assert names.clients == ["a", "b"]
    with pytest.raises(RunFailed, match="2 of 5 clients joined"):
        federation(grid).gather(5, begun=True)


def test_who_left_is_sent_nothing_and_does_not_answer():
    names = federation(grid := Nodes(n1=hello("a"), n2=hello("b")))
    names.gather(2)
    del grid.nodes[2]
    names.welcome()
    grid.nodes[1] = RecordDict()
    replies, sizes = names.exchange({"a": ORDERED, "b": ORDERED}, 1, 0.0)
    assert list(replies) == list(sizes) == ["a"] and grid.asked[-1] == 1


def test_nobody_comes():
    with pytest.raises(RunFailed, match="0 of any clients joined"):
        federation(Nodes()).gather(0)
    with pytest.raises(RunFailed, match="0 of 3 clients joined"):
        federation(Nodes(n1=None)).gather(3)


def test_own_data_need_a_number():
    with pytest.raises(
        RunFailed, match="num-clients = 0: these clients bring data of their own; say how many to wait for"
    ):
        federation(Nodes(n1=hello("a"))).gather(0)


def test_another_number_than_there_are_partitions():
    nodes = {f"n{i}": hello(str(i), partitions=10) for i in range(1, 5)}
    with pytest.raises(RunFailed, match=r"num-clients = 4: but the clients hold partitions of \[10\]"):
        federation(Nodes(**nodes)).gather(4)


STRANGERS = {
    "n9": Error(code=2, reason="ConfigError: give this client a name"),
    "n8": RecordDict(),
    "n7": RecordDict({ORDER: ConfigRecord({"name": "x"})}),
    "n6": hello("a"),  # a namesake
    "n5": hello("other-code", code="zzz"),
}


@pytest.mark.parametrize("node", STRANGERS)
def test_a_stranger_is_left_out_and_the_others_begin(node):
    names = federation(Nodes(n1=hello("a"), n2=hello("b"), **{node: STRANGERS[node]}))
    names.gather(2)
    assert names.clients == ["a", "b"] and list(names.refused) == [int(node[1:])]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("n9", "give this client a name"),
        ("n8", "is this node running Coterie"),
        ("n5", "'other-code' runs other code"),
        ("n6", "called 'a' is connected already"),
    ],
)
def test_why_too_few_joined(node, reason):
    with pytest.raises(RunFailed, match=rf"1 of 2 clients joined.*Refused: .*{reason}"):
        federation(Nodes(n1=hello("a"), **{node: STRANGERS[node]}), quorum=0.75).gather(2)


BAD_NAMES = ["../../x", "..", ".", "a/b", "<b>a</b>", "a&b", "a\x00", "a\n", " a", "a ", "", "x" * 65, "-rf", '"', "a."]


def called(name: str) -> RecordDict:
    """A hello with a name that `Hello` itself would not take."""
    return RecordDict({ORDER: ConfigRecord({**hello("a").to_record(), "name": name})})


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_and_a_quorum_of_the_others_begins(name, caplog):
    names = federation(Nodes(n1=hello("a"), n2=hello("b"), n3=called(name)))
    names.gather(3)
    assert names.clients == ["a", "b"] and set(names.hellos) == {"a", "b"}
    ((who, why),) = names.refused_by_name().items()
    assert who == "node 3" and "a client's name has 1 to 64 letters" in why
    assert why in caplog.text


@pytest.mark.parametrize("name", ["a", "7", "ward-7", "Ward 7", "Zürich_2", "a@b.org", "病院"])
def test_names_that_are_good(name):
    names = federation(Nodes(n1=hello(name)))
    names.gather(1)
    assert names.clients == [name]


class Registered(Nodes):
    def get_nodes(self):
        return [SimpleNamespace(node_id=node, name={1: "a", 2: "b", 3: "c"}[node]) for node in self.nodes]


def test_who_takes_the_name_of_another_is_refused_by_the_name_of_its_key():
    """Even if it answers first, or the other is not there."""
    names = federation(Registered(n1=hello("a"), n2=hello("b"), n3=hello("a")))
    names.gather(3)
    assert names.clients == ["a", "b"] and node_of(names, names.grid, "a") == 1
    assert list(names.refused_by_name()) == ["c"] and "registered as 'c'" in names.refused_by_name()["c"]


@pytest.mark.parametrize("num_clients", [0, 3])
@pytest.mark.parametrize("lie", [1, 2, 4, 10**9])
def test_who_says_another_number_of_partitions_is_refused(num_clients, lie):
    says = {"n1": hello("0", partitions=lie), **{f"n{i}": hello(f"{i}", partitions=3) for i in (2, 3)}}
    names = federation(grid := Nodes(**says))
    names.gather(num_clients)
    assert names.clients == ["2", "3"] and set(names.hellos) == {"2", "3"}
    assert f"a partition of {lie}, and there are 3" in names.refused_by_name()["node 1"]
    grid.nodes[9] = hello("9", partitions=lie)  # and later, too
    names.welcome()
    assert names.clients == ["2", "3"] and set(names.refused) == {1, 9}


def test_a_hello_that_never_comes_is_waited_for_once():
    grid = Nodes(n1=hello("a"), n2=hello("b"), n3=None)
    names = federation(grid)
    names.gather(3)
    assert names.clients == ["a", "b"] and grid.asked == [1, 2, 3]
    names.join_timeout = 3600.0
    for _ in range(5):
        names.welcome()
    assert grid.asked == [1, 2, 3]  # and no further question so soon


def test_a_late_hello_comes_with_the_answers_of_a_round():
    grid = Nodes(n1=hello("a"), n2=hello("b"), n3=None)
    names = federation(grid)
    names.gather(3)
    (sent,) = (message for message in grid.sent if message.metadata.dst_node_id == 3)
    grid.box[sent.metadata.message_id] = Message(RecordDict({ORDER: hello("c").to_record()}), reply_to=sent)
    assert node_of(names, grid, "a") == 1
    assert names.clients == ["a", "b", "c"]


def test_a_silent_node_is_asked_after_longer_and_longer_pauses(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("coterie.strategies.hellos.time.monotonic", lambda: clock[0])
    grid = Nodes(n1=hello("a"), n2=None)
    names = federation(grid, join_timeout=-1.0)
    names.gather(2)
    asked = []
    for clock[0] in range(2000):
        before = len(grid.asked)
        names.welcome()
        asked += [clock[0]] * (len(grid.asked) - before)
    assert asked == [30, 90, 210, 450, 930, 1530]
    hellos = [sent for sent in grid.sent if sent.metadata.dst_node_id == 2]
    assert len(hellos) == 7
    for sent in hellos:  # stopped until now, it answers them all at once
        grid.box[sent.metadata.message_id] = Message(RecordDict({ORDER: hello("b").to_record()}), reply_to=sent)
    names.welcome()
    assert names.clients == ["a", "b"] and not names.refused


# --- pauses ----------------------------------------------------------------------------------------------------------


def test_who_misses_is_asked_ever_less_and_the_others_as_always():
    grid = Nodes(n1=hello("a"), n2=hello("b"), n3=hello("c"))
    names = federation(grid)
    names.gather(3)
    grid.nodes = {1: RecordDict(), 2: None, 3: RecordDict()}
    asked = []
    for names.pauses.round in range(1, 60):
        clients = names.clients
        replies, _ = names.exchange(dict.fromkeys(clients, ORDERED), names.pauses.round, 0.0)
        assert list(replies) == ["a", "c"] and names.connected == ["a", "b", "c"]
        assert names.clients == ["a", "c"]  # in the rest of this round nobody waits for it again
        asked += [names.pauses.round] * ("b" in clients)
    assert asked == [1, 2, 4, 8, 16, 32, 48]
    grid.nodes[2] = RecordDict()
    for names.pauses.round in (64, 65):
        assert names.clients == ["a", "b", "c"]
        names.exchange(dict.fromkeys(names.clients, ORDERED), names.pauses.round, 0.0)


def test_where_too_few_would_be_left_all_are_asked():
    grid = Nodes(n1=hello("a"), n2=hello("b"), n3=hello("c"))
    names = federation(grid, quorum=0.6)
    names.gather(3)
    grid.nodes = {1: RecordDict(), 2: None, 3: None}
    names.exchange(dict.fromkeys(names.clients, ORDERED), 1, 0.0)
    assert names.clients == ["a", "b", "c"]


def test_a_late_answer_is_fetched_and_counts_for_nothing():
    grid = Nodes(n1=hello("a"), n2=hello("b"))
    names = federation(grid)
    names.gather(2)
    grid.nodes = {1: RecordDict(), 2: None}
    names.exchange(dict.fromkeys(("a", "b"), ORDERED), 1, 0.0)
    late = grid.sent[-1]
    grid.box[late.metadata.message_id] = Message(RecordDict({"x": ConfigRecord({"late": 1})}), reply_to=late)
    replies, _ = names.exchange({"a": ORDERED}, 2, 0.0)
    assert list(replies) == ["a"] and not grid.box


def test_other_code_on_all_nodes_is_told_at_once():
    """The wrong-code trap of a simulation: not a matter of waiting."""
    nodes = {f"n{i}": hello(str(i), code="zzz", partitions=3) for i in range(1, 4)}
    with pytest.raises(RunFailed, match="runs other code"):
        federation(Nodes(**nodes), join_timeout=600).gather(0)


def test_a_stranger_in_the_middle_of_a_run_does_not_end_it():
    grid = Nodes(n1=hello("a"), n2=hello("b"))
    names = federation(grid)
    names.gather(2)
    grid.nodes[5] = hello("c", code="zzz")
    names.welcome()
    assert names.clients == ["a", "b"]


def test_a_restarted_client_comes_back_with_a_new_node():
    grid = Nodes(n1=hello("a"), n2=hello("b"))
    names = federation(grid)
    names.gather(2)
    del grid.nodes[2]
    names.welcome()
    assert names.clients == ["a"]
    grid.nodes[3] = hello("b")
    names.welcome()
    assert names.clients == ["a", "b"] and node_of(names, grid, "b") == 3


def test_a_restarted_client_whose_old_node_still_counts_as_online():
    """Its name is taken until the old node's heartbeat lapses; then it must be let in."""
    grid = Nodes(n1=hello("a"), n2=hello("b"))
    names = federation(grid)
    names.gather(2)
    grid.nodes[3] = hello("b")
    names.welcome()
    assert node_of(names, grid, "b") == 2
    del grid.nodes[2]
    names.welcome()
    assert names.clients == ["a", "b"] and node_of(names, grid, "b") == 3


def test_known_nodes_are_asked_once():
    grid = Nodes(n1=hello("a"), n2=hello("b"), n9=STRANGERS["n9"])
    names = federation(grid)
    names.gather(2)
    names.welcome()
    names.welcome()
    assert sorted(grid.asked) == [1, 2, 9]


def test_replies_are_known_by_the_message_they_answer():
    """Errors made by the SuperLink carry no node: here every reply claims to come from node 1."""
    grid = Nodes(n1=hello("a"), n2=hello("b"), n3=hello("c"))
    names = federation(grid)
    names.gather(3)
    grid.source = 1
    grid.nodes = {1: RecordDict({"x": ConfigRecord({"i": 1})}), 2: None, 3: Error(code=5, reason="Node Unavailable")}
    seen = []
    sent = dict.fromkeys(("a", "b", "c"), ORDERED)
    named, sizes = names.exchange(sent, 1, 0.2, lambda done, total: seen.append((done, total)))
    assert list(named) == ["a", "c"] and named["c"].has_error() and not named["a"].has_error()
    assert sizes == {"a": 0, "b": 0, "c": 0}
    assert seen == [(1, 3), (2, 3)]


def test_a_message_that_could_not_be_sent():
    class Broken(Nodes):
        def push_messages(self, messages):
            return [
                None if m.metadata.dst_node_id == 2 and m.metadata.message_type != HELLO else i
                for i, m in zip(super().push_messages(messages), messages, strict=True)
            ]

    names = federation(Broken(n1=hello("a"), n2=hello("b")))
    names.gather(2)
    replies, _ = names.exchange(dict.fromkeys(("a", "b"), ORDERED), 1, 0.2)
    assert list(replies) == ["a"]


def test_who_is_waited_for_is_told_by_name(monkeypatch):
    monkeypatch.setattr("coterie.strategies.federation.TELL_SECONDS", 0.0)
    told: list[Waiting] = []
    federation = Federation(nodes := Nodes(n2=hello("ward-7"), n3=hello("ward-8")), code="abc", join_timeout=0.05)
    federation.on_wait = told.append
    federation.gather(2)
    assert not told
    nodes.nodes[2] = None  # silent from now on
    nodes.nodes[3] = RecordDict()
    replies, _ = federation.exchange({"ward-7": ORDERED, "ward-8": ORDERED}, 1, 0.05)
    assert list(replies) == ["ward-8"]
    assert {(wait.clients, wait.others, wait.what) for wait in told} == {(("ward-7",), 0, "train")}
    assert all(wait.until == pytest.approx(wait.since + 0.05) for wait in told)
    told.clear()
    with pytest.raises(RunFailed):
        federation.gather(4)
    assert {(wait.others, wait.what) for wait in told} == {(2, "join")}
