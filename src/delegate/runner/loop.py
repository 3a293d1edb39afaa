"""The main loop of a runner: recovers attempts of an earlier process, then claims and runs one task at a time."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import anyio

from delegate.errors import DelegateError, RunnerInUse, RunnerRevoked, StaleFence, VersionMismatch
from delegate.failpoints import failpoint
from delegate.model import Mode
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.attempt import run_attempt
from delegate.runner.attempt.held_attempt import hold
from delegate.runner.context import RunnerContext
from delegate.runner.heartbeat import send_heartbeats
from delegate.runner.process.agent_process import end_strays, reap_orphans
from delegate.runner.tidying import tidy_up
from delegate.runner.upload import task_log
from delegate.states import Reason
from delegate.tokens import hash_token
from delegate.wire.runners import ClaimRequest

log = logging.getLogger(__name__)

CLAIM_WAIT = timedelta(seconds=25)  # how long the relay holds a claim; proxies cut idle connections after 30 or 60
LEAVE_TIMEOUT = 5.0  # seconds to check whether the relay answered a claim that was cancelled
CLEAR_TIMEOUT = 60.0  # seconds to remove an attempt's temporary files; the next attempt removes the rest
EARLY_RESPONSE_PAUSE = 0.2
CLAIMS_PER_LEASE = 4  # claims sent per lease duration while the runner is held
IN_USE_PAUSE = 1.0  # seconds between two tries to register for a slot that seems to be in use
RETRY_PAUSE = 5.0  # seconds after a failure that an immediate retry would only repeat


async def run_until_shutdown(runner_context: RunnerContext) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(runner_context.shutdown.handle_signals)
        group.start_soon(runner_context.keeper_link.listen, runner_context.shutdown)
        if runner_context.policy is not None:
            group.start_soon(send_heartbeats, runner_context, runner_context.policy)
        await RunnerLoop(runner_context).work()
        group.cancel_scope.cancel()


class RunnerLoop:
    def __init__(self, runner_context: RunnerContext) -> None:
        self._runner_context = runner_context
        self._parked: dict[str, datetime] = {}
        self._ask_token = ""  # for the agent of the last claim sent
        self._is_disk_low = False
        self._policy_problem: str | None = None
        self._is_ready = False
        self._is_in_trouble = False
        self._is_recovered = False
        self._tidy_at: datetime | None = datetime.now(UTC)  # None: nothing to tidy up until the next task

    async def work(self) -> None:
        shutdown = self._runner_context.shutdown
        try:
            with shutdown.cancel_on_drain():
                await self._register()
            while not shutdown.is_draining:
                await self._run_cycle()
        finally:
            with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
                await self._leave()

    async def _register(self) -> None:
        """After a crash of the machine the relay takes its former processes for living ones until their lease ends."""
        deadline = anyio.current_time() + self._runner_context.settings.lease.total_seconds() + RETRY_PAUSE
        is_refused = False
        while True:
            try:
                await self._runner_context.link.register()
            except RunnerInUse as problem:
                if anyio.current_time() >= deadline:
                    raise
                is_refused = True
                self._runner_context.keeper_link.report_away(problem.message)
                await anyio.sleep(IN_USE_PAUSE)
            else:
                if is_refused:
                    self._runner_context.keeper_link.report_away("")
                return

    async def _run_cycle(self) -> None:
        """Recover, claim and run one task. A failure here must not end the runner."""
        try:
            reap_orphans()
            if not self._is_recovered:
                await self._recover_attempts()
            assignment = None
            with self._runner_context.shutdown.cancel_on_drain():
                await self._runner_context.spares.refill()
                await self._make_ready()
                now = datetime.now(UTC)
                if self._tidy_at is not None and self._tidy_at <= now:
                    self._tidy_at = await tidy_up(self._runner_context, now)
                assignment = await self._claim()
            if assignment is not None and not await self._refuse(assignment):
                await self._run_attempt(assignment)
        except (RunnerRevoked, VersionMismatch):
            raise  # no retry can help
        except DelegateError as problem:
            log.warning(
                "runner paused after an error",
                extra={"runner_id": self._runner_context.link.slot_id, "why": problem.message},
            )
            await self._pause()
        except Exception:
            log.exception(
                "runner failed with an internal error", extra={"runner_id": self._runner_context.link.slot_id}
            )
            self._is_recovered = False
            await self._pause()

    async def _refuse(self, assignment: Assignment) -> bool:
        """Hand back a task that the machine's policy does not accept; the relay may have an older copy of it."""
        policy = self._runner_context.policy
        refusal = None if policy is None else policy.refusal(assignment)
        if refusal is None:
            return False
        log.warning("task refused by policy.toml", extra={"task_id": assignment.task_id, "why": refusal})
        await self._hand_back(assignment, f"the policy of the runner's machine refused it: the runner {refusal}")
        self._runner_context.policy_refused.send()
        await self._pause()  # until the relay knows the policy
        return True

    async def _make_ready(self) -> None:
        """Report once that the runner is idle, and wait for the keeper's first command."""
        if not self._is_ready:
            self._runner_context.keeper_link.report_idle()
            await self._runner_context.keeper_link.wait_for_first_command()
            self._is_ready = True

    async def _pause(self) -> None:
        """Report the trouble before waiting, so that the keeper relies on other runners meanwhile."""
        self._is_in_trouble = True
        self._runner_context.keeper_link.report_trouble()
        with self._runner_context.shutdown.cancel_on_drain():
            await anyio.sleep(RETRY_PAUSE)

    async def _claim(self) -> Assignment | None:
        now = datetime.now(UTC)
        self._parked = {agent: until for agent, until in self._parked.items() if until > now}
        untried = self._runner_context.next_untried_agent()
        # Tasks for an agent that is known to work must not wait until another agent has been tried.
        wait = min([CLAIM_WAIT if untried is None else timedelta(), *(until - now for until in self._parked.values())])
        problem = self._find_hold_reason()
        claim_id = self._runner_context.slot.claim_id()
        self._ask_token = self._runner_context.link.ask_token(claim_id)
        request = ClaimRequest(
            claim_id=claim_id,
            ask_hash=hash_token(self._ask_token),
            agents=[name for name in self._runner_context.available_agents() if name not in self._parked],
            parked=self._parked,
            wait=0 if problem or self._is_in_trouble else wait.total_seconds(),
            problem=problem,
            privacy=self._runner_context.privacy,
        )
        asked_at = anyio.current_time()
        # The relay may still answer a claim that a hold of the keeper cancelled. Its id is kept until a claim
        # completes: the next claim then returns the same assignment.
        is_answered, assignment = False, None
        with self._runner_context.keeper_link.cancel_when_held():
            assignment = await self._runner_context.link.claim(request)
            is_answered = True
            self._runner_context.task_log.touch()
        if not is_answered:
            return None
        if self._is_in_trouble:
            self._is_in_trouble = False
            self._runner_context.keeper_link.report_idle()
        if assignment is not None:
            failpoint("runner.claimed")
            self._runner_context.slot.forget_claim()
            return assignment
        if problem is not None:
            await self._wait_for_capacity(problem)
        else:
            self._runner_context.slot.forget_claim()
            if anyio.current_time() - asked_at < request.wait / 2:
                await anyio.sleep(EARLY_RESPONSE_PAUSE)  # a stopping relay answers every claim at once
        if untried is not None:
            await self._runner_context.trials.try_out(untried, self._runner_context.environ)
        return None

    async def _wait_for_capacity(self, problem: str) -> None:
        """Returns early enough for a held runner to claim again before the relay considers it dead."""
        keeper_link = self._runner_context.keeper_link
        if self._is_disk_low or problem == self._policy_problem:
            await keeper_link.wait_for_change(RETRY_PAUSE)
        elif keeper_link.hold_reason == problem:
            await keeper_link.wait_for_change(
                min(CLAIM_WAIT.total_seconds(), self._runner_context.link.timings.lease / CLAIMS_PER_LEASE)
            )

    def _find_hold_reason(self) -> str | None:
        """Why this runner accepts no tasks now; sent to the relay with every claim."""
        policy = self._runner_context.policy
        self._policy_problem = None if policy is None else policy.problem()
        return self._policy_problem or self._check_disk() or self._runner_context.keeper_link.hold_reason

    def _check_disk(self) -> str | None:
        problem = self._runner_context.disk.shortage_to_start()
        log_fields = {"runner_id": self._runner_context.link.slot_id}
        if problem is not None and not self._is_disk_low:
            log.warning("runner accepts no tasks", extra={**log_fields, "why": problem})
        elif problem is None and self._is_disk_low:
            log.info("runner accepts tasks again", extra=log_fields)
        self._is_disk_low = problem is not None
        return problem

    async def _run_attempt(self, assignment: Assignment) -> None:
        log_fields = {"task_id": assignment.task_id, "attempt_id": assignment.attempt_id}
        runner_id = self._runner_context.link.slot_id
        log.info("task claimed", extra={**log_fields, "runner_id": runner_id, "agent": assignment.agent})
        self._log_claim(assignment)
        self._runner_context.keeper_link.report_busy(assignment.attempt_id, assignment.task_id, assignment.agent)
        try:
            outcome = await run_attempt(self._runner_context, assignment, self._ask_token)
        finally:
            self._runner_context.memory_limits.end(assignment.attempt_id)
            await self._clear_temporary()
            self._runner_context.keeper_link.report_idle()
        if outcome is None or assignment.mode is not Mode.IN_PLACE:
            self._tidy_at = datetime.now(UTC)
        if outcome is not None and outcome.not_before is not None:
            self._parked[assignment.agent] = outcome.not_before
        if outcome is not None and outcome.reason is Reason.NOT_INSTALLED:
            self._runner_context.trials.mark_failed(assignment.agent)

    def _log_claim(self, assignment: Assignment) -> None:
        log_file, now = self._runner_context.task_log, datetime.now(UTC)
        log_file.begin()
        log_file.write(task_log.received(assignment), assignment.task_id, assignment.created_at or now)
        log_file.write(task_log.claimed(assignment, self._runner_context.name), assignment.task_id, now)

    async def _recover_attempts(self) -> None:
        """End the attempts of an earlier process: kill their processes first, so that no work is done twice."""
        slot = self._runner_context.slot
        found: list[Assignment] | None = None
        with self._runner_context.shutdown.cancel_on_drain():
            found = await self._runner_context.link.attempts()
        if found is None:
            return
        held = {assignment.attempt_id: assignment for assignment in found}
        for attempt_id in sorted({*held, *slot.spooled_attempts()}):
            strays = end_strays(attempt_id)
            if strays:
                log.warning("stray processes killed", extra={"attempt_id": attempt_id, "count": len(strays)})
            self._runner_context.memory_limits.end(attempt_id)
        await self._clear_temporary()
        if held:
            slot.forget_claim()  # the relay answered it, even if the answer was lost
        for assignment in found:
            await self._recover_attempt(assignment)
        for attempt_id in set(slot.spooled_attempts()) - set(held):
            slot.remove_spool(attempt_id)
        slot.forget_stop()
        self._is_recovered = True

    async def _clear_temporary(self) -> None:
        with anyio.move_on_after(CLEAR_TIMEOUT, shield=True):
            await anyio.to_thread.run_sync(self._runner_context.slot.clear_temporary, abandon_on_cancel=True)

    async def _recover_attempt(self, assignment: Assignment) -> None:
        spool = self._runner_context.slot.spool(assignment.attempt_id)
        if not spool.exists():
            with self._runner_context.shutdown.cancel_on_drain():
                await self._hand_back(assignment, "the runner was stopped before the attempt started")
            return
        if self._runner_context.slot.was_asked_to_stop():
            interrupted = outcomes.release_interrupted(assignment)
        else:
            interrupted = outcomes.release_as_lost("the runner was restarted during the attempt")
        outcome = outcomes.load_outcome(spool) or interrupted
        async with hold(self._runner_context, assignment) as held:
            await held.report(held.save(outcome))

    async def _hand_back(self, assignment: Assignment, message: str) -> None:
        try:
            await self._runner_context.link.end(
                assignment, outcomes.end_request(assignment.fence, outcomes.hand_back(message))
            )
        except StaleFence:
            return
        log.info("attempt handed back", extra={"task_id": assignment.task_id, "attempt_id": assignment.attempt_id})

    async def _leave(self) -> None:
        await self._runner_context.spares.discard()
        if self._runner_context.slot.has_claim():
            # The relay may have answered the claim just as it was cancelled.
            for assignment in await self._runner_context.link.attempts():
                await self._hand_back(assignment, "the runner was stopped before the attempt started")
            self._runner_context.slot.forget_claim()
        await self._runner_context.link.leave()
        await self._runner_context.link.aclose()
