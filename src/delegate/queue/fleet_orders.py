"""What people order about runners: drain, resume, revoke, rename. And what runners report about themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from delegate.errors import Forbidden, KeeperPool, NoSuchRunner, RunnerNameUsed, RunnerRevoked
from delegate.model import Actor, Attempt, Runner, RunnerAgent, RunnerId, Task
from delegate.queue.fleet import MachineFacts, check_version, person_name
from delegate.queue.limits import QueueRules
from delegate.queue.rescue import RescuedTask, log_rescued, lose_attempts
from delegate.queue.runner_states import RunnerActivity, RunnerCondition, RunnerCounts, condition_of, count_conditions
from delegate.store.attempts import HeldWork, attempts_held_by, held_work, last_attempt_of
from delegate.store.database import Connection, Database
from delegate.store.people import record_audit
from delegate.store.runners import (
    SeenRunner,
    get_runner,
    is_name_used,
    lock_fleet,
    page_of_runners,
    runner_by_name,
    seen_runners,
    set_orders,
    slots_of,
    update_runner,
)
from delegate.store.tasks import get_task

log = logging.getLogger(__name__)
Order = Callable[[Connection, Runner], Runner]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReport:
    """A runner with its state, what it holds, and the last attempt that ended."""

    runner: Runner
    seen_at: datetime
    condition: RunnerCondition
    paired_by: str
    agents: tuple[RunnerAgent, ...]
    slots: int
    held: tuple[tuple[Attempt, Task], ...] = ()
    last: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPage:
    reports: list[RunnerReport]
    counts: RunnerCounts


async def read_runners(
    database: Database, rules: QueueRules, *, after: tuple[str, str] | None, limit: int, now: datetime
) -> RunnerPage:
    """Read a page of runners by name, and the counts of all."""

    def read(connection: Connection) -> RunnerPage:
        activities = _read_activities(connection)
        counts = count_conditions(condition_of(one, rules.lease, now) for one in activities.values())
        page = page_of_runners(connection, after=after, limit=limit)
        return RunnerPage(
            reports=[_report(connection, one, activities[one.id], rules, now) for one in page], counts=counts
        )

    return await database.read(read)


async def read_runner(database: Database, rules: QueueRules, runner_id: RunnerId, now: datetime) -> RunnerReport:
    def read(connection: Connection) -> RunnerReport:
        runner = get_runner(connection, runner_id)
        if runner is None:
            raise NoSuchRunner(runner_id=runner_id)
        return _report(connection, runner, _read_activities(connection)[runner_id], rules, now)

    return await database.read(read)


async def count_runners(database: Database, rules: QueueRules, now: datetime) -> RunnerCounts:
    activities = await database.read(_read_activities)
    return count_conditions(condition_of(one, rules.lease, now) for one in activities.values())


def _read_activities(connection: Connection) -> dict[RunnerId, RunnerActivity]:
    held: dict[RunnerId, list[HeldWork]] = {}
    for work in held_work(connection):
        held.setdefault(work.runner_id, []).append(work)
    return {one.id: _activity(one, held.get(one.id, [])) for one in seen_runners(connection)}


def _activity(one: SeenRunner, held: list[HeldWork]) -> RunnerActivity:
    return RunnerActivity(
        seen_at=max([one.seen_at, *(work.renewed_at for work in held)]),
        holds=[work.has_begun for work in held],
        is_draining=one.draining_at is not None,
        is_revoked=one.revoked_at is not None,
    )


def _report(
    connection: Connection, runner: Runner, activity: RunnerActivity, rules: QueueRules, now: datetime
) -> RunnerReport:
    processes = slots_of(connection, runner.id)
    known = {name: RunnerAgent(name=name) for process in processes for name in process.agents}
    held = [(attempt, get_task(connection, attempt.task_id)) for attempt in attempts_held_by(connection, runner.id)]
    return RunnerReport(
        runner=runner,
        seen_at=activity.seen_at,
        condition=condition_of(activity, rules.lease, now),
        agents=runner.agents or tuple(known.values()),
        slots=runner.slots if runner.is_paired else len(processes),
        paired_by=person_name(connection, runner.paired_by),
        held=tuple((attempt, task) for attempt, task in held if task is not None),
        last=last_attempt_of(connection, runner.id),
    )


async def heartbeat(
    database: Database, runner: Runner, facts: MachineFacts, problem: str | None, now: datetime
) -> Runner:
    """Record what a paired runner reports about itself; returns it with the orders for it."""
    check_version(facts.version)

    def write(connection: Connection) -> Runner:
        known = get_runner(connection, runner.id)
        if known is None or known.revoked_at is not None:
            raise RunnerRevoked(name=runner.name)
        seen = replace(facts.apply_to(known, now), problem=problem)
        update_runner(connection, seen)
        return seen

    return await database.write("heartbeat", write)


async def drain(database: Database, name: str, by: Actor, *, is_admin: bool, now: datetime) -> Runner:
    """Let the runner finish what it holds, and give it nothing new."""
    return await _order(database, "drain", name, by, is_admin=is_admin, now=now, order=_draining_since(now))


async def resume_runner(database: Database, name: str, by: Actor, *, is_admin: bool, now: datetime) -> Runner:
    return await _order(database, "resume", name, by, is_admin=is_admin, now=now, order=_draining_since(None))


def _draining_since(moment: datetime | None) -> Order:
    return lambda _, runner: replace(runner, draining_at=moment and (runner.draining_at or moment))


async def rename(database: Database, name: str, new_name: str, by: Actor, *, is_admin: bool, now: datetime) -> Runner:
    def order(connection: Connection, runner: Runner) -> Runner:
        if runner.name != new_name and is_name_used(connection, new_name):
            raise RunnerNameUsed(name=new_name)
        return replace(runner, name=new_name)

    return await _order(database, "rename", name, by, is_admin=is_admin, now=now, order=order)


async def revoke(
    database: Database, name: str, by: Actor, *, is_admin: bool, now: datetime
) -> tuple[Runner, list[RescuedTask]]:
    """Refuse the runner from now on; what it holds ends or is queued again, as if the runner were lost."""
    lost: list[RescuedTask] = []

    def order(connection: Connection, runner: Runner) -> Runner:
        if not runner.is_paired:
            raise KeeperPool(name=runner.name)
        lost[:] = lose_attempts(connection, attempts_held_by(connection, runner.id, for_update=True), now)
        return replace(runner, revoked_at=runner.revoked_at or now)

    runner = await _order(database, "revoke", name, by, is_admin=is_admin, now=now, order=order)
    log_rescued(lost)
    return runner, lost


async def _order(
    database: Database, verb: str, name: str, by: Actor, *, is_admin: bool, now: datetime, order: Order
) -> Runner:
    def write(connection: Connection) -> Runner:
        lock_fleet(connection)
        runner = runner_by_name(connection, name)
        if runner is None or (runner.revoked_at is not None and verb != "revoke"):
            raise NoSuchRunner(runner_id=name)
        if not is_admin and (runner.paired_by is None or runner.paired_by != by.person_id):
            raise Forbidden(what=f"{runner.name}; its owner and admins may do this")
        ordered = order(connection, runner)
        if ordered != runner:
            set_orders(connection, ordered)
            details = {"name": ordered.name} if ordered.name != runner.name else {}
            record_audit(connection, by, f"runner.{verb}", runner.name, now=now, details=details)
        return ordered

    ordered = await database.write(f"runner.{verb}", write)
    log.info("runner ordered", extra={"runner_id": ordered.id, "runner": ordered.name, "order": verb})
    return ordered
