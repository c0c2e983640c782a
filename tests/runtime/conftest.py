"""Flower's own SuperLink without its network: state, message handlers and grid are the real ones, called in this process."""

from collections.abc import Callable, Iterator, Mapping

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.message_handler import message_handler
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.runtime import runtime_handlers

from coterie.runtime.flower import message_from_proto, message_to_proto, remove_content_from_message
from coterie.runtime.pull import PatientGrid

Objects = dict[str, bytes]


class Link:
    """A run with some nodes; `grid` is what its ServerApp has."""

    def __init__(self, nodes: int, database: str) -> None:
        store = ObjectStoreFactory(database)
        self.state = LinkStateFactory(database, NoOpFederationManager(), store).state()
        self.run_id = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        self.task = self.state.get_tasks()[0]
        assert self.state.claim_task(self.task.task_id) and self.state.activate_task(self.task.task_id)
        self.nodes = [self.state.create_node(NOOP_FLWR_AID, "", bytes([i]), 30, name=str(i)) for i in range(nodes)]
        for node in self.nodes:
            self.state.activate_node(node, 1e9)
        grid = HttpGrid(token="x")
        grid.set_run(Run.create_empty(self.run_id))
        grid._client = self  # type: ignore[assignment]
        self.grid = PatientGrid(grid)

    # What the grid calls.

    def GetNodes(self, request):
        return runtime_handlers.get_nodes(request, self.state, self.task)

    def PushMessages(self, request):
        return runtime_handlers.push_messages(request, self.state, self.task)

    def PullMessages(self, request):
        return runtime_handlers.pull_messages(request, self.state, self.task)

    def PushObject(self, request):
        return runtime_handlers.push_object(request, self.state, self.task)

    def PullObject(self, request):
        return runtime_handlers.pull_object(request, self.state, self.task)

    def ConfirmMessageReceived(self, request):
        return runtime_handlers.confirm_message_received(request, self.state, self.task)

    # What a client does.

    def receive(self, node: int) -> Message | None:
        request = PullMessagesRequest(node=Node(node_id=node))
        response = message_handler.pull_messages(request, self.state, self.state.object_store)
        if not response.messages_list:
            return None
        message = message_from_proto(response.messages_list[0])
        self.state.object_store.delete(message.metadata.message_id)  # it has it now
        return message

    def announce(self, bare: Message, tree: ObjectTree) -> tuple[list[str], str]:
        """Which objects it wants, and for which session."""
        request = PushMessagesRequest(messages_list=[message_to_proto(bare)], message_object_trees=[tree])
        response = message_handler.push_messages(request, self.state)
        return list(response.objects_to_push), response.session_id

    def upload(self, node: int, session: str, objects: Mapping[str, bytes]) -> None:
        for name, content in objects.items():
            message_handler.push_object(
                PushObjectRequest(
                    node=Node(node_id=node),
                    run_id=self.run_id,
                    object_id=name,
                    object_content=content,
                    session_id=session,
                ),
                self.state,
            )

    def answer(self, node: int, content: RecordDict) -> None:
        """As an honest client does."""
        asked = self.receive(node)
        assert asked is not None
        reply = Message(content, reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted, session = self.announce(remove_content_from_message(reply), get_object_tree(reply))
        objects = {name: one.deflate() for name, one in get_all_nested_objects(reply).items()}
        self.upload(node, session, {name: objects[name] for name in wanted})


@pytest.fixture(params=["memory"])
def link(request, tmp_path) -> Iterator[Callable[[int], Link]]:
    """A SuperLink's state in memory; those who ask for it try it on disk, too."""
    database = FLWR_IN_MEMORY_DB_NAME if request.param == "memory" else str(tmp_path / "state.db")

    def make(nodes: int) -> Link:
        place = Link(nodes, database)
        TaskIdentity.run_id = place.run_id
        return place

    yield make
    TaskIdentity.run_id = 1
