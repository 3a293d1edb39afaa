"""Token prefixes and hashing: the relay stores only hashes of tokens."""

from __future__ import annotations

import hashlib

from delegate.config.values import AGENT_PREFIX as AGENT_PREFIX

RUNNER_PREFIX = "drs_"


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
