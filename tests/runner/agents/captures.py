"""What is expected of a recorded run that did not complete."""

from __future__ import annotations

from dataclasses import dataclass

from delegate.model import Outcome
from delegate.states import AttemptState, Reason


@dataclass(frozen=True)
class Bad:
    exit_code: int  # of a shell: 128 and more after a signal
    reason: Reason
    message: str
    stderr: str = ""


def assert_failed(outcome: Outcome, expected: Bad) -> None:
    assert (outcome.state, outcome.reason) == (AttemptState.FAILED, expected.reason)
    assert outcome.message == expected.message
    assert outcome.exit_code == expected.exit_code
    assert outcome.not_before is None


def assert_parked(outcome: Outcome, expected: Bad) -> None:
    assert (outcome.state, outcome.reason) == (AttemptState.RELEASED, expected.reason)
    assert outcome.message == expected.message
    assert outcome.session_id is not None
