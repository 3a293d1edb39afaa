"""Token prefixes and hashing: the relay stores only hashes of tokens."""

from __future__ import annotations

import hashlib
import secrets

from delegate.config.values import AGENT_PREFIX as AGENT_PREFIX

PERSON_PREFIX = "dlg_"
RUNNER_PREFIX = "drs_"
PAIRING_PREFIX = "drs_pair_"
SLOT_PREFIX = "dst_"


def new_token(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
