"""What is expected of a recorded run that did not complete."""

from __future__ import annotations

from dataclasses import dataclass

from delegate.states import Reason


@dataclass(frozen=True)
class Bad:
    exit_code: int  # of a shell: 128 and more after a signal
    reason: Reason
    message: str
    stderr: str = ""
