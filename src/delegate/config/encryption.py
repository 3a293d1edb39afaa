"""Encrypts the secrets that the relay keeps in its database."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from hashlib import sha256

from delegate.config.home_files import explain_write_error, read_or_create
from delegate.config.paths import Home
from delegate.errors import BadSetting, LoosePermissions, WrongSecretKey

KEY_VARIABLE = "DELEGATE_SECRET_KEY"
KEY_LENGTH_MIN = 32  # characters
NONCE_BYTES = 12
VERSION = b"\x01"


@dataclass(frozen=True, slots=True)
class SecretBox:
    """AES-GCM with one key. A secret is bound to its purpose: it cannot be moved to another row."""

    key: bytes

    def encrypt(self, secret: str, purpose: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # slow to load

        nonce = os.urandom(NONCE_BYTES)
        return VERSION + nonce + AESGCM(self.key).encrypt(nonce, secret.encode(), purpose.encode())

    def decrypt(self, data: bytes, purpose: str) -> str:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # slow to load
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        version, nonce, rest = data[:1], data[1 : 1 + NONCE_BYTES], data[1 + NONCE_BYTES :]
        if version != VERSION:
            raise WrongSecretKey
        try:
            return AESGCM(self.key).decrypt(nonce, rest, purpose.encode()).decode()
        except InvalidTag:
            raise WrongSecretKey from None


def open_secret_box(home: Home, text: str) -> SecretBox:
    """Use the key of DELEGATE_SECRET_KEY or, if that is empty, of the home; the first relay creates the latter."""
    if text and len(text) < KEY_LENGTH_MIN:
        raise BadSetting(
            name=KEY_VARIABLE,
            value="…",
            why=f"is shorter than {KEY_LENGTH_MIN} characters",
            advice="use a random text, for example the output of `openssl rand -hex 32`",
        )
    return SecretBox(sha256(b"delegate-secrets\n" + (text or _read_key_file(home)).encode()).digest())


def _read_key_file(home: Home) -> str:
    text = read_or_create(home.secret_key, lambda: os.urandom(32).hex())
    try:
        if stat.S_IMODE(home.secret_key.stat().st_mode) & 0o077:
            raise LoosePermissions(path=home.secret_key, mode="600")
    except OSError as error:
        raise explain_write_error(home.secret_key, error) from error
    return text
