"""The life of a runner: settle what an earlier life left, then claim and carry out one task after the other."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import anyio

from delegate.errors import DelegateError, StaleFence
from delegate.failpoints import failpoint
from delegate.model import Mode
from delegate.runner.attempt import outcome
from delegate.runner.attempt.attempt import carry_out
from delegate.runner.attempt.holding import Holding
from delegate.runner.attempt.outcome import End
from delegate.runner.context import Equipment
from delegate.runner.process.agent_process import end_strays
from delegate.runner.tidying import tidy_up
from delegate.states import Reason
from delegate.tokens import hash_of
from delegate.wire.runners import Assignment, ClaimAnswer, ClaimRequest, FinishRequest

log = logging.getLogger(__name__)

CLAIM_WAIT = timedelta(seconds=25)  # the relay holds a claim so long; proxies cut quiet connections after 30 or 60
LEAVE_TIME = 5.0  # seconds to make sure that no claim was answered while we broke it off
EARLY_PAUSE = 0.2
SIGNS_OF_LIFE = 4  # in the time of a lease
PAUSE = 5.0  # seconds after something that trying again at once would only meet again


async def live(equipment: Equipment) -> None:
    """Work until asked to go."""
    async with anyio.create_task_group() as group:
        group.start_soon(equipment.shutdown.heed_signals)
        group.start_soon(equipment.orders.heed, equipment.shutdown)
        await Runner(equipment).work()
        group.cancel_scope.cancel()


class Runner:
    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._parked: dict[str, datetime] = {}
        self._ask_token = ""  # for the agent of the claim that was sent last
        self._lacks_room = False
        self._is_ready = False
        self._is_in_trouble = False
        self._is_settled = False
        self._tidy_at: datetime | None = datetime.now(UTC)  # None: until the next task there is nothing to tidy up

    async def work(self) -> None:
        shutdown = self._equipment.shutdown
        try:
            with shutdown.ends_idling():
                await self._equipment.link.register()
            while not shutdown.is_draining:
                await self._turn()
        finally:
            with anyio.move_on_after(LEAVE_TIME, shield=True):
                await self._leave()

    async def _turn(self) -> None:
        """Settle what is left, claim, carry out. What goes wrong here must not end the runner."""
        try:
            if not self._is_settled:
                await self._settle()
            answer = None
            with self._equipment.shutdown.ends_idling():
                await self._equipment.spares.refill()
                await self._make_ready()
                now = datetime.now(UTC)
                if self._tidy_at is not None and self._tidy_at <= now:
                    self._tidy_at = await tidy_up(self._equipment, now)
                answer = await self._claim()
            if answer is not None and answer.assignment is not None:
                await self._carry_out(answer.assignment)
        except DelegateError as problem:
            log.warning("runner pauses", extra={"runner_id": self._equipment.link.runner_id, "why": problem.message})
            await self._pause()
        except Exception:
            log.exception("runner met a defect", extra={"runner_id": self._equipment.link.runner_id})
            self._is_settled = False
            await self._pause()

    async def _make_ready(self) -> None:
        """Once: from here on a task would begin at once, if the keeper lets us have one."""
        if not self._is_ready:
            self._equipment.orders.say_idle()
            await self._equipment.orders.first_word()
            self._is_ready = True

    async def _pause(self) -> None:
        """The keeper must not wait for what we cannot do: others may be well."""
        self._is_in_trouble = True
        self._equipment.orders.say_trouble()
        with self._equipment.shutdown.ends_idling():
            await anyio.sleep(PAUSE)

    async def _claim(self) -> ClaimAnswer:
        self._equipment.slot.remember(self._equipment.link.runner_id)
        now = datetime.now(UTC)
        self._parked = {agent: until for agent, until in self._parked.items() if until > now}
        untried = self._equipment.untried()
        # What waits for an agent that is known to work must not wait for the trial of another.
        wait = min([CLAIM_WAIT if untried is None else timedelta(), *(until - now for until in self._parked.values())])
        problem = self._look_for_room()
        claim_id = self._equipment.slot.claim_id()
        self._ask_token = self._equipment.link.ask_token(claim_id)
        request = ClaimRequest(
            claim_id=claim_id,
            ask_hash=hash_of(self._ask_token),
            agents=[name for name in self._equipment.available() if name not in self._parked],
            parked=self._parked,
            wait=0 if problem or self._is_in_trouble else wait.total_seconds(),
            problem=problem,
        )
        asked_at = anyio.current_time()
        answer = await self._unless_held(request)
        if answer is None:
            return ClaimAnswer()
        if self._is_in_trouble:
            self._is_in_trouble = False
            self._equipment.orders.say_idle()
        if answer.assignment is not None:
            failpoint("runner.claimed")
            self._equipment.slot.forget_claim()
            return answer
        if problem is not None:
            await self._wait_for_room(problem)
        else:
            self._equipment.slot.forget_claim()
            if anyio.current_time() - asked_at < request.wait / 2:
                await anyio.sleep(EARLY_PAUSE)  # a relay that is stopping sends everybody away at once
        if untried is not None:
            await self._equipment.trials.try_out(untried, self._equipment.environ)
        return answer

    async def _unless_held(self, request: ClaimRequest) -> ClaimAnswer | None:
        """None when the keeper held us back meanwhile and the claim was broken off. The relay may have answered it all
        the same, or may yet: its id is kept until a claim was heard to its end, so that the next one brings it."""
        with self._equipment.orders.may_be_held():
            return await self._equipment.link.claim(request)
        return None

    async def _wait_for_room(self, problem: str) -> None:
        """A runner that is held back says so again often enough to count as alive."""
        orders = self._equipment.orders
        if self._lacks_room:
            await orders.change(PAUSE)
        elif orders.hold == problem:
            await orders.change(min(CLAIM_WAIT.total_seconds(), self._equipment.link.timings.lease / SIGNS_OF_LIFE))

    def _look_for_room(self) -> str | None:
        """Why this runner takes no work now; said with every claim to the relay."""
        return self._lack_of_disk() or self._equipment.orders.hold

    def _lack_of_disk(self) -> str | None:
        problem = self._equipment.disk.lacks_room()
        marks = {"runner_id": self._equipment.link.runner_id}
        if problem is not None and not self._lacks_room:
            log.warning("runner takes no work", extra={**marks, "why": problem})
        elif problem is None and self._lacks_room:
            log.info("runner takes work again", extra=marks)
        self._lacks_room = problem is not None
        return problem

    async def _carry_out(self, assignment: Assignment) -> None:
        marks = {"task_id": assignment.task_id, "attempt_id": assignment.attempt_id}
        runner_id = self._equipment.link.runner_id
        log.info("task claimed", extra={**marks, "runner_id": runner_id, "agent": assignment.agent})
        self._equipment.orders.say_busy(assignment.attempt_id, assignment.agent)
        try:
            end = await carry_out(self._equipment, assignment, self._ask_token)
        finally:
            self._equipment.ceilings.end(assignment.attempt_id)
            self._equipment.orders.say_idle()
        if end is None or assignment.mode is not Mode.IN_PLACE:
            self._tidy_at = datetime.now(UTC)
        if isinstance(end, FinishRequest) and end.outcome == "parked" and end.not_before is not None:
            self._parked[assignment.agent] = end.not_before
        if isinstance(end, FinishRequest) and end.reason is Reason.NOT_INSTALLED:
            self._equipment.trials.doubt(assignment.agent)

    async def _settle(self) -> None:
        """Bring attempts of an earlier life to their end: their processes first, so that nobody works twice."""
        slot = self._equipment.slot
        found: list[Assignment] | None = None
        with self._equipment.shutdown.ends_idling():
            found = await self._equipment.link.attempts()
        if found is None:
            return
        held = {assignment.attempt_id: assignment for assignment in found}
        for attempt_id in sorted({*held, *slot.spooled()}):
            strays = end_strays(attempt_id)
            if strays:
                log.warning("stray processes ended", extra={"attempt_id": attempt_id, "count": len(strays)})
            self._equipment.ceilings.end(attempt_id)
        if held:
            slot.forget_claim()  # it was answered, even if we did not hear it
        for assignment in found:
            await self._settle_attempt(assignment)
        for attempt_id in set(slot.spooled()) - set(held):
            slot.remove_spool(attempt_id)
        self._is_settled = True

    async def _settle_attempt(self, assignment: Assignment) -> None:
        spool = self._equipment.slot.spool(assignment.attempt_id)
        if not spool.exists():
            with self._equipment.shutdown.ends_idling():
                await self._hand_back(assignment, "the runner was stopped before it began")
            return

        async def decide() -> End:
            return outcome.noted(spool) or outcome.loss(assignment, "the runner was restarted while it worked")

        await Holding(self._equipment, assignment).until(decide)

    async def _hand_back(self, assignment: Assignment, message: str) -> None:
        try:
            await self._equipment.link.release(assignment, outcome.hand_back(assignment, message))
        except StaleFence:
            return
        log.info("attempt handed back", extra={"task_id": assignment.task_id, "attempt_id": assignment.attempt_id})

    async def _leave(self) -> None:
        await self._equipment.spares.discard()
        if self._equipment.slot.has_claim():
            # The relay may have answered the claim in the moment we broke it off.
            for assignment in await self._equipment.link.attempts():
                await self._hand_back(assignment, "the runner was stopped before it began")
            self._equipment.slot.forget_claim()
        await self._equipment.link.leave()
        await self._equipment.link.aclose()
