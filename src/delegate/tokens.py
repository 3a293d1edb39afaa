"""Tokens: the relay keeps, and is told of an agent's, no more than a hash."""

from __future__ import annotations

import hashlib

RUNNER_PREFIX = "drs_"
AGENT_PREFIX = "dat_"  # of the token that a runner makes for the agent of an attempt, and by which the relay knows it


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
