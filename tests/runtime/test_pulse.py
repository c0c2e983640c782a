"""The sign by which a watcher, such as a container's health check, sees that a client is connected."""

from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from coterie.runtime.fleet import Fleet
from coterie.runtime.flower import Node
from coterie.runtime.keys import make_keys


def test_the_sign_is_there_only_after_the_server_let_the_client_in(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0"])
    key = load_ssh_private_key((tmp_path / "clients" / "0").read_bytes(), password=None)
    pulse = tmp_path / "connected"
    fleet = Fleet("127.0.0.1:1", (tmp_path / "ca.crt").read_bytes(), key, print, pulse)  # type: ignore[arg-type]
    fleet.heard()
    assert not pulse.exists()
    fleet.node = Node(node_id=7)
    fleet.heard()
    assert pulse.exists()
    pulse.unlink()
    fleet.heard()  # too soon after the last one
    assert not pulse.exists()
    fleet.last_pulse -= 60
    fleet.heard()
    assert pulse.exists()
    fleet.channel.close()
