"""`coterie keys`: what it makes can be read, holds together, is kept secret, and is never overwritten."""

import ipaddress
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from coterie.cli.keys import keys_command
from coterie.runtime.keys import make_keys
from coterie.wire.errors import ConfigError


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def verify(directory: Path, authority: Path, name: x509.DNSName | x509.IPAddress) -> None:
    verifier = PolicyBuilder().store(Store([certificate(authority / "ca.crt")])).build_server_verifier(name)
    verifier.verify(certificate(directory / "server.crt"), [])


def test_the_server_is_trusted_under_its_names_by_its_own_authority(tmp_path: Path) -> None:
    make_keys(tmp_path / "a", ["0"], ["fl.example.org", "10.0.0.5"])
    make_keys(tmp_path / "b", ["0"])
    here = tmp_path / "a"
    for host in ("localhost", "fl.example.org"):
        verify(here, here, x509.DNSName(host))
    for address in ("127.0.0.1", "10.0.0.5"):
        verify(here, here, x509.IPAddress(ipaddress.ip_address(address)))
    with pytest.raises(VerificationError):
        verify(here, here, x509.DNSName("other.example.org"))
    with pytest.raises(VerificationError):
        verify(here, tmp_path / "b", x509.DNSName("localhost"))


def test_client_keys_are_pairs_on_the_curve_that_flower_wants(tmp_path: Path) -> None:
    make_keys(tmp_path, ["ward-7", "ward-8"])
    publics = set()
    for name in ("ward-7", "ward-8"):
        private = serialization.load_ssh_private_key((tmp_path / "clients" / name).read_bytes(), password=None)
        public = serialization.load_ssh_public_key((tmp_path / "clients" / f"{name}.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1)
        assert private.public_key() == public
        publics.add((tmp_path / "clients" / f"{name}.pub").read_bytes())
    assert len(publics) == 2


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["0"])
    for name in ("ca.key", "server.key", "clients/0"):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o600
    for name in ("", "clients"):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o700


def test_what_exists_is_kept_and_what_is_missing_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_keys(tmp_path, ["0", "1"])
    before = contents(tmp_path)
    keys_command(str(tmp_path), 3, "", "")
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before
    assert sorted(path.name for path in after.keys() - before.keys()) == ["2", "2.pub"]
    keys_command(str(tmp_path), 3, "", "")
    assert contents(tmp_path) == after
    assert "nothing to make" in capsys.readouterr().out


def test_a_lonely_public_key_is_not_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0"])
    (tmp_path / "clients" / "1.pub").write_text("of somebody")
    with pytest.raises(FileExistsError):
        make_keys(tmp_path, ["1"])
    assert (tmp_path / "clients" / "1.pub").read_text() == "of somebody"


@pytest.mark.parametrize(
    ("clients", "names", "server_names", "said"),
    [
        (None, "", "", "clients, names"),
        (2, "ward-7", "", "clients, names"),
        (None, "../ward", "", "names = '../ward'"),
        (None, "ward-7,", "", "names = ''"),
        (None, "ward-7", "https://fl.example.org", "server-names = 'https://fl.example.org'"),
        (None, "ward-7", "fl.example.org:9092", "server-names = 'fl.example.org:9092'"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_made(
    tmp_path: Path, clients: int | None, names: str, server_names: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        keys_command(str(tmp_path / "keys"), clients, names, server_names)
    assert not (tmp_path / "keys").exists()


def test_a_certificate_for_other_names_is_not_replaced_silently(tmp_path: Path) -> None:
    make_keys(tmp_path, ["0"])
    with pytest.raises(ConfigError, match=r"server-names = 'fl\.example\.org': not in"):
        make_keys(tmp_path, ["0"], ["fl.example.org"])


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie", "keys", str(tmp_path / "keys"), "--names", "ward-7"]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [Path(line.removeprefix("made ")).name for line in done.stdout.splitlines()] == [
        "ca.key",
        "ca.crt",
        "server.key",
        "server.crt",
        "executor.secret",
        "ward-7",
        "ward-7.pub",
    ]
