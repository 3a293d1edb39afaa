"""The messages between a keeper and its runners: one line of JSON each, over two pipes. Pure."""

from __future__ import annotations

import json
from enum import StrEnum

STOP_MARK = "stopping"  # a file in the slot: the keeper was asked to stop, so what is lost from then on does not count


class RunnerCommand(StrEnum):
    """From the keeper; valid until the next command."""

    HOLD = "hold"  # with the reason: the runner must not claim
    OPEN = "open"


class RunnerStatus(StrEnum):
    """From a runner."""

    IDLE = "idle"  # it can start a task at once
    BUSY = "busy"  # with the attempt's id
    AGENT = "agent"  # sent with BUSY: the agent's name
    TASK = "task"  # sent with BUSY: the task's id
    WAITING = "waiting"  # whether its task may wait for tasks that its agent submitted
    TROUBLE = "trouble"  # it retries, but must not be counted on until it is idle
    AWAY = "away"  # why the relay does not answer; empty: it does
    DRAIN = "drain"  # whether the relay gives this machine no more tasks
    FATAL = "fatal"  # the error, as a report, after which no runner of this machine can work


def encode_line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode_line(line: bytes) -> object:
    """The message, or None for an invalid line: another writer on the pipe must not be able to crash the reader."""
    try:
        return json.loads(line)
    except ValueError:
        return None
