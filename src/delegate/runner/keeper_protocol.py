"""The words between a keeper and its runners: one line of JSON each, over two pipes. Pure."""

from __future__ import annotations

import json
from enum import StrEnum


class RunnerCommand(StrEnum):
    """From the keeper: what a runner may do until it hears otherwise."""

    HOLD = "hold"  # and why: it claims nothing
    OPEN = "open"


class RunnerStatus(StrEnum):
    """From a runner."""

    IDLE = "idle"  # it could begin a task at once
    BUSY = "busy"  # and with which attempt
    AGENT = "agent"  # beside BUSY: of which kind
    TROUBLE = "trouble"  # it tries again, but until it is idle nobody should count on it


def encode_line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode_line(line: bytes) -> object:
    """What was said, or None: whoever may open the other end of the pipe must not be able to stop us with nonsense."""
    try:
        return json.loads(line)
    except ValueError:
        return None
