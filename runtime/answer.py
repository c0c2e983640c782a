"""Answering messages: the processes of a run and of its answers (see forks.py).

A bundle whose code is the installed code is answered by the installed code; any other is loaded as Flower does it. Both in the
process of the run, once for all its messages.
"""

import contextlib
import importlib
import io
import json
import os
import socket
import sys
import tomllib
import traceback
import zipfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from coterie.runtime.flower import (
    ContextProto,
    ErrorCode,
    TaskIdentity,
    context_from_proto,
    context_to_proto,
)
from coterie.runtime.forks import fork
from coterie.runtime.frames import frames_of, message_of
from coterie.wire.errors import CoterieError
from coterie.wire.fingerprint import fingerprint, fingerprint_of, source_files

FIRST_TO_GO = "800"  # when memory runs out, Linux ends the process that trains and not its parents


def serve_run(control: socket.socket) -> None:
    """The process of a run: told which, then forks an answer for every socket that it is handed, until nobody is there."""
    told = Connection(os.dup(control.fileno()))
    setup, bundle = json.loads(told.recv_bytes()), told.recv_bytes()
    app, problem = _load(bundle, setup)
    warm = bool(setup["warm"])
    while (handed := _receive(control)) is not None:
        pid = fork(lambda: _answer(Connection(handed.detach()), app, problem))
        handed.close()
        _, status = os.waitpid(pid, 0)
        told.send_bytes(str(os.waitstatus_to_exitcode(status)).encode())
        if warm and problem is None and status == 0:
            warm = False
            _keep_data(setup)


def _receive(control: socket.socket) -> socket.socket | None:
    data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    return socket.socket(fileno=descriptors[0]) if data else None


def _load(bundle: bytes, setup: dict[str, Any]) -> tuple[ClientApp | None, str | None]:
    """The app of this bundle, or why there is none."""
    try:
        if is_installed_code(bundle):
            return importlib.import_module("coterie.client.app").app, None
        if not setup["any-code"]:
            return None, "this client runs only the code that is installed on it, and the run brings other code"
        return _load_bundle(bundle, setup), None
    except Exception as error:
        traceback.print_exc()
        return None, f"the ClientApp cannot be loaded: {type(error).__name__}: {error}"


def is_installed_code(bundle: bytes) -> bool:
    """Is what the server sent the very code that is imported here?"""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    app = tomllib.loads(files["pyproject.toml"].decode())["tool"]["flwr"]["app"]
    return (
        app["components"].get("clientapp") == "coterie:client_app"
        and files.get("coterie/__init__.py") == source_files()["coterie/__init__.py"].read_bytes()
        and fingerprint_of(files) == fingerprint()
    )


def _load_bundle(bundle: bytes, setup: dict[str, Any]) -> ClientApp:
    """As Flower does it: unpack, put first on the path, import. Modules of ours must go."""
    from coterie.runtime.flower import get_load_client_app_fn, install_from_fab

    for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
        del sys.modules[name]
    install_from_fab(bundle, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    app: ClientApp = load(setup["fab-id"], setup["fab-version"], setup["fab-hash"])
    return app


def _keep_data(setup: dict[str, Any]) -> None:
    """Have the app load its data set here, so that every answer finds it in memory. Whatever goes wrong, an answer will say
    it; and the app may be none of ours."""
    with contextlib.suppress(Exception):
        context = context_from_proto(ContextProto.FromString(bytes.fromhex(setup["context"])))
        sys.modules["coterie.client.app"].keep_data(context)


def _answer(connection: Connection, app: ClientApp | None, problem: str | None) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    header, context_bytes = json.loads(connection.recv_bytes()), connection.recv_bytes()
    contents = {object_id: connection.recv_bytes() for object_id in header["objects"]}
    context = context_from_proto(ContextProto.FromString(context_bytes))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, context.run_id, context.node_id
    reply = _reply(message_of(header["message"], contents), context, app, problem)
    for frame in frames_of(reply):
        connection.send_bytes(frame)
    connection.send_bytes(context_to_proto(context).SerializeToString())
    connection.close()


def _reply(message: Message, context: Context, app: ClientApp | None, problem: str | None) -> Message:
    """Always a message: without one the server would wait for nothing until the round's timeout."""
    if app is None:
        return Message(Error(code=ErrorCode.LOAD_CLIENT_APP_EXCEPTION, reason=str(problem)), reply_to=message)
    try:
        reply = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
        return reply
    except Exception as error:
        if isinstance(error, CoterieError):  # it explains itself
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        reason = f"{type(error)}:<'{error}'>"
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
