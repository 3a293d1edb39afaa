"""Converts the reports of runners from the wire format to the model."""

from __future__ import annotations

import base64
from datetime import datetime

from delegate.errors import InvalidField, UnknownAgent
from delegate.intake.submit import AGENTS_KNOWN
from delegate.model import EventKind, Outcome, Stream, is_agent
from delegate.report.record import ReportItem
from delegate.states import PARKING_REASONS, SUCCESS_REASONS, AttemptState, Reason
from delegate.wire.runners import FinishRequest, RecordItem, ReleaseRequest
from delegate.wire.shared_models import change_of, checkpoint_of, result_of, usage_of

STATES = {
    "completed": AttemptState.COMPLETED,
    "failed": AttemptState.FAILED,
    "cancelled": AttemptState.CANCELLED,
    "parked": AttemptState.RELEASED,
    "waiting": AttemptState.RELEASED,
}


def item_of(item: RecordItem) -> ReportItem:
    if item.kind is EventKind.OUTPUT:
        return ReportItem(
            seq=item.seq,
            through=item.seq,
            at=item.at,
            kind=item.kind,
            stream=item.stream or Stream.STDOUT,
            output=_decode_output(item.output or ""),
        )
    if item.kind is EventKind.SKIPPED:
        through = item.seq if item.through is None else item.through
        if through < item.seq:
            raise InvalidField(field="items.through", why="must not be less than seq")
        return ReportItem(
            seq=item.seq, through=through, at=item.at, kind=item.kind, data=item.data, skipped_bytes=item.bytes or 0
        )
    return ReportItem(seq=item.seq, through=item.seq, at=item.at, kind=item.kind, data=item.data)


def _decode_output(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidField(field="items.output", why="is not base64") from error


def outcome_of(body: FinishRequest) -> Outcome:
    not_before = _parked_until(body)
    _check_consistent(body)
    return Outcome(
        state=STATES[body.outcome],
        reason=body.reason,
        message=body.message,
        exit_code=body.exit_code,
        session_id=body.session_id,
        usage=usage_of(body.usage),
        not_before=not_before,
        result=None if body.result is None else result_of(body.result),
        checkpoint=None if body.checkpoint is None else checkpoint_of(body.checkpoint),
        change=None if body.change is None else change_of(body.change),
        messages_seen=body.messages_seen,
    )


def release_of(body: ReleaseRequest) -> Outcome:
    is_lost = body.reason is Reason.LOST_RUNNER
    if body.wants_agent is not None and not is_agent(body.wants_agent):
        raise UnknownAgent(field="wantsAgent", agent=body.wants_agent, known=AGENTS_KNOWN)
    if body.wants_agent is not None and is_lost:
        raise InvalidField(field="wantsAgent", why="is allowed with the reason handed_back only")
    return Outcome(
        state=AttemptState.LOST if is_lost else AttemptState.RELEASED,
        reason=body.reason,
        message=body.message,
        session_id=body.session_id,
        checkpoint=None if body.checkpoint is None else checkpoint_of(body.checkpoint),
        wants_agent=body.wants_agent,
    )


def _check_consistent(body: FinishRequest) -> None:
    if (body.outcome == "completed") != (body.reason in SUCCESS_REASONS):
        named = " or ".join(sorted(SUCCESS_REASONS))
        raise InvalidField(field="outcome", why=f"must be completed if the reason is {named}, and only then")
    if (body.outcome == "cancelled") != (body.reason is Reason.CANCELLED):
        raise InvalidField(field="outcome", why="must be cancelled if the reason is cancelled, and only then")
    if body.reason is Reason.HANDED_BACK:
        raise InvalidField(field="reason", why="handed_back is allowed in a release only")


def _parked_until(body: FinishRequest) -> datetime | None:
    parks = body.outcome == "parked"
    if parks and (body.reason not in PARKING_REASONS or body.not_before is None):
        raise InvalidField(field="outcome", why="parked needs notBefore and a reason that parks a task")
    if (body.outcome == "waiting") != (body.reason is Reason.QUESTION):
        raise InvalidField(field="outcome", why="must be waiting if the reason is question, and only then")
    return body.not_before if parks else None
