"""The process that runs methods on the server: a new one for every run, forked with torch and Flower already imported.

It asks the SuperLink for work and hands it to Flower's own `run_serverapp`, which loads the code that was submitted. It is not a
child of the SuperLink, so a run goes on when the SuperLink is started again. Where Flower's parts are not as expected,
`flower-superexec` takes its place, and starts a new Python for every run. A run that was killed is continued (continuing.py).
"""

import argparse
import contextlib
import functools
import gc
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from queue import Queue
from typing import NoReturn

from coterie.runtime.forks import fork, living
from coterie.wire.unfinished import PLACE

POLL_SECONDS = 0.3
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"  # the call that is signed with the secret
LOOK_SECONDS = 2.0  # between two looks for runs that were killed


def main() -> None:
    parser = argparse.ArgumentParser(prog="coterie.runtime.executor")
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--root-certificates", required=True)
    parser.add_argument("--superexec-auth-secret-file", required=True)
    options = parser.parse_args()
    try:
        if sys.platform != "linux":
            raise ImportError(f"processes cannot be forked safely on {sys.platform}")
        import_module("coterie.server.app")  # warms this process up
        from coterie.runtime.flower import run_serverapp  # noqa: F401 - to see whether it is there
    except (ImportError, AttributeError) as error:
        print(f"warning: starting flower-superexec, which is slower, because {error}", file=sys.stderr, flush=True)
        os.execvp("flower-superexec", ["flower-superexec", *sys.argv[1:]])
    gc.collect()
    gc.freeze()
    secret = Path(options.superexec_auth_secret_file).read_bytes()
    serve(options.runtime_api_address, options.root_certificates, secret)


def serve(address: str, authority: str, secret: bytes) -> NoReturn:
    import httpx

    from coterie.runtime.continuing import Continuing
    from coterie.runtime.control import Control
    from coterie.runtime.flower import (
        AcquireTaskRequest,
        RuntimeHttpClient,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
        TaskType,
    )

    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=Path(authority).read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE]),
        ],
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    runs: set[int] = set()
    unfinished = Path.cwd() / "runs" / ".unfinished"
    os.environ[PLACE] = str(unfinished)
    continuing, looked = Continuing(unfinished, Control(address, Path(authority))), 0.0
    while True:
        runs = living(runs)
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            with contextlib.suppress(httpx.TransportError):
                continuing.look(runs)
        with contextlib.suppress(httpx.TransportError, httpx.HTTPStatusError):  # the SuperLink is just being started
            task = client.AcquireTask(request)
            if task.token:
                print(f"run {task.task.run_id} begins", flush=True)
                run = functools.partial(_run, address, authority, task.token, os.getpid())
                runs.add(fork(run, at_parents_end=signal.SIGTERM))
        time.sleep(POLL_SECONDS)


def _run(address: str, authority: str, token: str, parent: int) -> None:
    from coterie.runtime.flower import mirror_output_to_queue, run_serverapp

    for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
        del sys.modules[name]  # the code that was submitted is loaded, which may be another
    log_queue: Queue[str | None] = Queue()
    mirror_output_to_queue(log_queue)
    run_serverapp(
        runtime_api_address=address,
        log_queue=log_queue,
        token=token,
        insecure=False,
        certificates=Path(authority).read_bytes(),
        parent_pid=parent,
        runtime_dependency_install=False,
    )


if __name__ == "__main__":
    main()
