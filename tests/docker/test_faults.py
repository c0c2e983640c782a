"""A federation of containers while things go wrong: clients die, hang, lie; the server is cut off and restarted.

Containers are counted from 1, clients from 0: the container client-2 is the client called 1.
"""

import time

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]  # the first one builds the image

TIMEOUT = 20  # seconds that a round waits in these tests
# Long enough to be hurt, and stopped at the end of a test.
LONG = (
    "--num-server-rounds",
    "1000",
    "--round-timeout",
    str(TIMEOUT),
    "--evaluate-every",
    "1000",
    "--local-epochs",
    "1",
)
ALL = {"0", "1", "2", "3"}


@pytest.fixture
def long_run(federation, request):
    federation.wait_until(lambda: all(federation.health("client", n) == "healthy" for n in range(1, 5)), "all healthy")
    run = federation.start_run(request.node.name.replace("_", "-")[:60], *LONG)
    run.wait_for(lambda event: set(event["train"]) == ALL, "a round of all clients")
    yield run
    run.stop()


def state_of(federation, name):
    files = f"cat /state/{name}/flower/node-id; ls /state/{name}/state/*.safetensors"  # not `previous`, of round 2 on
    user = f"--reuid={10000 + int(name)}"  # nobody else may look
    code, said = federation.inside("client", "setpriv", user, "--clear-groups", "sh", "-c", files)
    assert code == 0, said
    return said


def test_a_killed_client_is_missed_by_the_round_only_and_comes_back_with_its_name_and_state(federation, long_run):
    before = state_of(federation, "1")
    assert "1.safetensors" in before  # its own part of the model
    federation.docker("kill", federation.container("client", 2))
    lost = long_run.wait_for(lambda event: set(event["train"]) == ALL - {"1"}, "a round without the killed one")
    federation.docker("start", federation.container("client", 2))
    long_run.wait_for(lambda event: set(event["train"]) == ALL, "a round with the restarted one", after=lost)
    assert state_of(federation, "1") == before


def test_a_client_that_dies_in_its_container_is_restarted_by_the_engine(federation, long_run):
    before = long_run.events[-1]["round"]
    code = "import os, signal; os.kill(int(open('/proc/1/task/1/children').read().split()[0]), signal.SIGKILL)"
    federation.docker("exec", "--detach", federation.container("client", 4), "python", "-c", code)
    count = ("inspect", "--format", "{{.RestartCount}}", federation.container("client", 4))
    federation.wait_until(lambda: int(federation.docker(*count)) > 0, "a restart")
    restarted = max(before, long_run.events[-1]["round"])
    long_run.wait_for(lambda event: set(event["train"]) == ALL, "a round with the restarted one", after=restarted)


def test_a_client_that_hangs_is_left_out_after_the_timeout_and_taken_back(federation, long_run):
    federation.docker("pause", federation.container("client", 3))
    try:
        late = long_run.wait_for(lambda event: "2" in event["left-out"], "a round that gave up waiting")
    finally:
        federation.docker("unpause", federation.container("client", 3))
    event = long_run.events[late - 1]
    assert f"no answer within {TIMEOUT} seconds" in event["left-out"]["2"] and set(event["train"]) == ALL - {"2"}
    long_run.wait_for(lambda event: "2" in event["train"], "a round with the one that hung", after=late)


def test_a_server_that_is_cut_off_goes_on_when_the_network_is_back(federation, long_run):
    network, server = f"{federation.project}_fleet", federation.container("server")
    before = long_run.events[-1]["round"]
    federation.docker("network", "disconnect", network, server)
    time.sleep(5)
    federation.docker("network", "connect", "--alias", "server", network, server)
    long_run.wait_for(lambda event: set(event["train"]) == ALL, "a round of all after the cut", after=before + 1)


def test_a_run_outlives_a_restart_of_the_server(federation, long_run):
    before = long_run.events[-1]["round"]
    federation.docker("restart", "--time", "5", federation.container("server"))
    after = long_run.wait_for(lambda event: set(event["train"]) == ALL, "a round of all after it", after=before + 1)
    assert long_run.process.poll() is None  # whoever submitted it still follows it
    assert [event["round"] for event in long_run.events[:after]] == list(range(1, after + 1))


def test_who_has_a_wrong_key_or_no_tls_is_refused(federation):
    stranger = (
        "coterie keys /tmp/other --clients 1 > /tmp/log && timeout 15 coterie client --server server:9092 "
        "--key /tmp/other/clients/0 --root-certificates /keys/ca.crt --state /tmp/state; "
        "test -e /tmp/state/flower/connected || echo not healthy"
    )
    _, said = federation.inside("client", "sh", "-c", stranger)
    assert "the server refuses the key" in said and "connected to" not in said and "not healthy" in said, said
    plain = "FLWR_HOME=/tmp timeout 60 flower-supernode --insecure --superlink server:9092 --max-retries 1 --port 9999"
    code, said = federation.inside("client", "sh", "-c", plain)
    assert code != 0 and "SuperNode ID" not in said, said


def test_clients_reach_neither_the_control_port_nor_the_secrets_of_others(federation):
    code, said = federation.inside(
        "client", "python", "-c", "import socket; socket.create_connection(('server', 8000), 5)"
    )
    assert code == 1 and "ConnectionRefusedError" in said, said
    _, said = federation.inside("client", "find", "/keys", "-name", "*.key")
    assert said.strip().splitlines()[-1:] in ([], [""]) or "key" not in said.splitlines()[-1], said
    code, said = federation.inside("server", "sh", "-c", "ls /keys/clients | grep -v '\\.pub$'; ls /keys")
    assert "ca.key" not in said and not any(line.isdecimal() for line in said.splitlines()), said
    code, said = federation.inside("client", "touch", "/somewhere")
    assert code != 0 and "Read-only" in said, said


def test_every_client_is_a_user_of_its_own_who_alone_reads_its_key_and_state(federation):
    """What replicas share are volumes; and a container's root has no right to read what is another user's."""
    for user, number in ((10000, 0), (10001, 1)):
        look = ("exec", "-T", "--index", str(number + 1), "-u", str(user), "client")
        assert (
            federation.code(*look, "head", "-c", "1", f"/keys/clients/{number}", f"/state/{number}/flower/node-id")[0]
            == 0
        )
        for path in (f"/keys/clients/{1 - number}", f"/state/{1 - number}/flower/node-id"):
            code, said = federation.code(*look, "cat", path)
            assert code == 1 and "Permission denied" in said, said
        code, said = federation.code(
            *look, "sh", "-c", "stat -c %u /proc/[0-9]* | sort -u; grep CapEff /proc/self/status"
        )
        assert str(user) in said.split() and "0000000000000000" in said, said
    code, said = federation.code("exec", "-T", "client", "cat", "/keys/clients/0")
    assert code == 1 and "Permission denied" in said, said


def test_the_health_of_a_client_is_that_of_its_connection(federation):
    network, server = f"{federation.project}_fleet", federation.container("server")
    federation.wait_until(lambda: federation.health("client") == "healthy", "a healthy client")
    federation.docker("network", "disconnect", network, server)
    try:
        federation.wait_until(lambda: federation.health("client") == "unhealthy", "a client that knows it is cut off")
    finally:
        federation.docker("network", "connect", "--alias", "server", network, server)
    federation.wait_until(lambda: federation.health("client") == "healthy", "a client that is connected again")
