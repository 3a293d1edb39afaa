"""Holds an attempt: renews its lease and uploads its output in the background until its end is reported."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from delegate.errors import Refused, SequenceGap, StaleFence
from delegate.failpoints import failpoint
from delegate.model import Outcome
from delegate.runner.agents.ask_tool import FILE
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.outcomes import EndRequest
from delegate.runner.context import RunnerContext
from delegate.runner.lease import Lease
from delegate.runner.upload.record import Record
from delegate.runner.upload.spool import Batch, Spool
from delegate.states import AttemptState, Reason
from delegate.wire.runners import Assignment, Control, FinishRequest

log = logging.getLogger(__name__)

UPLOAD_TIMEOUT = 120.0  # seconds without progress, while the relay answers, before the output counts as incomplete
HAND_BACK_UPLOAD_TIMEOUT = 3.0  # the same when the runner is stopping


class HeldAttempt:
    def __init__(self, runner_context: RunnerContext, assignment: Assignment, ask_token: str | None = None) -> None:
        self._runner_context = runner_context
        self._assignment = assignment
        self._directory = runner_context.slot.spool(assignment.attempt_id)
        spool = Spool(self._directory, max_output=assignment.max_output, next_seq=assignment.next_seq)
        self.lease = Lease(runner_context.link, assignment, runner_context.shutdown.wakeup)
        self._redaction = runner_context.secrets.redactor(ask_token).begin()
        self.record = Record(spool, self._redaction, runner_context.shutdown.wakeup)
        self._is_reporting = False
        self.asking = runner_context.link.asking(ask_token, self._directory / FILE) if ask_token else None
        self.log_fields = {
            "task_id": assignment.task_id,
            "attempt_id": assignment.attempt_id,
            "runner_id": runner_context.link.runner_id,
        }

    async def hold_until_end(
        self,
        decide: Callable[[], Awaitable[EndRequest]],
        complete: Callable[[EndRequest], Awaitable[EndRequest]] | None = None,
    ) -> EndRequest | None:
        """Hold the attempt while `decide` determines its end, and report that end to the relay.

        `complete` adds data that takes time to collect; if it fails, the end is reported without it.

        Returns None when another runner took the attempt over, or when the runner had no more time: then the spool
        stays, with the end saved in it, for the next start.
        """
        reported: EndRequest | None = None
        is_lost = False
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._ignore_stale_when_reporting, self.lease.keep_renewed)
                group.start_soon(self._ignore_stale_when_reporting, self._upload)
                group.start_soon(self.record.gather)
                group.start_soon(self._give_up_in_time, group.cancel_scope)
                end = await self._save_end(await decide(), complete)
                self.record.note_secrets()
                await self._report_end(end)
                reported = end
                group.cancel_scope.cancel()
        except* StaleFence:
            is_lost = True
            log.warning("attempt was taken over by another runner", extra=self.log_fields)
        finally:
            self.record.close()
        if reported is not None or is_lost:
            self._runner_context.slot.remove_spool(self._assignment.attempt_id)
        return reported

    async def _save_end(
        self, end: EndRequest, complete: Callable[[EndRequest], Awaitable[EndRequest]] | None
    ) -> EndRequest:
        """Save and return the end without secrets: a runner that dies from here on reports it after its restart."""
        first = outcomes.without_secrets(end, self._redaction)
        outcomes.save_end(self._directory, first)
        if complete is None:
            return first
        try:
            whole = outcomes.without_secrets(await complete(end), self._redaction)
        except Exception:
            log.exception("checkpoint not added to the end of the attempt", extra=self.log_fields)
            return first
        if whole != first:
            outcomes.save_end(self._directory, whole)
        return whole

    async def _ignore_stale_when_reporting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Once the relay has the end, renewals and uploads get StaleFence, perhaps before the end is answered."""
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

    async def _report_end(self, end: EndRequest) -> None:
        self.record.stop_gathering()
        is_complete = await self._wait_until_uploaded()
        await self.lease.ensure_fresh()
        self._is_reporting = True
        failpoint("runner.finish.before")
        if isinstance(end, FinishRequest):
            facts = {"next_seq": self.record.next_seq, "output_incomplete": not is_complete}
            await self._finish(end.model_copy(update=facts))
        else:
            await self._runner_context.link.release(self._assignment, end)
        failpoint("runner.finish.after")
        log.info("attempt ended", extra={**self.log_fields, "reason": end.reason, "is_complete": is_complete})

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

    async def _finish(self, request: FinishRequest) -> None:
        try:
            await self._runner_context.link.finish(self._assignment, request)
        except SequenceGap:
            await self._runner_context.link.finish(
                self._assignment, request.model_copy(update={"output_incomplete": True})
            )
        except Refused as refusal:
            log.error("end of the attempt refused", extra={**self.log_fields, "why": refusal.message})  # noqa: TRY400
            message = f"the relay refused the end of the attempt ({request.reason}): {refusal.message}"
            plain = outcomes.finish(
                self._assignment, Outcome(state=AttemptState.FAILED, reason=Reason.INTERNAL, message=message)
            )
            await self._runner_context.link.finish(
                self._assignment, plain.model_copy(update={"output_incomplete": True})
            )

    async def _give_up_in_time(self, scope: anyio.CancelScope) -> None:
        await self._runner_context.shutdown.wait_for_deadline()
        log.warning("attempt not handed back in time", extra=self.log_fields)
        scope.cancel()
