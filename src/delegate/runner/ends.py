"""The end of an attempt as it is told to the relay, and noted on disk until the relay has heard it."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from delegate.errors import DelegateError
from delegate.home import write_private
from delegate.model import Outcome
from delegate.states import AttemptState, Reason
from delegate.wire import Assignment, FinishRequest, ReleaseRequest, UsageView

log = logging.getLogger(__name__)

MESSAGE_MAX = 10_000
NOTE = "end.json"

End = FinishRequest | ReleaseRequest
OUTCOMES: dict[AttemptState, Literal["completed", "failed", "cancelled"]] = {
    AttemptState.COMPLETED: "completed",
    AttemptState.FAILED: "failed",
    AttemptState.CANCELLED: "cancelled",
}


class Note(BaseModel):
    finish: FinishRequest | None = None
    release: ReleaseRequest | None = None


def finish(assignment: Assignment, outcome: Outcome) -> FinishRequest:
    return FinishRequest(
        fence=assignment.fence,
        next_seq=assignment.next_seq,  # known only when everything is spooled
        outcome="parked" if outcome.not_before is not None else OUTCOMES[outcome.state],
        reason=outcome.reason,
        message=outcome.message[:MESSAGE_MAX],
        exit_code=outcome.exit_code,
        session_id=outcome.session_id,
        not_before=outcome.not_before,
        usage=UsageView(**asdict(outcome.usage)),
    )


def hand_back(assignment: Assignment, message: str, session_id: str | None = None) -> ReleaseRequest:
    """Not counted as an attempt."""
    return ReleaseRequest(fence=assignment.fence, reason=Reason.HANDED_BACK, message=message, session_id=session_id)


def loss(assignment: Assignment, message: str, session_id: str | None = None) -> ReleaseRequest:
    """Counted: the agent may have done part of its work."""
    return ReleaseRequest(fence=assignment.fence, reason=Reason.LOST_RUNNER, message=message, session_id=session_id)


def note(spool: Path, end: End) -> None:
    """A runner that dies before the relay has heard the end tells it after its restart."""
    noted = Note(finish=end) if isinstance(end, FinishRequest) else Note(release=end)
    try:
        write_private(spool / NOTE, noted.model_dump_json())
    except DelegateError as error:  # the end is still told, only a crash before that would lose it
        log.warning("end not noted", extra={"path": spool, "why": error.message})


def noted(spool: Path) -> End | None:
    try:
        found = Note.model_validate_json((spool / NOTE).read_bytes())
    except (OSError, ValidationError):
        return None
    return found.finish or found.release
