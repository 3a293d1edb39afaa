"""The time in which this runner holds an attempt: lease and upload go on in the background until its end is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from delegate.errors import Refused, SequenceGap, StaleFence
from delegate.failpoints import failpoint
from delegate.model import Outcome
from delegate.runner.agents.asking import FILE
from delegate.runner.attempt import outcome
from delegate.runner.attempt.outcome import End
from delegate.runner.context import Equipment
from delegate.runner.lease import Lease
from delegate.runner.upload.record import Record
from delegate.runner.upload.spool import Batch, Spool
from delegate.states import AttemptState, Reason
from delegate.wire.runners import Assignment, Control, FinishRequest

log = logging.getLogger(__name__)

UPLOAD_PATIENCE = 120.0  # seconds without progress, while the relay answers, after which output counts as incomplete
HAND_BACK_PATIENCE = 3.0  # the same when the runner must go


class Holding:
    def __init__(self, equipment: Equipment, assignment: Assignment, ask_token: str | None = None) -> None:
        self._equipment = equipment
        self._assignment = assignment
        self._directory = equipment.slot.spool(assignment.attempt_id)
        spool = Spool(self._directory, max_output=assignment.max_output, next_seq=assignment.next_seq)
        self.lease = Lease(equipment.link, assignment, equipment.shutdown.attention)
        self._redaction = equipment.secrets.redactor(ask_token).begin()
        self.record = Record(spool, self._redaction, equipment.shutdown.attention)
        self._is_telling = False
        self.asking = equipment.link.asking(ask_token, self._directory / FILE) if ask_token else None
        self.marks = {
            "task_id": assignment.task_id,
            "attempt_id": assignment.attempt_id,
            "runner_id": equipment.link.runner_id,
        }

    async def until(
        self, decide: Callable[[], Awaitable[End]], complete: Callable[[End], Awaitable[End]] | None = None
    ) -> End | None:
        """Hold the attempt while `decide` finds its end, and tell that to the relay.

        `complete` adds what takes time to find out, and is no reason to lose the end.

        None when the attempt became somebody else's, or when the runner had no more time: then the spool stays, with
        the end noted in it, for the next start.
        """
        told: End | None = None
        is_lost = False
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._unless_told, self.lease.keep)
                group.start_soon(self._unless_told, self._upload)
                group.start_soon(self.record.gather)
                group.start_soon(self._give_up_in_time, group.cancel_scope)
                end = await self._noted(await decide(), complete)
                self.record.note_secrets()
                await self._tell(end)
                told = end
                group.cancel_scope.cancel()
        except* StaleFence:
            is_lost = True
            log.warning("attempt is somebody else's", extra=self.marks)
        finally:
            self.record.close()
        if told is not None or is_lost:
            self._equipment.slot.remove_spool(self._assignment.attempt_id)
        return told

    async def _noted(self, end: End, complete: Callable[[End], Awaitable[End]] | None) -> End:
        """The end as it may be told; a runner that dies from here on tells it after its restart."""
        first = outcome.without_secrets(end, self._redaction)
        outcome.note(self._directory, first)
        if complete is None:
            return first
        try:
            whole = outcome.without_secrets(await complete(end), self._redaction)
        except Exception:
            log.exception("end not completed", extra=self.marks)
            return first
        if whole != first:
            outcome.note(self._directory, whole)
        return whole

    async def _unless_told(self, work: Callable[[], Awaitable[None]]) -> None:
        """An attempt whose end the relay has is not ours any more; that answer may overtake the one to the end."""
        try:
            await work()
        except* StaleFence:
            if not self._is_telling:
                raise

    async def _upload(self) -> None:
        await self.record.upload(self._send)

    async def _send(self, batch: Batch) -> Control:
        await self.lease.fresh()
        control = await self._equipment.link.record(self._assignment, batch)
        self.lease.heed(control)
        return control

    async def _tell(self, end: End) -> None:
        self.record.hurry()
        is_complete = await self._uploaded()
        await self.lease.fresh()
        self._is_telling = True
        failpoint("runner.finish.before")
        if isinstance(end, FinishRequest):
            facts = {"next_seq": self.record.next_seq, "output_incomplete": not is_complete}
            await self._finish(end.model_copy(update=facts))
        else:
            await self._equipment.link.release(self._assignment, end)
        failpoint("runner.finish.after")
        log.info("attempt ended", extra={**self.marks, "reason": end.reason, "is_complete": is_complete})

    async def _uploaded(self) -> bool:
        """Wait until the relay has all output; False when it answers but does not take it, or never can."""
        while not self.record.is_uploaded:
            answers = self.lease.answers
            is_leaving = self._equipment.shutdown.is_now
            with anyio.move_on_after(HAND_BACK_PATIENCE if is_leaving else UPLOAD_PATIENCE) as scope:
                await self.record.progress()
            if scope.cancelled_caught and (is_leaving or self.lease.answers > answers):
                return False
        return self.record.is_complete

    async def _finish(self, request: FinishRequest) -> None:
        try:
            await self._equipment.link.finish(self._assignment, request)
        except SequenceGap:
            await self._equipment.link.finish(self._assignment, request.model_copy(update={"output_incomplete": True}))
        except Refused as refusal:
            log.error("end refused", extra={**self.marks, "why": refusal.message})  # noqa: TRY400  why says it all
            message = f"the relay did not take the end of the attempt ({request.reason}): {refusal.message}"
            plain = outcome.finish(
                self._assignment, Outcome(state=AttemptState.FAILED, reason=Reason.INTERNAL, message=message)
            )
            await self._equipment.link.finish(self._assignment, plain.model_copy(update={"output_incomplete": True}))

    async def _give_up_in_time(self, scope: anyio.CancelScope) -> None:
        await self._equipment.shutdown.out_of_time()
        log.warning("attempt not handed back in time", extra=self.marks)
        scope.cancel()
