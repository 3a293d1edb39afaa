"""A private authority and the certificates that it signs, also bad ones."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Issued:
    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


class Authority:
    def __init__(self, place: Path, name: str = "authority") -> None:
        self._place, self._key = place, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = _builder(self._name, self._name, self._key, (-DAY, 30 * DAY))
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(*(name in {"key_cert_sign", "crl_sign"} for name in KEY_USAGES))
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        signed = (
            own.add_extension(constraints, critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = place / f"{name}.pem"
        self.file.write_bytes(signed.public_bytes(PEM))

    def issue(self, *names: str, valid: tuple[timedelta, timedelta] = (-DAY, 15 * DAY), password: str = "") -> Issued:
        """A certificate for these names and addresses, valid from and until so long from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            _builder(subject, self._name, key, valid)
            .add_extension(alternatives, critical=False)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        hidden = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        stem = f"server-{x509.random_serial_number():x}"[:20]
        issued = Issued(self._place / f"{stem}.crt", self._place / f"{stem}.key")
        issued.cert.write_bytes(signed.public_bytes(PEM))
        issued.key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden))
        issued.key.chmod(0o600)
        return issued


KEY_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: tuple[timedelta, timedelta]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid[0])
        .not_valid_after(now + valid[1])
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
