"""Who may ask the server for work, and what a client is told whose clock is wrong: with Flower's own programs and checks."""

import datetime
import subprocess
import time
from concurrent import futures
from pathlib import Path

import flwr.client.grpc_rere_client.node_auth_client_interceptor as signing
import grpc
import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor

from coterie.runtime.control import Control
from coterie.runtime.executor import ACQUIRE
from coterie.runtime.fleet import Fleet, KeyRefused, WrongClock
from coterie.runtime.flower import AcquireTaskRequest, RuntimeHttpClient, SuperExecAuthHttpInterceptor, TaskType
from coterie.runtime.forks import End, Ending
from coterie.runtime.keys import SECRET, make_keys
from coterie.runtime.processes import free_ports
from coterie.runtime.programs import environment, executor_command, superlink_command
from coterie.runtime.supervise import explained


@pytest.mark.parametrize(("minutes", "kind"), [(-10, WrongClock), (1, WrongClock), (0, KeyRefused)])
def test_a_wrong_clock_is_said_to_be_that(minutes, kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that is right, the same server says that the call is not known to it."""
    make_keys(tmp_path, ["0"])
    server = grpc.server(futures.ThreadPoolExecutor(1), interceptors=[NodeAuthServerInterceptor(None)])  # type: ignore[arg-type]
    add_FleetServicer_to_server(FleetServicer(), server)
    pair = ((tmp_path / "server.key").read_bytes(), (tmp_path / "server.crt").read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    shifted = datetime.timedelta(minutes=minutes)
    monkeypatch.setattr(signing, "now", lambda: datetime.datetime.now(datetime.UTC) + shifted)
    key = load_ssh_private_key((tmp_path / "clients" / "0").read_bytes(), password=None)
    fleet = Fleet(f"127.0.0.1:{port}", (tmp_path / "ca.crt").read_bytes(), key, print, tmp_path / "pulse")  # type: ignore[arg-type]
    with pytest.raises(KeyRefused) as caught:
        fleet.activate(0)
    assert type(caught.value) is kind
    fleet.channel.close()
    server.stop(None)


def test_what_the_owner_reads_of_it() -> None:
    said = explained(End(Ending.CLOCK, "Invalid timestamp"), None)  # type: ignore[arg-type]
    assert "the clock of this machine is wrong, or the server's: here it is 2" in said and "key" not in said


def test_only_who_has_the_secret_is_given_runs_and_who_has_no_key_is_told_so(tmp_path: Path) -> None:
    """Who has ca.crt alone could have asked for a run, and got its token, before the executor did."""
    make_keys(tmp_path, ["0"])
    control, fleet = free_ports(2)
    command = superlink_command(tmp_path, "127.0.0.1", control, f"127.0.0.1:{fleet}", None)
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment(tmp_path), cwd=tmp_path, stdout=log, stderr=log)
    try:
        address, authority = f"127.0.0.1:{control}", tmp_path / "ca.crt"
        Control(address, authority).wait_until_up(120, lambda: time.sleep(0))

        def ask(*secrets: bytes) -> str:
            signed = [SuperExecAuthHttpInterceptor(master_secret=s, protected_methods=[ACQUIRE]) for s in secrets]
            client = RuntimeHttpClient.from_server_address(
                server_address=address, insecure=False, root_certificates=authority.read_bytes(), interceptors=signed
            )
            return str(client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token)

        channel = grpc.secure_channel(f"127.0.0.1:{fleet}", grpc.ssl_channel_credentials(authority.read_bytes()))
        for method, code in (("ActivateNode", "FAILED_PRECONDITION"), ("PullMessages", "UNAUTHENTICATED")):
            with pytest.raises(grpc.RpcError, match="This key is not registered") as refused:
                channel.unary_unary(f"/flwr.proto.Fleet/{method}")(b"", timeout=60)
            assert refused.value.code().name == code  # type: ignore[attr-defined]
        channel.close()
        for stranger in ((), (b"guessed",)):
            with pytest.raises(httpx.HTTPStatusError, match="401"):
                ask(*stranger)
        assert ask((tmp_path / SECRET).read_bytes()) == ""  # there is no run
        assert str(tmp_path / SECRET) in executor_command(tmp_path, address)
        assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    finally:
        process.terminate()
        process.wait()
