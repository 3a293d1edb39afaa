"""Token prefixes and hashing: the relay stores only hashes of tokens."""

from __future__ import annotations

import hashlib

RUNNER_PREFIX = "drs_"
AGENT_PREFIX = "dat_"  # of the token that a runner creates for an attempt's agent; it identifies the agent to the relay


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
