"""Who may take part: those of the public keys in a directory, and no others. One server in a directory, not too large."""

import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from coterie.runtime.control import read_public_key
from coterie.runtime.keys import make_keys, revoke_keys
from coterie.runtime.metrics import resident_bytes
from coterie.runtime.processes import Processes
from coterie.runtime.server import Members, Server, serve
from coterie.wire.errors import ConfigError
from coterie.wire.files import alone_in


class Registry:
    """The SuperLink's list of clients."""

    def __init__(self) -> None:
        self.known: list[SimpleNamespace] = []

    def nodes(self) -> list[SimpleNamespace]:
        return list(self.known)

    def register(self, path: Path) -> None:
        node = SimpleNamespace(public_key=read_public_key(path), name=path.stem, status="registered")
        node.node_id = len(self.known)
        self.known.append(node)

    def unregister(self, node: int) -> None:
        self.known[node].status = "unregistered"

    def status(self) -> list[tuple[str, str]]:
        return [(node.name, node.status) for node in self.known]


def test_keys_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_keys(tmp_path, ["0", "1"])
    registry, members = Registry(), Members(tmp_path / "clients")
    for _ in range(2):
        members.update(registry)  # type: ignore[arg-type]
    assert registry.status() == [("0", "registered"), ("1", "registered")]
    assert capsys.readouterr().err.splitlines() == ["client 0: registered", "client 1: registered"]
    for status in ("online", "online", "offline"):
        registry.known[1].status = status
        members.update(registry)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == ["client 1: connected", "client 1: gone"]
    old = (tmp_path / "clients" / "1.pub").read_bytes()
    revoke_keys(tmp_path, ["1"])
    members.update(registry)  # type: ignore[arg-type]
    assert registry.status() == [("0", "registered"), ("1", "unregistered")]
    assert "refused from now on" in capsys.readouterr().err
    (tmp_path / "clients" / "1.pub").write_bytes(old)
    (tmp_path / "clients" / "letter.pub").write_text("Dear server")
    for _ in range(2):
        members.update(registry)  # type: ignore[arg-type]
    assert registry.status() == [("0", "registered"), ("1", "unregistered")]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "is not a public key" in said[0] and "was revoked once and stays so" in said[1]


def test_a_second_server_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["0"])
    home = tmp_path / "server"
    home.mkdir()
    with (
        alone_in(home, AssertionError()),
        pytest.raises(ConfigError, match=r"directory = .*another server works there"),
    ):
        serve(str(tmp_path / "keys"), str(home), "127.0.0.1", 1, "127.0.0.1", 2, True)


def test_a_superlink_that_has_too_much_memory_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_keys(tmp_path / "keys", ["0"])
    greedy = "import time; data = bytearray(200 * 2**20); print('full', flush=True); time.sleep(600)"
    with Processes(tmp_path) as processes:
        server = Server(processes, tmp_path / "keys", tmp_path, "127.0.0.1:1", "127.0.0.1", 2, executor=False)
        server.commands = {"superlink": [sys.executable, "-c", greedy]}
        server._start("superlink")
        first = processes.running["superlink"]
        while "full" not in processes.log_of("superlink").read_text():
            assert first.poll() is None
        assert resident_bytes(first.pid) > 200 * 2**20
        server._revive()
        assert first.poll() is None  # half of the machine's memory is more
        server.most_memory = 150 * 2**20
        server._revive()
        assert first.wait(10) == -9
        server._revive()
        assert processes.running["superlink"] is not first
    said = capsys.readouterr().err
    assert "MB of memory, and may have 150; ending it" in said and "starting it again" in said


def test_neither_a_superlink_that_stumbles_nor_a_log_that_is_gone_ends_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_keys(tmp_path / "keys", ["0"])

    class Stumbling(Registry):
        def nodes(self) -> list[SimpleNamespace]:
            request = httpx.Request("POST", "https://localhost")
            httpx.Response(500, request=request).raise_for_status()
            return []

    with Processes(tmp_path) as processes:
        server = Server(processes, tmp_path / "keys", tmp_path, "127.0.0.1:1", "127.0.0.1", 2, executor=False)
        server.control = Stumbling()  # type: ignore[assignment]
        server._look_for_members()
        assert "cannot tell or change who takes part" in capsys.readouterr().err
        server.control = Registry()  # type: ignore[assignment]
        server._look_for_members()
        server.commands = {"superlink": [sys.executable, "-c", "import time; time.sleep(600)"]}
        server._start("superlink")
        processes.log_of("superlink").unlink()
        server._revive()
        processes.running["superlink"].kill()
        processes.running["superlink"].wait(10)
        server._revive()
        assert processes.running["superlink"].poll() is None
    said = capsys.readouterr().err
    assert "client 0: registered" in said and "starting it again" in said
