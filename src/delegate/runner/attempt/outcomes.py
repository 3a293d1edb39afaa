"""Builds an attempt's outcome, keeps it on disk until the relay has it, and converts it to the request that ends it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from delegate.config.home_files import write_private
from delegate.errors import DelegateError
from delegate.model import AgentName, Checkpoint, Outcome
from delegate.runner.agents.lines import make_storable
from delegate.runner.assignment import Assignment
from delegate.runner.lease import Lease
from delegate.runner.secrets.redaction import Redaction
from delegate.states import AttemptState, Reason, waits_for_answer
from delegate.wire.runners import FinishRequest, ReleaseRequest
from delegate.wire.shared_models import ChangeView, CheckpointView, ResultView, UsageView

log = logging.getLogger(__name__)

MESSAGE_MAX = 10_000
LINE_MAX = 1_000  # characters; a path may be four times as long
DIRTY_MAX = 200  # changed files that a checkpoint lists
OUTCOME_FILE = "outcome.json"

STORED_OUTCOME = TypeAdapter(Outcome)
OUTCOMES: dict[AttemptState, Literal["completed", "failed", "cancelled", "waiting"]] = {
    AttemptState.COMPLETED: "completed",
    AttemptState.FAILED: "failed",
    AttemptState.CANCELLED: "cancelled",
    AttemptState.RELEASED: "waiting",
}


def failure(reason: Reason, message: str) -> Outcome:
    return Outcome(state=AttemptState.FAILED, reason=reason, message=message)


def hand_back(message: str, *, session_id: str | None = None, wants_agent: str | None = None) -> Outcome:
    """Return the task to the queue without counting the attempt."""
    return Outcome(
        state=AttemptState.RELEASED,
        reason=Reason.HANDED_BACK,
        message=message,
        session_id=session_id,
        wants_agent=wants_agent,
    )


def release_as_lost(message: str, session_id: str | None = None) -> Outcome:
    """Return the task to the queue and count the attempt: the agent may have done part of its work."""
    return Outcome(state=AttemptState.LOST, reason=Reason.LOST_RUNNER, message=message, session_id=session_id)


def release_interrupted(assignment: Assignment, session_id: str | None = None) -> Outcome:
    """The runner was stopped: an agent resumes from what it finds, but a command would start over."""
    if assignment.agent == AgentName.SHELL and not assignment.rerun:
        return release_as_lost("the runner was stopped while the command was running")
    return hand_back("the runner was stopped", session_id=session_id)


def release_if_asked(outcome: Outcome, lease: Lease) -> Outcome:
    """An agent that asked a question has not finished its task, however its turn ended: the task waits."""
    if lease.asked_at is None or is_returned(outcome) or not waits_for_answer(outcome.state, outcome.reason):
        return outcome
    message = "the agent asked a question"
    return replace(outcome, state=AttemptState.RELEASED, reason=Reason.QUESTION, message=message, not_before=None)


def is_completed(outcome: Outcome) -> bool:
    return outcome.state is AttemptState.COMPLETED


def is_returned(outcome: Outcome) -> bool:
    """Whether the runner gives the task back to the queue; any other outcome finishes the attempt."""
    return outcome.reason in (Reason.HANDED_BACK, Reason.LOST_RUNNER)


def continues_later(outcome: Outcome) -> bool:
    """Whether a further attempt continues the task: it was returned or parked, or waits for an answer."""
    return outcome.not_before is not None or outcome.state in (AttemptState.RELEASED, AttemptState.LOST)


def end_request(
    fence: int, outcome: Outcome, *, next_seq: int = 0, output_incomplete: bool = False
) -> FinishRequest | ReleaseRequest:
    """The request that reports this outcome to the relay."""
    if is_returned(outcome):
        return ReleaseRequest(
            fence=fence,
            reason=Reason.LOST_RUNNER if outcome.state is AttemptState.LOST else Reason.HANDED_BACK,
            message=make_storable(outcome.message, MESSAGE_MAX),
            session_id=outcome.session_id,
            wants_agent=outcome.wants_agent,
            checkpoint=_checkpoint_view(outcome.checkpoint),
        )
    return FinishRequest(
        fence=fence,
        next_seq=next_seq,
        output_incomplete=output_incomplete,
        outcome="parked" if outcome.not_before is not None else OUTCOMES[outcome.state],
        reason=outcome.reason,
        message=make_storable(outcome.message, MESSAGE_MAX),
        exit_code=outcome.exit_code,
        session_id=outcome.session_id,
        not_before=outcome.not_before,
        usage=UsageView(**asdict(outcome.usage)),
        result=None if outcome.result is None else ResultView(**asdict(outcome.result)),
        checkpoint=_checkpoint_view(outcome.checkpoint),
        change=None if outcome.change is None else ChangeView(**asdict(outcome.change)),
        messages_seen=outcome.messages_seen,
    )


def _checkpoint_view(checkpoint: Checkpoint | None) -> CheckpointView | None:
    if checkpoint is None:
        return None
    error = None if checkpoint.error is None else make_storable(checkpoint.error, MESSAGE_MAX)
    files = _file_names(checkpoint.dirty_files)
    return CheckpointView.model_validate({**asdict(checkpoint), "error": error, "dirty_files": files})


def _file_names(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [make_storable(name, LINE_MAX) for name in names]


def without_secrets(outcome: Outcome, redaction: Redaction) -> Outcome:
    """The same outcome without secrets; a text that the placeholders made too long for the relay is cut."""
    before = {name: _storable(value) for name, value in STORED_OUTCOME.dump_python(outcome).items()}
    clean = redaction.data(before)
    redacted = STORED_OUTCOME.validate_python(clean)
    try:
        end_request(1, redacted)
    except ValidationError:
        return STORED_OUTCOME.validate_python(_truncate_like(clean, before))
    return redacted


def _storable(value: object) -> object:
    match value:
        case str():
            return make_storable(value, len(value))
        case dict():
            return {name: _storable(entry) for name, entry in value.items()}
        case list() | tuple():
            return [_storable(entry) for entry in value]
        case _:
            return value


def _truncate_like(value: object, before: object) -> object:
    if isinstance(value, str) and isinstance(before, str):
        return value[: len(before)]
    if isinstance(value, dict) and isinstance(before, dict):
        return {name: _truncate_like(value[name], before[name]) for name in before}
    if isinstance(value, list) and isinstance(before, list):
        return [_truncate_like(*pair) for pair in zip(value, before, strict=True)]
    return value


def save_outcome(spool: Path, outcome: Outcome) -> None:
    """Save the outcome: a runner that dies before the relay has it reports it after its restart."""
    try:
        write_private(spool / OUTCOME_FILE, STORED_OUTCOME.dump_json(outcome).decode())
    except DelegateError as error:  # it is still reported; only a crash before that would lose it
        log.warning("outcome of the attempt not saved", extra={"path": spool, "why": error.message})


def load_outcome(spool: Path) -> Outcome | None:
    try:
        return STORED_OUTCOME.validate_json((spool / OUTCOME_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
