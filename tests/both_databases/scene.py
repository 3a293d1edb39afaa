"""A relay's database with a clock that tests move, and shortcuts for the functions of the queue."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio

from delegate.config.settings import Settings
from delegate.intake.retry import resume, retry
from delegate.intake.submit import Request, submit
from delegate.model import (
    Attempt,
    EffectKind,
    EffectState,
    Event,
    EventKind,
    Outcome,
    Priority,
    Runner,
    RunnerId,
    RunnerSlot,
    Stream,
    Task,
    TaskId,
    slot_id,
)
from delegate.queue.claim import ClaimedTask, ClaimQuery, claim
from delegate.queue.finish import cancel, finish, release
from delegate.queue.lease_guard import LeaseRef
from delegate.queue.limits import QueueRules
from delegate.queue.rescue import rescue
from delegate.queue.waiting import QueueSnapshot, read_snapshot
from delegate.report.effects import EffectReport, record_effect
from delegate.report.follow import read_full_task
from delegate.report.record import AttemptSignals, ReportItem, record, renew
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.database import Connection, Database
from delegate.store.runners import get_runner, insert_runner, put_slot, set_orders
from delegate.store.tasks import page_of_tasks

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
LEASE = timedelta(minutes=2)
RECLAIM_AFTER = timedelta(minutes=10)
DONE = Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="ended well", exit_code=0)
HANDED_BACK = Outcome(state=AttemptState.RELEASED, reason=Reason.HANDED_BACK, message="the runner stops")
COMMIT = "1" * 40
GONE = Outcome(state=AttemptState.LOST, reason=Reason.LOST_RUNNER, message="the runner was killed")


def runner(name: str = "anna", machine: str = "desk", agents: Sequence[str] = ("shell", "claude")) -> RunnerSlot:
    """A process of the machine's pool."""
    pool = Runner(
        id=RunnerId(f"runner-{machine}"), name=machine, machine=machine, version="1", paired_at=NOON, seen_at=NOON
    )
    return RunnerSlot(
        id=slot_id(pool.id, name),
        runner=pool,
        name=name,
        pid=1,
        version="1",
        agents=tuple(agents),
        registered_at=NOON,
        seen_at=NOON,
    )


def put_process(connection: Connection, new: RunnerSlot) -> None:
    if get_runner(connection, new.runner.id) is None:
        insert_runner(connection, new.runner, token_hash=None)
        set_orders(connection, new.runner)
    put_slot(connection, new, token_hash=secrets.token_hex(8))


def holder(held: ClaimedTask) -> LeaseRef:
    return LeaseRef(slot_id=held.attempt.slot_id, attempt_id=held.attempt.id, fence=held.attempt.fence)


def only_reading(database: Database) -> Database:
    """The same one, where PostgreSQL refuses everything but plain reads."""
    return Database(database.engine.execution_options(postgresql_readonly=True), None)


def output(seq: int, data: bytes, stream: Stream = Stream.STDOUT) -> ReportItem:
    return ReportItem(seq=seq, through=seq, at=NOON, kind=EventKind.OUTPUT, stream=stream, output=data)


def fact(seq: int, kind: EventKind = EventKind.MESSAGE, **data: object) -> ReportItem:
    return ReportItem(seq=seq, through=seq, at=NOON, kind=kind, data=data)


def skipped(seq: int, through: int, size: int) -> ReportItem:
    return ReportItem(seq=seq, through=through, at=NOON, kind=EventKind.SKIPPED, skipped_bytes=size)


def parked_until(moment: datetime, **more: Any) -> Outcome:
    return Outcome(state=AttemptState.RELEASED, reason=Reason.USAGE_LIMIT, message="limit", not_before=moment, **more)


