"""Flower's SuperLink, with limits on what a stranger and a hostile client can make it keep in memory.

Flower takes requests of up to 2 GB, and reads one whole before it looks at who sent it. Here the Fleet API refuses longer ones
than an object can be by gRPC's own limit, and does not read the request of anybody whose key is not registered. A tree of
objects that is too large or too deep is not kept. Where Flower's parts are not as expected, `flower-superlink` takes its place.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from coterie.runtime.lean import Kept
from coterie.runtime.metrics import TALLY_VARIABLE, Tally
from coterie.wire.errors import Refused

LARGEST_REQUEST = 6 * 2**20  # bytes; one object, of which the longest is a chunk of 5 MB
MOST_STREAMS = 16  # requests at once over one connection
MOST_REQUESTS = 256  # and over all
MOST_OBJECTS = 4096  # of one answer
PUBLIC_KEY = "flwr-public-key-bin"  # the header in which a client sends it
REASON = "This key is not registered: put its .pub into clients/ of the server's keys directory."
JOINING = ("/RegisterNode", "/ActivateNode")  # what a client says first
JOINS = ("RegisterNodeFleetRequest", "ActivateNodeRequest")  # the same as requests, which name no node
KEEPALIVE_MILLISECONDS = 210_000  # as Flower's; some networks cut what is silent for longer


def main() -> None:
    try:
        from coterie.runtime.flower import SqlLinkState, flower_superlink, message_handler
        from coterie.runtime.lean import make_lean
        from coterie.runtime.objects import check_tree

        used = flower_superlink.__globals__  # what it calls by these names
        place = os.environ.get(TALLY_VARIABLE)
        count = Tally(Path(place)).add if place else lambda: None
        ours = {"NodeAuthServerInterceptor": gate_of(used["NodeAuthServerInterceptor"], check_tree, count)}
        used |= {**ours, "generic_create_grpc_server": fleet_server}
        make_lean(SqlLinkState, message_handler)
    except (ImportError, AttributeError, KeyError) as error:
        print(f"warning: starting flower-superlink without limits on requests, because {error}", file=sys.stderr)
        os.execvp("flower-superlink", ["flower-superlink", *sys.argv[1:]])
    flower_superlink()


def fleet_server(
    servicer_and_add_fn: tuple[Any, Any], server_address: str, certificates: Any, interceptors: Any, **_: Any
) -> grpc.Server:
    """In place of Flower's, with its arguments: a server that refuses long requests as soon as it reads how long they are."""
    options = [
        ("grpc.max_receive_message_length", LARGEST_REQUEST),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.max_metadata_size", 16 * 2**10),
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 0),
    ]
    pool = ThreadPoolExecutor(max_workers=MOST_REQUESTS)
    server = grpc.server(pool, maximum_concurrent_rpcs=MOST_REQUESTS, options=options, interceptors=interceptors)
    servicer, add = servicer_and_add_fn
    add(servicer, server)
    authority, certificate, key = certificates
    credentials = grpc.ssl_server_credentials(((key, certificate),), root_certificates=authority)
    port = server.add_secure_port(server_address, credentials)
    server.bound_address = f"{server_address.rpartition(':')[0]}:{port}"
    return server


def gate_of(base: type, check_tree: Any, refused: Callable[[], None] = lambda: None) -> type:
    """Flower's check of keys (`base`), made before a request is read where that is possible; `refused` is told of each."""

    nodes = Kept()

    class Gate(base):  # type: ignore[misc]
        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            key = dict(handler_call_details.invocation_metadata).get(PUBLIC_KEY)
            if not isinstance(key, bytes) or self._node_of(key) is None:
                refused()
                return _unread(handler_call_details.method)
            handler = super().intercept_service(continuation, handler_call_details)
            if handler_call_details.method.endswith("/PushMessages"):
                return _checked(handler, check_tree)
            return handler

        def _node_of(self, key: bytes) -> int | None:
            node: int | None = nodes.get(key, lambda: self.state_factory.state().get_node_id_by_public_key(key))
            return node

        def _wrap_method_handler(self, method_handler: grpc.RpcMethodHandler, received_public_key: bytes) -> Any:
            """In place of Flower's: who calls as a node must have its key."""

            def called(request: Any, context: grpc.ServicerContext) -> Any:
                if type(request).__name__ not in JOINS:
                    claimed = request.node.node_id if hasattr(request, "node") else request.node_id
                    if claimed != self._node_of(received_public_key):
                        context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")
                return method_handler.unary_unary(request, context)

            return grpc.unary_unary_rpc_method_handler(
                called, method_handler.request_deserializer, method_handler.response_serializer
            )

    return Gate


def _unread(method: str) -> grpc.RpcMethodHandler:
    """Answers a request without reading it, which only a handler of streams can. Flower's SuperNode ends without a word, and
    with code 0, where it reads UNAUTHENTICATED; of what else it gets when it joins it tells the reason."""
    joins = method.endswith(JOINING)
    code = grpc.StatusCode.FAILED_PRECONDITION if joins else grpc.StatusCode.UNAUTHENTICATED

    def refuse(requests: Any, context: grpc.ServicerContext) -> Any:
        context.abort(code, REASON)

    return grpc.stream_unary_rpc_method_handler(refuse)


def _checked(handler: grpc.RpcMethodHandler, check_tree: Any) -> grpc.RpcMethodHandler:
    def push(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            for tree in request.message_object_trees:
                check_tree(tree, MOST_OBJECTS)
        except Refused as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(push, handler.request_deserializer, handler.response_serializer)


if __name__ == "__main__":
    main()
