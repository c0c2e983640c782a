"""What `coterie keys` makes: a certificate authority, the server's certificate, and a key pair for each client.

    ca.crt               what clients check the server by; give it to all of them
    ca.key               signs server certificates; keep it off line
    server.crt .key      the server's certificate, for the names and addresses under which clients reach it
    executor.secret      what the executor shows the server to be given runs; it stays with the two
    clients/<name>       a client's private key; it stays on that client
    clients/<name>.pub   its public key; a running `coterie server` registers it
    revoked/<name>...    keys that were revoked; a running server refuses them

Private keys are readable by their owner only. What exists already is kept as it is.
"""

import datetime
import ipaddress
import itertools
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.wire.errors import ConfigError

CURVE = ec.SECP256R1()
CA_DAYS, SERVER_DAYS = 3650, 825
SECRET = "executor.secret"
LOOPBACK = ("localhost", "127.0.0.1")  # always named: the server is controlled from its own machine
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
HOST = re.compile(r"(?=.{1,253}$)(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9][A-Za-z0-9-]{0,62})*")


def revoke_keys(directory: Path, names: Sequence[str]) -> None:
    """Put them aside; a key that was revoked is never let in again, and its name is free for a new one."""
    for name in names:
        if not NAME.fullmatch(name) or not (directory / "clients" / f"{name}.pub").exists():
            raise ConfigError(f"revoke = {name!r}: there is no {directory / 'clients' / name}.pub")
    aside = directory / "revoked"
    aside.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        number = next(n for n in itertools.count(1) if not (aside / f"{name}-{n}.pub").exists())
        for end in (".pub", ""):
            path = directory / "clients" / f"{name}{end}"
            if path.exists():
                path.rename(aside / f"{name}-{number}{end}")


def make_keys(directory: Path, clients: Sequence[str], server_names: Sequence[str] = ()) -> list[Path]:
    """Make what is missing in `directory`; the files that were made."""
    for name in clients:
        if not NAME.fullmatch(name) or name.endswith(".pub"):
            raise ConfigError(
                f"names = {name!r}: use up to 64 letters, digits, '-', '_' and '.', starting with a letter or digit"
            )
    wanted = [_general_name(name) for name in dict.fromkeys([*LOOPBACK, *server_names])]
    server = directory / "server.crt"
    if server.exists() and (missing := _not_in(server, wanted)):
        raise ConfigError(
            f"server-names = {missing!r}: not in {server}; move server.crt and server.key away to have new ones made"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / "clients").mkdir(mode=0o700, exist_ok=True)
    made: list[Path] = []
    if not (directory / "ca.crt").exists():
        made += _make_authority(directory)
    if not server.exists():
        made += _make_server(directory, wanted)
    if not (directory / SECRET).exists():
        made.append(_write_new(directory / SECRET, secrets.token_bytes(32), 0o600))
    for name in clients:
        if not (directory / "clients" / name).exists():
            made += _make_client(directory / "clients", name)
    return made


def _make_authority(directory: Path) -> list[Path]:
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie federation")])
    usage = x509.KeyUsage(
        False, False, False, False, False, True, True, False, False
    )  # signs certificates, nothing else
    certificate = (
        _builder(key.public_key(), name, name, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    return _write_pair(directory / "ca", key, certificate)


def _make_server(directory: Path, names: Sequence[x509.GeneralName]) -> list[Path]:
    if not (directory / "ca.key").exists():
        raise ConfigError(
            f"server-names: {directory / 'ca.key'} must sign the certificate; bring it back, or use a new directory"
        )
    authority = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie server")])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)  # digital signature
    certificate = (
        _builder(key.public_key(), subject, authority.subject, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return _write_pair(directory / "server", key, certificate)


def _make_client(directory: Path, name: str) -> list[Path]:
    """In the format of OpenSSH, which is what Flower reads."""
    key = ec.generate_private_key(CURVE)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return [
        _write_new(directory / name, private, 0o600),
        _write_new(directory / f"{name}.pub", public + f" {name}\n".encode(), 0o644),
    ]


def _builder(
    key: ec.EllipticCurvePublicKey, subject: x509.Name, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ, above all on boards without a battery
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _write_pair(stem: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> list[Path]:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return [
        _write_new(stem.with_suffix(".key"), private, 0o600),
        _write_new(stem.with_suffix(".crt"), certificate.public_bytes(serialization.Encoding.PEM), 0o644),
    ]


def _write_new(path: Path, data: bytes, mode: int) -> Path:
    """Never over an existing file, and never readable by others for a moment."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    return path


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not HOST.fullmatch(name):
        raise ConfigError(
            f"server-names = {name!r}: give host names or addresses without a port, for example fl.example.org,10.0.0.5"
        )
    return x509.DNSName(name)


def _not_in(certificate: Path, wanted: Sequence[x509.GeneralName]) -> str:
    """Those of `wanted` that the certificate does not name."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    there = set(loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    return ",".join(str(name.value) for name in wanted if name not in there)