@dataclass(slots=True)
class Scene:
    database: Database
    now: datetime = NOON
    rules: QueueRules = field(default_factory=lambda: QueueRules(lease=LEASE, reclaim_after=RECLAIM_AFTER))

    async def register(self, new: RunnerSlot) -> RunnerSlot:
        await self.database.write("register", lambda c: put_process(c, new))
        return new

    async def submit(self, prompt: str = "true", **fields: Any) -> Task:
        here = {} if "repository" in fields else {"machine": "desk", "working_directory": "/"}
        fields = {"agent": "shell", "priority": Priority.P2, **here, **fields}
        return (await submit(self.database, Request(prompt=prompt, **fields), Settings(), self.now)).task

    async def retry(self, task: Task) -> Task:
        return (await retry(self.database, task.id, None, self.now)).task

    async def resume(self, task: Task, context: str | None = None) -> Task:
        return (await resume(self.database, task.id, context, request_key=None, now=self.now)).task

    async def claim(
        self, by: RunnerSlot | None = None, claim_id: str | None = None, **parked: datetime
    ) -> ClaimedTask | None:
        by = by or runner()
        query = ClaimQuery(claim_id=claim_id or secrets.token_hex(8), slot=by, agents=by.agents, parked=parked)
        return (await claim(self.database, query, self.rules, self.now)).held

    async def claim_at_once(self, runners: int) -> list[ClaimedTask]:
        """What so many runners get that claim at the same time."""
        taken: list[ClaimedTask] = []

        async def ask(number: int) -> None:
            if held := await self.claim(runner(f"r{number}")):
                taken.append(held)

        async with anyio.create_task_group() as group:
            for number in range(runners):
                group.start_soon(ask, number)
        return taken

    async def take(self, by: RunnerSlot | None = None, **fields: Any) -> ClaimedTask:
        """A new task, in the hands of a runner."""
        task = await self.submit(**fields)
        held = await self.claim(by)
        assert held is not None
        assert held.task.id == task.id
        return held

    async def renew(self, held: ClaimedTask, messages_seen: int = 0) -> AttemptSignals:
        return (await renew(self.database, holder(held), messages_seen, self.now))[1]

    async def record(self, held: ClaimedTask, *items: ReportItem) -> AttemptSignals:
        return (await record(self.database, holder(held), items, self.now))[1]

    async def announce(self, held: ClaimedTask, state: EffectState, **fields: Any) -> AttemptSignals:
        fields = {"kind": EffectKind.PUSH, "target": "work-1", "expected": COMMIT, "external_id": None, **fields}
        return (await record_effect(self.database, holder(held), EffectReport(state=state, **fields), self.now))[1]

    async def finish(self, held: ClaimedTask, outcome: Outcome = DONE, *, next_seq: int | None = 0) -> Task:
        return (await finish(self.database, holder(held), outcome, next_seq=next_seq, now=self.now)).task

    async def release(self, held: ClaimedTask, outcome: Outcome = HANDED_BACK) -> Task:
        return (await release(self.database, holder(held), outcome, self.now)).task

    async def cancel(self, task: Task, reason: str = "") -> Task:
        return (await cancel(self.database, task.id, reason, self.now)).task

    async def tick(self) -> list[Task]:
        return [moved.task for moved in await rescue(self.database, self.rules, self.now)]

    async def pass_time(self, span: timedelta) -> None:
        """The relay lives on meanwhile, but has not looked around in the last moment."""
        end = self.now + span
        while end - self.now > LEASE:
            self.now += LEASE
            await self.tick()
        self.now = end

    async def task(self, of: Task | ClaimedTask) -> Task:
        return (await read_full_task(self.database, id_of(of), self.rules, self.now)).task

    async def attempts(self, of: Task | ClaimedTask) -> list[Attempt]:
        return (await read_full_task(self.database, id_of(of), self.rules, self.now)).attempts

    async def events(self, of: Task | ClaimedTask) -> list[Event]:
        return (await read_full_task(self.database, id_of(of), self.rules, self.now)).events

    async def page(
        self, *, states: Sequence[TaskState] = (), before: int | None = None, limit: int = 10
    ) -> list[tuple[int, Task]]:
        """The newest first, each with its position."""
        return await self.database.read(partial(page_of_tasks, states=states, before=before, limit=limit))

    async def snapshot(self, *tasks: Task, now: datetime | None = None) -> QueueSnapshot:
        return await self.database.read(partial(read_snapshot, tasks=tasks, rules=self.rules, now=now or self.now))

    async def kinds(self, of: Task | ClaimedTask) -> list[EventKind]:
        return [event.kind for event in await self.events(of)]

    def with_budget(self, usd: float) -> None:
        self.rules = replace(self.rules, daily_budget_usd=usd)


def id_of(of: Task | ClaimedTask) -> TaskId:
    return of.task.id if isinstance(of, ClaimedTask) else of.id
