"""Completes what the relay tells about earlier work with the texts that this machine kept to itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import ValidationError

from delegate.model import Checkpoint, EventKind, Outcome, Privacy
from delegate.runner.assignment import Assignment
from delegate.runner.attempt.outcomes import STORED_OUTCOME, is_completed
from delegate.runner.upload import privacy
from delegate.runner.upload.local_record import END, read_items, records_of_lineage, records_of_task
from delegate.wire.shared_models import CheckpointView


def restore_texts(assignment: Assignment, records: Path, level: Privacy) -> Assignment:
    """The assignment with the errors, output and session ids of attempts that ran on this machine."""
    if level is Privacy.FULL:
        return assignment
    own = records_of_lineage(records, assignment.lineage)
    before = assignment.continued_task
    others = records_of_task(records, before.task_id) if before else []
    if before is not None and before.checkpoint is not None:
        before = replace(before, checkpoint=_restore(before.checkpoint, others, level))
    return replace(
        assignment,
        checkpoint=assignment.checkpoint and _restore(assignment.checkpoint, own, level),
        continued_task=before,
        resume_session=_find_session(assignment.resume_session, [*own, *others]),
    )


def _restore(told: Checkpoint, files: Sequence[Path], level: Privacy) -> Checkpoint:
    """The checkpoint as it was before it left, if this machine has it; the newest that gives the same."""
    wanted = _view(told)
    for outcome in _outcomes(files):
        left = outcome.checkpoint
        if left is not None:
            sent = privacy.checkpoint(level, _view(left), is_completed=is_completed(outcome))
            if sent == wanted:
                return left
    return replace(told, session_id=_find_session(told.session_id, files))


def _view(checkpoint: Checkpoint) -> CheckpointView:
    return CheckpointView.model_validate(asdict(checkpoint))


def _outcomes(files: Sequence[Path]) -> Iterator[Outcome]:
    for path in reversed(files):
        for item in reversed([item for item in read_items(path) if item.kind == END]):
            try:
                yield STORED_OUTCOME.validate_python(item.data)
            except ValidationError:
                continue


def _find_session(told: str | None, files: Sequence[Path]) -> str | None:
    """The session behind a reference; None if it is on another machine."""
    if told is None or not privacy.REFERENCE.fullmatch(told):
        return told
    ids = (item.data.get("sessionId") for path in files for item in read_items(path) if item.kind == EventKind.SESSION)
    return next((one for one in ids if isinstance(one, str) and privacy.reference(one) == told), None)
