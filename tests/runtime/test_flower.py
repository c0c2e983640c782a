"""Names of Flower that are not public stand in one file, and the list of them is known."""

import ast
from importlib import import_module

import numpy as np
import pytest
from flwr.app import Array

from coterie.runtime import flower
from coterie.wire.arrays import NUMPY
from coterie.wire.fingerprint import source_files

PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
EXPECTED = [
    "flwr.app.message.remove_content_from_message",
    "flwr.cli.build.build_fab_from_files",
    "flwr.cli.install.install_from_fab",
    "flwr.client.grpc_rere_client.node_auth_client_interceptor.NodeAuthClientInterceptor",
    "flwr.clientapp.utils.get_load_client_app_fn",
    "flwr.common.config.get_fused_config_from_fab",
    "flwr.common.constant.ErrorCode",
    "flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL",
    "flwr.common.serde.context_from_proto",
    "flwr.common.serde.context_to_proto",
    "flwr.common.serde.fab_from_proto",
    "flwr.common.serde.fab_to_proto",
    "flwr.common.serde.message_from_proto",
    "flwr.common.serde.message_to_proto",
    "flwr.common.serde.run_from_proto",
    "flwr.common.serde.user_config_from_proto",
    "flwr.common.serde.user_config_to_proto",
    "flwr.proto.control_pb2.ListNodesRequest",
    "flwr.proto.control_pb2.ListRunsRequest",
    "flwr.proto.control_pb2.RegisterNodeRequest",
    "flwr.proto.control_pb2.StartRunRequest",
    "flwr.proto.control_pb2.StopRunRequest",
    "flwr.proto.control_pb2.StreamLogsRequest",
    "flwr.proto.control_pb2.UnregisterNodeRequest",
    "flwr.proto.fab_pb2.GetFabRequest",
    "flwr.proto.fleet_pb2.ActivateNodeRequest",
    "flwr.proto.fleet_pb2.DeactivateNodeRequest",
    "flwr.proto.fleet_pb2.PullMessagesRequest",
    "flwr.proto.fleet_pb2.PushMessagesRequest",
    "flwr.proto.fleet_pb2_grpc.FleetStub",
    "flwr.proto.heartbeat_pb2.SendNodeHeartbeatRequest",
    "flwr.proto.message_pb2.ConfirmMessageReceivedRequest",
    "flwr.proto.message_pb2.Context",
    "flwr.proto.message_pb2.Message",
    "flwr.proto.message_pb2.ObjectTree",
    "flwr.proto.message_pb2.PullObjectRequest",
    "flwr.proto.message_pb2.PushObjectRequest",
    "flwr.proto.node_pb2.Node",
    "flwr.proto.run_pb2.GetRunRequest",
    "flwr.proto.runtime_pb2.AcquireTaskRequest",
    "flwr.proto.runtime_pb2.PullAppMessagesRequest",
    "flwr.proto.runtime_pb2.SendTaskHeartbeatRequest",
    "flwr.server.superlink.fleet.message_handler.message_handler",
    "flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState",
    "flwr.supercore.constant.TaskType",
    "flwr.supercore.control.ControlHttpClient",
    "flwr.supercore.fab.Fab",
    "flwr.supercore.grpc.create_channel",
    "flwr.supercore.inflatable.inflatable_object.get_all_nested_objects",
    "flwr.supercore.inflatable.inflatable_object.get_object_head_values_from_object_content",
    "flwr.supercore.inflatable.inflatable_object.get_object_tree",
    "flwr.supercore.inflatable.inflatable_object.iterate_object_tree",
    "flwr.supercore.inflatable.inflatable_object.no_object_id_recompute",
    "flwr.supercore.inflatable.inflatable_utils.ObjectPushError",
    "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents",
    "flwr.supercore.interceptors.RuntimeVersionClientInterceptor",
    "flwr.supercore.interceptors.RuntimeVersionHttpInterceptor",
    "flwr.supercore.interceptors.SuperExecAuthHttpInterceptor",
    "flwr.supercore.logger.mirror_output_to_queue",
    "flwr.supercore.primitives.asymmetric.public_key_to_bytes",
    "flwr.supercore.run.Run",
    "flwr.supercore.run.RunNotRunningException",
    "flwr.supercore.runtime.RuntimeHttpClient",
    "flwr.supercore.task_identity.TaskIdentity",
    "flwr.superlink.cli.flower_superlink",
    "flwr.superlink.runtime.run_serverapp",
]


def not_public(source: str) -> set[str]:
    """Names of Flower that are imported anywhere in `source`, or named as text, and that Flower does not offer to everybody."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("flwr.") and alias.name not in PUBLIC}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "flwr":
            offered = import_module(str(node.module)).__all__ if node.module in PUBLIC else ()
            found |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name not in offered}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("flwr."):
            found |= {node.value} - set(PUBLIC)
    return found


def test_only_one_file_has_them() -> None:
    found = {name: not_public(path.read_text()) for name, path in source_files().items()}
    assert sorted(found.pop("runtime/flower.py")) == EXPECTED
    assert not {name: names for name, names in found.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "from flwr.common import log",
        "import flwr.common.logger as logger",
        "def f():\n    from flwr.proto.node_pb2 import Node",
        "import_module('flwr.cli.build')",
        "from flwr.app import message",
        "from flwr.app.message import Message",
        "from flwr import supercore",
    ],
)
def test_the_check_itself_sees_every_way(source: str) -> None:
    assert not_public(source)
    assert not not_public("import flwr.app\nfrom flwr.app import Message\nfrom flwr.serverapp.strategy import Strategy")


@pytest.mark.parametrize("name", flower.NAMES)
def test_each_of_them_is_there(name: str) -> None:
    assert getattr(flower, name) is not None


def test_others_are_not() -> None:
    with pytest.raises(ImportError):
        from coterie.runtime.flower import NoSuchName  # noqa: F401


def test_the_format_of_arrays_is_called_as_flower_calls_it() -> None:
    assert Array(np.zeros(1)).stype == NUMPY
