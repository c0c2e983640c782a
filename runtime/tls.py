"""Is that the server it should be? Asked before anything else, because gRPC says no more than `handshake failed`."""

import socket
import ssl
from pathlib import Path

from cryptography import x509

from coterie.wire.errors import ConfigError

TIMEOUT_SECONDS = 10.0
EXPIRED, NOT_YET_VALID, WRONG_NAME, WRONG_ADDRESS = 10, 9, 62, 64  # OpenSSL's verification codes
UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)


class Unreachable(Exception):
    """Nobody answers there, yet."""


def split_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"server = {text!r}: write HOST:PORT, for example fl.example.org:9092")
    return host.strip("[]"), int(port)


def check_server(server: str, authority: Path) -> None:
    """Make a TLS connection to `server`. Raises ConfigError, with the remedy, if its certificate is not right."""
    host, port = split_address(server)
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"root-certificates = {str(authority)!r}: cannot be read ({error}); give the federation's ca.crt"
        ) from None
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((host, port), TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(_explain(error, server, host, port, authority)) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"server = {server!r}: does not speak TLS there ({error.reason}); is that the port of the server, "
            "and was it started by `coterie server`?"
        ) from None
    except OSError as error:
        raise Unreachable(f"{server} cannot be reached ({error.strerror or error})") from None


def _explain(error: ssl.SSLCertVerificationError, server: str, host: str, port: int, authority: Path) -> str:
    code = error.verify_code
    start = f"server = {server!r}: its certificate"
    if code == EXPIRED:
        end = _certificate(host, port).not_valid_after_utc
        return (
            f"{start} expired on {end:%Y-%m-%d}; if the clock of this machine is right, make a new one on the server: move "
            "server.crt and server.key away, run `coterie keys` again, restart `coterie server`"
        )
    if code == NOT_YET_VALID:
        return f"{start} is not valid yet; the clock of this machine is wrong, or that of the machine that made it was"
    if code in (WRONG_NAME, WRONG_ADDRESS):
        return (
            f"{start} is for {', '.join(_names(_certificate(host, port)))}, not for {host}; use one of these names, or make "
            f"a certificate with `coterie keys ... --server-names {host}`"
        )
    if code in UNKNOWN_AUTHORITY:
        return (
            f"{start} was not signed by {authority}: this is another server, or another federation's ca.crt; get ca.crt from "
            "the server's keys directory"
        )
    return f"{start} is not accepted: {error.verify_message}"


def _certificate(host: str, port: int) -> x509.Certificate:
    """As it is, for the message only: nothing is trusted because of it."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, port), timeout=TIMEOUT_SECONDS).encode())


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ["no name at all"]
    return [str(name.value) for name in names]
