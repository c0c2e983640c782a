"""The process that runs methods on the server: a new one for every run, forked with torch and Flower already imported.

It asks the SuperLink for work and hands it to Flower's own `run_serverapp`, which loads the code that was submitted. It is not a
child of the SuperLink, so a run goes on when the SuperLink is started again. Where Flower's parts are not as expected,
`flower-superexec` takes its place, and starts a new Python for every run.
"""

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from queue import Queue
from typing import NoReturn

POLL_SECONDS = 0.3
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> None:
    parser = argparse.ArgumentParser(prog="coterie.runtime.executor")
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--root-certificates", required=True)
    options = parser.parse_args()
    try:
        if sys.platform != "linux":
            raise ImportError(f"processes cannot be forked safely on {sys.platform}")
        import coterie.server.app  # noqa: F401 - warms this process up
        from flwr.superlink.runtime import run_serverapp  # noqa: F401 - to see whether it is there
    except (ImportError, AttributeError) as error:
        print(f"warning: starting flower-superexec, which is slower, because {error}", file=sys.stderr, flush=True)
        os.execvp("flower-superexec", ["flower-superexec", *sys.argv[1:]])
    gc.collect()
    gc.freeze()
    serve(options.runtime_api_address, options.root_certificates)


def serve(address: str, authority: str) -> NoReturn:
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=Path(authority).read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    runs: set[int] = set()
    while True:
        runs = {pid for pid in runs if os.waitpid(pid, os.WNOHANG)[0] == 0}
        with contextlib.suppress(httpx.TransportError, httpx.HTTPStatusError):  # the SuperLink is just being started
            task = client.AcquireTask(request)
            if task.token:
                print(f"run {task.task.run_id} begins", flush=True)
                runs.add(_fork(address, authority, task.token))
        time.sleep(POLL_SECONDS)


def _fork(address: str, authority: str, token: str) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM)
        _run(address, authority, token, parent)
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _run(address: str, authority: str, token: str, parent: int) -> None:
    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.superlink.runtime import run_serverapp

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
