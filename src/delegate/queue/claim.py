"""Assigns the next task to a runner. A claim first takes back the tasks of silent runners."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.model import PAID_AGENTS, Attempt, EventKind, Priority, Privacy, Runner, RunnerSlot, Task, new_attempt_id
from delegate.queue.checkpoints import NO_CONTINUATION, Continuation, read_continuation
from delegate.queue.limits import QueueRules, own_budget_left, start_of_day
from delegate.queue.placement import LaneScope, scope_of
from delegate.queue.questions import drop_unanswered
from delegate.queue.rescue import HEARTBEATS_PER_LEASE, RescuedTask, has_expired, log_rescued, rescue_expired
from delegate.queue.sessions import last_attempt, session_elsewhere, with_session
from delegate.states import AttemptState
from delegate.store.attempts import (
    attempt_of_claim,
    insert_attempt,
    last_message_seen,
    lock_budget,
    reserved_budget,
    running_attempts,
    spent_since,
)
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.questions import keep_ask_hash
from delegate.store.runners import get_runner, slot_seen_at, touch_slot
from delegate.store.tasks import Head, get_task, keep_session, queued_heads, queued_lanes, take_queued

log = logging.getLogger(__name__)
AGEING = timedelta(
    minutes=30
)  # a task of P2 that could start counts as P1 after this time, so that P1 does not starve it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQuery:
    """A runner's request for work. The claim id makes it safe to repeat after a lost response."""

    claim_id: str
    slot: RunnerSlot
    agents: tuple[str, ...]
    parked: dict[str, datetime]
    problem: str | None = None  # why the runner accepts no work now
    ask_hash: str | None = None  # of the token with which the agent of this claim may ask questions
    privacy: Privacy = Privacy.FULL  # what the runner will report about the task

    @property
    def scope(self) -> LaneScope:
        return self._scope_of(agent for agent in self.agents if agent not in self.parked)

    @property
    def free_scope(self) -> LaneScope:
        """The lanes of agents that the daily budget does not limit."""
        return self._scope_of(agent for agent in self.agents if agent not in {*self.parked, *PAID_AGENTS})

    def _scope_of(self, agents: Iterable[str]) -> LaneScope:
        return scope_of(self.slot.runner, agents if self.problem is None else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A task that a runner holds."""

    task: Task
    attempt: Attempt
    continuation: Continuation = NO_CONTINUATION


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """The task that a runner gets, and the tasks that the claim took back from lost runners."""

    held: ClaimedTask | None = None
    rescued: tuple[RescuedTask, ...] = ()


async def claim(database: Database, query: ClaimQuery, rules: QueueRules, now: datetime) -> ClaimResult:
    claimed = await database.write("claim", lambda connection: _claim(connection, query, rules, now))
    log_rescued(claimed.rescued)
    if (held := claimed.held) is not None:
        log.info(
            "task claimed",
            extra={
                "task_id": held.task.id,
                "attempt_id": held.attempt.id,
                "runner_id": query.slot.id,
                "fence": held.attempt.fence,
            },
        )
    return claimed


async def claim_if_any(database: Database, query: ClaimQuery, rules: QueueRules, now: datetime) -> ClaimResult:
    """Claim only if a read finds work, so that the repeated requests of an idle pool write nothing."""
    if await database.read(lambda connection: _may_have_work(connection, query, rules, now)):
        return await claim(database, query, rules, now)
    return ClaimResult()


def _may_have_work(connection: Connection, query: ClaimQuery, rules: QueueRules, now: datetime) -> bool:
    seen_at = slot_seen_at(connection, query.slot.id)
    if seen_at is None or now - seen_at >= rules.lease / HEARTBEATS_PER_LEASE:
        return True
    return bool(_heads(connection, query.scope, now)) or has_expired(connection, rules, query.scope, now)


def _heads(connection: Connection, scope: LaneScope, now: datetime) -> list[Head]:
    return queued_heads(connection, scope.choose(queued_lanes(connection, scope.prefixes)), now)


async def read_claimed_tasks(database: Database, slot: RunnerSlot) -> list[ClaimedTask]:
    """Return what a slot holds, for a process that has just restarted."""
    return await database.read(lambda connection: _read_claimed_tasks(connection, slot))


def _read_claimed_tasks(connection: Connection, slot: RunnerSlot) -> list[ClaimedTask]:
    found = (_read_claimed_task(connection, attempt) for attempt in running_attempts(connection, slot.id))
    return [held for held in found if held is not None]


def _read_claimed_task(connection: Connection, attempt: Attempt) -> ClaimedTask | None:
    task = get_task(connection, attempt.task_id)
    runner = None if task is None else get_runner(connection, attempt.runner_id)
    if task is None:
        return None
    found = read_continuation(connection, task) if runner is None else _continuation(connection, task, runner)
    return ClaimedTask(task=task, attempt=attempt, continuation=found)


def _claim(connection: Connection, query: ClaimQuery, rules: QueueRules, now: datetime) -> ClaimResult:
    has = tuple(dict.fromkeys((*query.agents, *query.parked)))  # a runner may omit a parked agent from its request
    is_wanted = touch_slot(connection, query.slot.id, agents=has, parked=query.parked, problem=query.problem, now=now)
    earlier = attempt_of_claim(connection, query.claim_id)
    if earlier is not None:
        return ClaimResult(held=_repeat_claim(connection, query, earlier))
    if not is_wanted:
        return ClaimResult()
    rescued = rescue_expired(connection, rules, query.scope, now)
    return ClaimResult(held=_claim_next(connection, query, rules, now), rescued=tuple(rescued))


def _claim_next(connection: Connection, query: ClaimQuery, rules: QueueRules, now: datetime) -> ClaimedTask | None:
    if rules.daily_budget_usd is not None:
        lock_budget(connection)
    left = budget_left(connection, rules, now)
    heads = _heads(connection, query.scope if left is None or left > 0 else query.free_scope, now)
    for head in sorted(heads, key=lambda head: (*rank(head.priority, head.claimable_at), head.seq)):
        task = take_queued(connection, head, now)
        if task is not None:
            task = with_session(connection, task)
            return _begin_attempt(connection, query, task, _budget(connection, task, left), now)
    return None


def rank(priority: Priority, claimable_at: datetime) -> tuple[bool, datetime]:
    """Return the sort key of the queue: P0 first, then the time since when it could start, shifted by the priority."""
    return priority is not Priority.P0, claimable_at + priority * AGEING


def _repeat_claim(connection: Connection, query: ClaimQuery, earlier: Attempt) -> ClaimedTask | None:
    if earlier.slot_id != query.slot.id or earlier.state is not AttemptState.RUNNING:
        return None
    keep_ask_hash(connection, earlier, query.ask_hash)  # the repeated request may carry a new token
    return _read_claimed_task(connection, earlier)


def _begin_attempt(
    connection: Connection, query: ClaimQuery, task: Task, budget: float | None, now: datetime
) -> ClaimedTask:
    attempt = Attempt(
        id=new_attempt_id(),
        task_id=task.id,
        slot_id=query.slot.id,
        runner_id=query.slot.runner.id,
        claim_id=query.claim_id,
        fence=task.fence,
        number=task.attempts,
        state=AttemptState.RUNNING,
        started_at=now,
        renewed_at=now,
        budget_usd=budget,
        messages_seen=last_message_seen(connection, task.id) if task.session_id else 0,
    )
    by = query.slot.runner
    task, notes = _leave_session(connection, task, attempt, by)
    insert_attempt(connection, attempt, ask_hash=query.ask_hash)
    task = drop_unanswered(connection, task)
    data: dict[str, object] = {"runnerId": by.id, "runner": by.name, "attempt": task.attempts}
    if query.privacy is not Privacy.FULL:
        data["privacy"] = query.privacy
    claimed = NewEvent(task_id=task.id, attempt_id=attempt.id, kind=EventKind.CLAIMED, at=now, data=data)
    append_events(connection, [claimed, *notes])
    return ClaimedTask(task=task, attempt=attempt, continuation=_continuation(connection, task, by))


def _leave_session(connection: Connection, task: Task, attempt: Attempt, by: Runner) -> tuple[Task, list[NewEvent]]:
    """Drop the agent's session if another runner has it, and say so."""
    other = _session_elsewhere(connection, task, by)
    if other is None:
        return task, []
    task = replace(task, session_id=None)
    keep_session(connection, task)
    text = f"continues on {by.name} in a new session, from the last pushed commit: {other.name} has its session"
    note = NewEvent(
        task_id=task.id, attempt_id=attempt.id, kind=EventKind.WARNING, at=attempt.started_at, data={"text": text}
    )
    return task, [note]


def _session_elsewhere(connection: Connection, task: Task, by: Runner) -> Runner | None:
    """No query for the first attempt of a new lineage, the usual claim."""
    if task.fence <= 1 and task.retry_of is None:
        return None
    return session_elsewhere(connection, task, by, last_attempt(connection, task, before=task.fence))


def _continuation(connection: Connection, task: Task, by: Runner) -> Continuation:
    found = read_continuation(connection, task)
    if found.checkpoint is None or _session_elsewhere(connection, task, by) is None:
        return found
    # What the other runner has and did not push is not here: the agent does that part again.
    return replace(found, checkpoint=replace(found.checkpoint, session_id=None, is_work_done=False))


def budget_left(connection: Connection, rules: QueueRules, now: datetime) -> float | None:
    """Return what paid agents may still spend today, less the budgets of running attempts. None: no limit."""
    if rules.daily_budget_usd is None:
        return None
    # In this order, an attempt that ends between the two reads is counted twice rather than not at all.
    reserved = reserved_budget(connection)
    return rules.daily_budget_usd - spent_since(connection, start_of_day(now)) - reserved


def _budget(connection: Connection, task: Task, left: float | None) -> float | None:
    """Return what the next attempt may spend: the rest of the task's budget, or of the day's if that is less."""
    if task.agent not in PAID_AGENTS:
        return None
    own = own_budget_left(connection, task)
    return own if left is None else left if own is None else min(own, left)
