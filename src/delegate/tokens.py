"""Token prefixes and hashing: the relay stores only hashes of tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from delegate.config.values import AGENT_PREFIX as AGENT_PREFIX

PERSON_PREFIX = "dlg_"
RUNNER_PREFIX = "drs_"
PAIRING_PREFIX = "drs_pair_"
SLOT_PREFIX = "dst_"


def new_token(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(32)


def token_for_request(prefix: str, secret: str, key: str | None, *request: str) -> str:
    """Return the same token when a request is sent again after its response was lost; a new one without a key.

    The relay stores no token, so it derives this one from a secret of its own and the request.
    """
    if key is None:
        return new_token(prefix)
    digest = hmac.digest(secret.encode(), "\n".join((prefix, key, *request)).encode(), "sha256")
    return prefix + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
