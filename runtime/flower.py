"""Every name of Flower that Coterie uses and that is not public, and where it is. Nothing else in Coterie has one.

Public are `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. The rest changes with any minor version, so each name is looked up
when it is first imported from here: an idle client loads no more than it needs, a simulation works whatever became of the
network's side, and who finds that something is missing (ImportError, AttributeError) can do without.
"""

from importlib import import_module
from typing import Any

NAMES = {
    # Messages as bytes.
    "ContextProto": "flwr.proto.message_pb2.Context",
    "ErrorCode": "flwr.common.constant.ErrorCode",
    "MessageProto": "flwr.proto.message_pb2.Message",
    "ObjectTree": "flwr.proto.message_pb2.ObjectTree",
    "context_from_proto": "flwr.common.serde.context_from_proto",
    "context_to_proto": "flwr.common.serde.context_to_proto",
    "get_all_nested_objects": "flwr.supercore.inflatable.inflatable_object.get_all_nested_objects",
    "get_object_head_values_from_object_content": (
        "flwr.supercore.inflatable.inflatable_object.get_object_head_values_from_object_content"
    ),
    "get_object_tree": "flwr.supercore.inflatable.inflatable_object.get_object_tree",
    "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents",
    "iterate_object_tree": "flwr.supercore.inflatable.inflatable_object.iterate_object_tree",
    "message_from_proto": "flwr.common.serde.message_from_proto",
    "message_to_proto": "flwr.common.serde.message_to_proto",
    "no_object_id_recompute": "flwr.supercore.inflatable.inflatable_object.no_object_id_recompute",
    "remove_content_from_message": "flwr.app.message.remove_content_from_message",
    # Runs, their code, and whose process this is.
    "Fab": "flwr.supercore.fab.Fab",
    "Run": "flwr.supercore.run.Run",
    "TaskIdentity": "flwr.supercore.task_identity.TaskIdentity",
    "build_fab_from_files": "flwr.cli.build.build_fab_from_files",
    "fab_from_proto": "flwr.common.serde.fab_from_proto",
    "fab_to_proto": "flwr.common.serde.fab_to_proto",
    "get_fused_config_from_fab": "flwr.common.config.get_fused_config_from_fab",
    "get_load_client_app_fn": "flwr.clientapp.utils.get_load_client_app_fn",
    "install_from_fab": "flwr.cli.install.install_from_fab",
    "run_from_proto": "flwr.common.serde.run_from_proto",
    "user_config_to_proto": "flwr.common.serde.user_config_to_proto",
    # The Fleet API: what a client says to the SuperLink.
    "ActivateNodeRequest": "flwr.proto.fleet_pb2.ActivateNodeRequest",
    "ConfirmMessageReceivedRequest": "flwr.proto.message_pb2.ConfirmMessageReceivedRequest",
    "DeactivateNodeRequest": "flwr.proto.fleet_pb2.DeactivateNodeRequest",
    "FleetStub": "flwr.proto.fleet_pb2_grpc.FleetStub",
    "GetFabRequest": "flwr.proto.fab_pb2.GetFabRequest",
    "GetRunRequest": "flwr.proto.run_pb2.GetRunRequest",
    "HEARTBEAT_DEFAULT_INTERVAL": "flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL",
    "Node": "flwr.proto.node_pb2.Node",
    "NodeAuthClientInterceptor": (
        "flwr.client.grpc_rere_client.node_auth_client_interceptor.NodeAuthClientInterceptor"
    ),
    "PullMessagesRequest": "flwr.proto.fleet_pb2.PullMessagesRequest",
    "PullObjectRequest": "flwr.proto.message_pb2.PullObjectRequest",
    "PushMessagesRequest": "flwr.proto.fleet_pb2.PushMessagesRequest",
    "PushObjectRequest": "flwr.proto.message_pb2.PushObjectRequest",
    "RuntimeVersionClientInterceptor": "flwr.supercore.interceptors.RuntimeVersionClientInterceptor",
    "SendNodeHeartbeatRequest": "flwr.proto.heartbeat_pb2.SendNodeHeartbeatRequest",
    "create_channel": "flwr.supercore.grpc.create_channel",
    "public_key_to_bytes": "flwr.supercore.primitives.asymmetric.public_key_to_bytes",
    # The Control API: what `flwr` says to the SuperLink.
    "ControlHttpClient": "flwr.supercore.control.ControlHttpClient",
    "ListNodesRequest": "flwr.proto.control_pb2.ListNodesRequest",
    "ListRunsRequest": "flwr.proto.control_pb2.ListRunsRequest",
    "RegisterNodeRequest": "flwr.proto.control_pb2.RegisterNodeRequest",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors.RuntimeVersionHttpInterceptor",
    "StartRunRequest": "flwr.proto.control_pb2.StartRunRequest",
    "StopRunRequest": "flwr.proto.control_pb2.StopRunRequest",
    "StreamLogsRequest": "flwr.proto.control_pb2.StreamLogsRequest",
    "UnregisterNodeRequest": "flwr.proto.control_pb2.UnregisterNodeRequest",
    "user_config_from_proto": "flwr.common.serde.user_config_from_proto",
    # The Runtime API: what an executor and a ServerApp say to the SuperLink.
    "AcquireTaskRequest": "flwr.proto.runtime_pb2.AcquireTaskRequest",
    "ObjectPushError": "flwr.supercore.inflatable.inflatable_utils.ObjectPushError",
    "RunNotRunningException": "flwr.supercore.run.RunNotRunningException",
    "SendTaskHeartbeatRequest": "flwr.proto.runtime_pb2.SendTaskHeartbeatRequest",
    "PullAppMessagesRequest": "flwr.proto.runtime_pb2.PullAppMessagesRequest",
    "RuntimeHttpClient": "flwr.supercore.runtime.RuntimeHttpClient",
    "SuperExecAuthHttpInterceptor": "flwr.supercore.interceptors.SuperExecAuthHttpInterceptor",
    "TaskType": "flwr.supercore.constant.TaskType",
    "mirror_output_to_queue": "flwr.supercore.logger.mirror_output_to_queue",
    "run_serverapp": "flwr.superlink.runtime.run_serverapp",
    # The SuperLink itself, which is started with limits.
    "SqlLinkState": "flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState",
    "flower_superlink": "flwr.superlink.cli.flower_superlink",
    "message_handler": "flwr.server.superlink.fleet.message_handler.message_handler",
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = NAMES[name].rpartition(".")
    globals()[name] = found = getattr(import_module(module), attribute)
    return found


def runtime_client(grid: Any) -> Any:
    """What a ServerApp's grid speaks to the SuperLink with; None where there is no SuperLink."""
    return getattr(grid, "_runtime_client", None)
