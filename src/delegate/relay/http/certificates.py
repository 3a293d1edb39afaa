"""Loads the relay's certificate, also a renewed one, and says what is wrong with one that clients would refuse."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio

from delegate.errors import BadCertificate

log = logging.getLogger(__name__)
RENEWAL_CHECK_EVERY = 2.0  # seconds
HANDSHAKE_STEPS_MAX = 10  # messages of a handshake in memory; TLS 1.3 needs three
EXPIRED, NOT_YET_VALID = 10, 9  # OpenSSL's codes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    files: tuple[Path, Path]  # the certificate and its key
    stamps: tuple[tuple[int, int], ...]  # what tells these files from renewed ones
    context: ssl.SSLContext
    names: tuple[str, ...]  # host names and addresses, `*.` included
    expires_at: datetime

    def covers(self, host: str) -> bool:
        wildcard = f"*.{host.partition('.')[2]}"
        return any(name.lower() in (host.lower(), wildcard.lower()) for name in self.names)


def load_certificate(cert: Path | None, key: Path | None) -> ServerCertificate | None:
    """Return what a TLS server needs; None when no certificate is configured."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "--tls-cert" if cert is None else "--tls-key"
        raise BadCertificate(path=cert or key, why=f"it needs {missing} too", advice="give both files")
    stamps = tuple(_stamp(path) for path in (cert, key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        raise BadCertificate(path=cert, why=_explain(error, key), advice="see docs/team.md") from error
    names, expires_at = _examine(cert, context)
    return ServerCertificate(files=(cert, key), stamps=stamps, context=context, names=names, expires_at=expires_at)


async def follow_renewals(served: ServerCertificate) -> None:
    """Use renewed files for new connections. Files that cannot be used, or of which only one was replaced, change
    nothing."""
    current, refused = served, served.stamps

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = current.context

    served.context.sni_callback = choose  # called for every handshake, also without a name
    while True:
        await anyio.sleep(RENEWAL_CHECK_EVERY)
        try:
            stamps = tuple(_stamp(path) for path in served.files)
            if stamps in (current.stamps, refused):
                continue
            refused = stamps
            current = load_certificate(*served.files) or current
            log.info("certificate renewed", extra={"expires_at": current.expires_at.isoformat()})
        except BadCertificate as error:
            log.warning("certificate not renewed", extra={"why": error.message})


def _stamp(path: Path) -> tuple[int, int]:
    """Check that the file can be read; returns when it was written, and which one it is."""
    try:
        path.read_bytes()
        found = path.stat()
        return found.st_mtime_ns, found.st_ino
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadCertificate(path=path, why=why, advice="check the path and its permissions") from error


def _explain(error: ssl.SSLError, key: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key} belongs to another certificate"
    if b"ENCRYPTED" in key.read_bytes():
        return f"the key in {key} has a password; store it without one, readable by this user only"
    return f"this file or {key} is not valid PEM"


def _examine(path: Path, context: ssl.SSLContext) -> tuple[tuple[str, ...], datetime]:
    """Return the names of the certificate, and when it expires. A client that trusts exactly this certificate connects
    in memory: the standard library decodes only a certificate that was verified."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    try:
        for _ in range(HANDSHAKE_STEPS_MAX):
            if _is_complete(client) & _is_complete(server):
                break
    except ssl.SSLCertVerificationError as error:
        raise BadCertificate(path=path, why=_explain_refusal(error), advice="renew it") from error
    found = client.getpeercert() or {}
    expires_at = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)
    names = tuple(str(pair[1]) for pair in found.get("subjectAltName", ()))
    return names, expires_at


def _is_complete(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _explain_refusal(error: ssl.SSLCertVerificationError) -> str:
    known = {EXPIRED: "it has expired", NOT_YET_VALID: "it is not valid yet"}
    return known.get(error.verify_code, f"clients would refuse it: {error.verify_message}")
