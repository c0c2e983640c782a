"""What `coterie client` finds out before it connects: its key, its data, and whether that is the right server."""

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from coterie.cli.entry import main
from coterie.cli.server import command as server_command
from coterie.runtime import keys as keys_module
from coterie.runtime.device import check_key, find_key, make_device
from coterie.runtime.keys import make_keys, revoke_keys
from coterie.runtime.server import check_keys
from coterie.runtime.tls import Unreachable, check_server, split_address
from coterie.wire.errors import ConfigError

SERVER = "127.0.0.1:9092"


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[Callable[[Path], int]]:
    """Servers that do no more than shake hands, with the certificate of a keys directory; their ports."""
    sockets = []

    def start(directory: Path) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "server.crt", directory / "server.key")
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def serve() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    plain.close()

        threading.Thread(target=serve, daemon=True).start()
        return int(listening.getsockname()[1])

    yield start
    for listening in sockets:
        listening.close()


def test_the_right_server_is_accepted(tmp_path: Path, tls_server: Callable[[Path], int]) -> None:
    make_keys(tmp_path, ["0"])
    port = tls_server(tmp_path)
    check_server(f"127.0.0.1:{port}", tmp_path / "ca.crt")
    check_server(f"localhost:{port}", tmp_path / "ca.crt")


def test_another_authority_is_refused(tmp_path: Path, tls_server: Callable[[Path], int]) -> None:
    make_keys(tmp_path / "a", ["0"])
    make_keys(tmp_path / "b", ["0"])
    with pytest.raises(ConfigError, match="was not signed by"):
        check_server(f"127.0.0.1:{tls_server(tmp_path / 'a')}", tmp_path / "b" / "ca.crt")


def test_a_certificate_for_another_host_is_refused_and_its_names_are_told(
    tmp_path: Path, tls_server: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOPBACK", ("fl.example.org",))
    make_keys(tmp_path, ["0"])
    port = tls_server(tmp_path)
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(ConfigError, match=rf"is for fl\.example\.org, not for {host}.*--server-names {host}"):
            check_server(f"{host}:{port}", tmp_path / "ca.crt")


@pytest.mark.parametrize(("days", "said"), [(-1, "expired on"), (1, "not valid yet")])
def test_a_certificate_out_of_time_is_refused(
    tmp_path: Path, tls_server: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch, days: int, said: str
) -> None:
    make_keys(tmp_path, ["0"])
    for name in ("server.crt", "server.key"):
        (tmp_path / name).unlink()
    builder = keys_module._builder

    def shifted(*arguments: Any) -> x509.CertificateBuilder:
        made, now = builder(*arguments), datetime.datetime.now()
        start, end = sorted((days, 9 * days))
        made._not_valid_before, made._not_valid_after = (now + datetime.timedelta(days=n) for n in (start, end))
        return made

    monkeypatch.setattr(keys_module, "_builder", shifted)
    make_keys(tmp_path, ["0"])
    with pytest.raises(ConfigError, match=said):
        check_server(f"127.0.0.1:{tls_server(tmp_path)}", tmp_path / "ca.crt")
    if days < 0:
        with pytest.raises(ConfigError, match="expired on"):
            check_keys(tmp_path)


def test_plain_text_and_nobody(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0"])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            plain, _ = listening.accept()
            plain.recv(100)
            plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            plain.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match="does not speak TLS"):
            check_server(f"127.0.0.1:{port}", tmp_path / "ca.crt")
        thread.join()
    with pytest.raises(Unreachable, match="cannot be reached"):
        check_server(f"127.0.0.1:{port}", tmp_path / "ca.crt")
    with pytest.raises(ConfigError, match="root-certificates"):
        check_server(f"127.0.0.1:{port}", tmp_path / "ca.key")


@pytest.mark.parametrize("text", ["fl.example.org", ":9092", "host:0", "host:70000", "host:port", ""])
def test_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="server = "):
        split_address(text)
    assert split_address("[::1]:9092") == ("::1", 9092)
    assert split_address("fl.example.org:9092") == ("fl.example.org", 9092)


