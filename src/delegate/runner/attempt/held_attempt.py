"""Holds an attempt: renews its lease and uploads its output in the background until its outcome is reported."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import anyio

from delegate.config.paths import Home
from delegate.errors import Refused, RunnerRevoked, SequenceGap, StaleFence
from delegate.failpoints import failpoint
from delegate.model import EventKind, Outcome, Privacy
from delegate.runner.agents.ask_tool import FILE
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.context import RunnerContext
from delegate.runner.lease import Lease
from delegate.runner.upload import task_log
from delegate.runner.upload.local_record import LocalRecord, record_path
from delegate.runner.upload.record import Record
from delegate.runner.upload.spool import Batch, Spool
from delegate.states import Reason
from delegate.wire.runners import Control

log = logging.getLogger(__name__)

UPLOAD_TIMEOUT = 120.0  # seconds without progress, while the relay answers, before the output counts as incomplete
HAND_BACK_UPLOAD_TIMEOUT = 3.0  # the same when the runner is stopping


@asynccontextmanager
async def hold(
    runner_context: RunnerContext, assignment: Assignment, ask_token: str | None = None
) -> AsyncIterator[HeldAttempt]:
    """Hold the attempt while the block runs; the block ends it with `report`.

    The block is cancelled, without an error, when another runner took the attempt over, or when the runner has no more
    time. In the second case the spool stays, with the saved outcome in it, for the next start.
    """
    held = HeldAttempt(runner_context, assignment, ask_token)
    is_lost, revocation = False, None
    try:
        async with anyio.create_task_group() as group:
            held.start_background_tasks(group)
            yield held
            group.cancel_scope.cancel()
    except* StaleFence:
        is_lost = True
        log.warning("attempt was taken over by another runner", extra=held.log_fields)
    except* RunnerRevoked as revoked:
        revocation = revoked.exceptions[0]
        log.error("runner revoked: the agent was stopped, its work is kept", extra=held.log_fields)  # noqa: TRY400
    finally:
        held.record.close()
    if revocation is not None:
        raise revocation
    if held.reported is not None or is_lost:
        runner_context.slot.remove_spool(assignment.attempt_id)


class HeldAttempt:
    def __init__(self, runner_context: RunnerContext, assignment: Assignment, ask_token: str | None = None) -> None:
        self._runner_context = runner_context
        self._assignment = assignment
        self._directory = runner_context.slot.spool(assignment.attempt_id)
        spool = Spool(self._directory, max_output=assignment.max_output, next_seq=assignment.next_seq)
        shutdown, keeper_link = runner_context.shutdown, runner_context.keeper_link
        self.lease = Lease(runner_context.link, assignment, shutdown.wakeup, keeper_link)
        self._redaction = runner_context.secrets.redactor(ask_token).begin()
        level, records = runner_context.privacy, Home(runner_context.settings.home).records
        path = record_path(records, assignment.lineage, assignment.task_id, assignment.attempt_id)
        local = LocalRecord(path, output_max=0 if level is Privacy.FULL else assignment.max_output)
        self.record = Record(
            spool, self._redaction, runner_context.shutdown.wakeup, local=local, level=level, log_event=self._log_event
        )
        self._is_reporting = False
        self.reported: Outcome | None = None  # once the relay has it
        self.asking = runner_context.link.asking(ask_token, self._directory / FILE) if ask_token else None
        self.log_fields = {
            "task_id": assignment.task_id,
            "attempt_id": assignment.attempt_id,
            "runner_id": runner_context.link.slot_id,
        }

    def _log_event(self, kind: EventKind, data: dict[str, object], at: datetime) -> None:
        entry = task_log.entry_of(kind, data, self._assignment)
        if entry is not None:
            self._runner_context.task_log.write(entry, self._assignment.task_id, at)

    def start_background_tasks(self, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(self._ignore_stale_when_reporting, self.lease.keep_renewed)
        group.start_soon(self._ignore_stale_when_reporting, self._upload)
        group.start_soon(self.record.gather)
        group.start_soon(self._give_up_in_time, group.cancel_scope)

    def save(self, outcome: Outcome) -> Outcome:
        """Save and return the outcome without secrets: a runner that dies from here on reports it after its restart."""
        known = replace(outcome, messages_seen=max(outcome.messages_seen, self.lease.messages_seen))
        clean = outcomes.without_secrets(known, self._redaction)
        outcomes.save_outcome(self._directory, clean)
        self.record.end(outcomes.STORED_OUTCOME.dump_python(clean, mode="json"))
        return clean

    async def report(self, outcome: Outcome) -> None:
        """Report a saved outcome once the relay has all output."""
        self.record.note_secrets()
        self.record.note_kept()
        self.record.stop_gathering()
        is_complete = await self._wait_until_uploaded()
        await self.lease.ensure_fresh()
        self._is_reporting = True
        failpoint("runner.finish.before")
        control = await self._send_outcome(outcome, is_complete=is_complete)
        failpoint("runner.finish.after")
        log.info("attempt ended", extra={**self.log_fields, "reason": outcome.reason, "is_complete": is_complete})
        for entry in task_log.ended(outcome, self._assignment, is_posted=control.is_posted):
            self._runner_context.task_log.write(entry, self._assignment.task_id, datetime.now(UTC))
        self.reported = outcome

    async def _send_outcome(self, outcome: Outcome, *, is_complete: bool) -> Control:
        try:
            return await self._send_request(outcome, output_incomplete=not is_complete)
        except SequenceGap:
            return await self._send_request(outcome, output_incomplete=True)
        except Refused as refusal:
            if outcomes.is_returned(outcome):
                raise
            log.error("outcome of the attempt refused", extra={**self.log_fields, "why": refusal.message})  # noqa: TRY400
            message = f"the relay refused the end of the attempt ({outcome.reason}): {refusal.message}"
            failure = replace(outcomes.failure(Reason.INTERNAL, message), messages_seen=outcome.messages_seen)
            return await self._send_request(failure, output_incomplete=True)

    async def _send_request(self, outcome: Outcome, *, output_incomplete: bool) -> Control:
        fence, next_seq = self._assignment.fence, self.record.next_seq
        request = outcomes.end_request(fence, outcome, next_seq=next_seq, output_incomplete=output_incomplete)
        return await self._runner_context.link.end(self._assignment, request)

    async def _ignore_stale_when_reporting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Once the relay has the outcome, renewals and uploads get StaleFence, perhaps before `report` returns."""
        try:
            await work()
        except* StaleFence:
            if not self._is_reporting:
                raise

    async def _upload(self) -> None:
        await self.record.upload(self._send)

    async def _send(self, batch: Batch) -> Control:
        await self.lease.ensure_fresh()
        control = await self._runner_context.link.record(self._assignment, batch)
        self.lease.apply_control(control)
        return control

    async def _wait_until_uploaded(self) -> bool:
        """Wait until the relay has all output; False when it answers but the upload stalls or was refused."""
        while not self.record.is_uploaded:
            answers = self.lease.renewals
            is_leaving = self._runner_context.shutdown.is_now
            with anyio.move_on_after(HAND_BACK_UPLOAD_TIMEOUT if is_leaving else UPLOAD_TIMEOUT) as scope:
                await self.record.wait_for_progress()
            if scope.cancelled_caught and (is_leaving or self.lease.renewals > answers):
                return False
        return self.record.is_complete

    async def _give_up_in_time(self, scope: anyio.CancelScope) -> None:
        await self._runner_context.shutdown.wait_for_deadline()
        log.warning("attempt not handed back in time", extra=self.log_fields)
        scope.cancel()
