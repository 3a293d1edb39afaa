"""Builds the request that ends an attempt, and keeps it on disk until the relay has it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from delegate.config.home_files import write_private
from delegate.errors import DelegateError
from delegate.model import Checkpoint, Outcome
from delegate.runner.agents.lines import make_storable
from delegate.runner.lease import Lease
from delegate.runner.secrets.redaction import Redaction
from delegate.states import AttemptState, Reason, waits_for_answer
from delegate.wire.parts import ChangeView, CheckpointView, ResultView, UsageView
from delegate.wire.runners import Assignment, FinishRequest, ReleaseRequest

log = logging.getLogger(__name__)

MESSAGE_MAX = 10_000
LINE_MAX = 1_000  # characters; a path may be four times as long
END_FILE = "end.json"

EndRequest = FinishRequest | ReleaseRequest
OUTCOMES: dict[AttemptState, Literal["completed", "failed", "cancelled", "waiting"]] = {
    AttemptState.COMPLETED: "completed",
    AttemptState.FAILED: "failed",
    AttemptState.CANCELLED: "cancelled",
    AttemptState.RELEASED: "waiting",
}


class SavedEnd(BaseModel):
    finish: FinishRequest | None = None
    release: ReleaseRequest | None = None


def finish(assignment: Assignment, outcome: Outcome) -> FinishRequest:
    return FinishRequest(
        fence=assignment.fence,
        next_seq=assignment.next_seq,  # replaced once everything is spooled
        outcome="parked" if outcome.not_before is not None else OUTCOMES[outcome.state],
        reason=outcome.reason,
        message=make_storable(outcome.message, MESSAGE_MAX),
        exit_code=outcome.exit_code,
        session_id=outcome.session_id,
        not_before=outcome.not_before,
        usage=UsageView(**asdict(outcome.usage)),
        result=None if outcome.result is None else ResultView(**asdict(outcome.result)),
        checkpoint=None if outcome.checkpoint is None else checkpoint_view(outcome.checkpoint),
        change=None if outcome.change is None else ChangeView(**asdict(outcome.change)),
    )


def checkpoint_view(checkpoint: Checkpoint) -> CheckpointView:
    error = None if checkpoint.error is None else make_storable(checkpoint.error, MESSAGE_MAX)
    files = file_names(checkpoint.dirty_files)
    return CheckpointView.model_validate({**asdict(checkpoint), "error": error, "dirty_files": files})


def file_names(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [make_storable(name, LINE_MAX) for name in names]


def to_end_request(assignment: Assignment, ended: Outcome | ReleaseRequest) -> EndRequest:
    return finish(assignment, ended) if isinstance(ended, Outcome) else ended


def release_if_asked(ended: Outcome | ReleaseRequest, lease: Lease) -> Outcome | ReleaseRequest:
    """An agent that asked a question has not finished its task, however its turn ended: the task waits."""
    if lease.asked_at is None or not isinstance(ended, Outcome) or not waits_for_answer(ended.state, ended.reason):
        return ended
    message = "the agent asked a question"
    return replace(ended, state=AttemptState.RELEASED, reason=Reason.QUESTION, message=message, not_before=None)


def hand_back(assignment: Assignment, message: str, session_id: str | None = None) -> ReleaseRequest:
    """Return the task to the queue without counting the attempt."""
    return ReleaseRequest(fence=assignment.fence, reason=Reason.HANDED_BACK, message=message, session_id=session_id)


def release_as_lost(assignment: Assignment, message: str, session_id: str | None = None) -> ReleaseRequest:
    """Return the task to the queue and count the attempt: the agent may have done part of its work."""
    return ReleaseRequest(fence=assignment.fence, reason=Reason.LOST_RUNNER, message=message, session_id=session_id)


def without_secrets(end: EndRequest, redaction: Redaction) -> EndRequest:
    """The same end without secrets; a text that the placeholders made too long is cut."""
    clean = redaction.data(end.model_dump())
    try:
        return type(end).model_validate(clean)
    except ValidationError:
        return type(end).model_validate(_truncate_like(clean, end.model_dump()))


def _truncate_like(value: object, before: object) -> object:
    if isinstance(value, str) and isinstance(before, str):
        return value[: len(before)]
    if isinstance(value, dict) and isinstance(before, dict):
        return {name: _truncate_like(value[name], before[name]) for name in before}
    if isinstance(value, list) and isinstance(before, list):
        return [_truncate_like(*pair) for pair in zip(value, before, strict=True)]
    return value


def save_end(spool: Path, end: EndRequest) -> None:
    """Save the end: a runner that dies before the relay has it reports it after its restart."""
    noted = SavedEnd(finish=end) if isinstance(end, FinishRequest) else SavedEnd(release=end)
    try:
        write_private(spool / END_FILE, noted.model_dump_json())
    except DelegateError as error:  # it is still reported; only a crash before that would lose it
        log.warning("end of the attempt not saved", extra={"path": spool, "why": error.message})


def load_end(spool: Path) -> EndRequest | None:
    try:
        found = SavedEnd.model_validate_json((spool / END_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return found.finish or found.release