def test_of_a_directory_every_client_takes_a_key_of_its_own(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0", "1"])
    first, lock = find_key(str(tmp_path / "clients"))
    second, other = find_key(str(tmp_path / "clients"))
    assert (first.name, second.name) == ("0", "1")
    with pytest.raises(ConfigError, match="used by another client"):
        find_key(str(tmp_path / "clients"))
    with pytest.raises(ConfigError, match="used by another client"):
        find_key(str(first))
    lock.close()
    again, lock = find_key(str(tmp_path / "clients"))
    assert again == first
    lock.close()
    other.close()


def test_wrong_keys(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0"])
    with pytest.raises(ConfigError, match=r"key = .*public key"):
        find_key(str(tmp_path / "clients" / "0.pub"))
    with pytest.raises(ConfigError, match=r"key = .*cannot be read"):
        find_key(str(tmp_path / "clients" / "9"))


def test_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_keys(tmp_path / "keys", ["3"])
    key = tmp_path / "keys" / "clients" / "3"
    told = make_device(key, server=SERVER)
    assert (told.name, told.authority, told.state) == ("3", tmp_path / "keys" / "ca.crt", tmp_path / "clients" / "3")
    assert told.node_config["partition-id"] == 3 and "num-partitions" not in told.node_config
    assert told.node_config["data-root"] == str(tmp_path / "data") and told.any_code
    told = make_device(key, server=SERVER, name="ward-7", data="keys", threads=2, installed_code_only=True)
    assert told.node_config["data"] == str(tmp_path / "keys") and "partition-id" not in told.node_config
    assert told.node_config["threads"] == 2 and not told.any_code
    with pytest.raises(ConfigError, match=r"name = '\.\./x'"):
        make_device(key, server=SERVER, name="../x")
    lonely = tmp_path / "lonely" / "deep" / "key"
    lonely.parent.mkdir(parents=True)
    lonely.touch()
    with pytest.raises(ConfigError, match=r"root-certificates: there is no ca\.crt"):
        make_device(lonely, server=SERVER, partition=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": "/nothing/there"}, "data = '/nothing/there'"),
        ({}, "say which data client 'ward-7' has"),
        ({"partition": 4, "num_partitions": 4}, "partition = 4: must be from 0 to 3"),
    ],
)
def test_wrong_data(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        make_device(tmp_path / "key", server=SERVER, name="ward-7", state=str(tmp_path / "state"), **options)
    assert not (tmp_path / "state").exists()


def test_revoked_keys_are_put_aside_and_the_name_is_free_again(tmp_path: Path) -> None:
    make_keys(tmp_path, ["ward-7", "ward-8"])
    old = (tmp_path / "clients" / "ward-7.pub").read_bytes()
    revoke_keys(tmp_path, ["ward-7"])
    assert sorted(path.name for path in (tmp_path / "clients").iterdir()) == ["ward-8", "ward-8.pub"]
    make_keys(tmp_path, ["ward-7"])
    assert (tmp_path / "clients" / "ward-7.pub").read_bytes() != old
    revoke_keys(tmp_path, ["ward-7", "ward-8"])
    assert len(list((tmp_path / "revoked").iterdir())) == 6
    for name in ("ward-7", "../ca", "ward-9"):
        with pytest.raises(ConfigError, match="revoke = "):
            revoke_keys(tmp_path, [name])


@pytest.mark.parametrize("command", ["client", "server"])
def test_a_mistake_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "client": ["client", "--server", "nowhere", "--key", str(tmp_path / "no")],
        "server": ["server", "--keys", str(tmp_path / "no"), "--directory", str(tmp_path / "server")],
    }[command]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: key" if command == "client" else "error: keys = ")
    assert list(tmp_path.iterdir()) == []


def test_a_clients_installation_says_what_it_cannot_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coterie.cli.entry.find_spec", lambda name: None if name == "networkx" else True)
    with pytest.raises(SystemExit) as ended:
        main(["compare"])
    assert ended.value.code == 2
    assert "networkx" in (said := capsys.readouterr().err) and "coterie[all]" in said
    for command in ("client", "predict"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0


def test_runs_are_submitted_from_this_machine_unless_one_says_otherwise() -> None:
    defaults = {option.name: option.default for option in server_command().params}
    assert defaults["control_host"] == "127.0.0.1"


def test_harm_is_chosen_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_keys(tmp_path / "keys", ["0"])
    key = tmp_path / "keys" / "clients" / "0"
    assert "attack" not in make_device(key, server=SERVER).node_config
    assert make_device(key, server=SERVER, attack="sign-flip").node_config["attack"] == "sign-flip"
    with pytest.raises(ConfigError, match=r"attack = 'sign-flop'.*sign-flip"):
        make_device(key, server=SERVER, attack="sign-flop")


def test_a_file_that_is_no_key_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0"])
    check_key(tmp_path / "clients" / "0")
    (tmp_path / "letter").write_text("Dear server")
    for wrong in (tmp_path / "letter", tmp_path / "server.key", tmp_path / "clients" / "0.pub"):
        with pytest.raises(ConfigError, match="not a client's key"):
            check_key(wrong)
