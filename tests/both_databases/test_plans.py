"""The cost of a claim must not grow with the queue: none of its statements may scan all rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from tests.both_databases.crowd import queue_up
from tests.both_databases.scene import DONE, NOON, Scene, fact, runner

from delegate.config.settings import Settings
from delegate.intake.submit import Request, submit
from delegate.model import EffectState, EventKind, Mode
from delegate.placement import Placement, lane_of
from delegate.queue.placement import scope_of
from delegate.report.graph import graph_of
from delegate.states import AttemptState, TaskState
from delegate.store.database import Connection, Database
from delegate.store.tables import event_table
from delegate.store.tasks import queued_lanes

pytestmark = pytest.mark.anyio
QUEUED = 10_000
Statement = tuple[str, Any]


@contextmanager
def overheard(*verbs: str) -> Iterator[list[Statement]]:
    """The statements that are sent meanwhile, with their parameters; without a choice, those that read and change."""
    statements: list[Statement] = []

    def listen(_connection: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, many: bool) -> None:
        if sql.startswith(verbs or ("SELECT", "UPDATE", "WITH")):
            statements.append((sql, parameters[0] if many else parameters))

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


def fill(connection: Connection) -> None:
    tasks = queue_up(connection, QUEUED)
    submitted = {"kind": EventKind.SUBMITTED, "at": NOON, "data": {}}
    connection.execute(insert(event_table), [{"task_id": task_id, **submitted} for task_id in tasks])
    connection.exec_driver_sql("ANALYZE")


async def plan_of(database: Database, statement: Statement) -> list[str]:
    """Its steps as lines; each names the table and the index it reads."""
    sql, parameters = statement
    if database.is_sqlite:
        return await database.read(
            lambda c: [row.detail for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        )
    found = await database.read(lambda c: c.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters).scalar_one())
    document = json.loads(found) if isinstance(found, str) else found
    return list(steps(document[0]["Plan"]))


def steps(plan: dict[str, Any]) -> Iterator[str]:
    yield " ".join(str(plan[key]) for key in ("Node Type", "Relation Name", "Index Name") if key in plan)
    for inner in plan.get("Plans", []):
        yield from steps(inner)


async def test_a_claim_reads_the_head_of_the_queue_from_its_index(scene: Scene) -> None:
    await scene.database.write("fill", fill)

    with overheard() as statements:
        assert await scene.claim() is not None

    plans = [(sql, await plan_of(scene.database, (sql, parameters))) for sql, parameters in statements]
    lanes = [plan for sql, plan in plans if sql.startswith("WITH RECURSIVE")]
    heads = [plan for sql, plan in plans if "task.priority" in sql]
    assert lanes
    assert heads
    for plan in (*lanes, *heads):
        assert any("ix_task_queued" in step for step in plan), plan
        assert not any("Sort" in step or "TEMP B-TREE" in step for step in plan), plan
    for sql, plan in plans:
        assert not any("SCAN task" in step or "Seq Scan task" in step for step in plan), (sql, plan)


async def test_a_claim_asks_no_more_of_a_long_queue_than_of_a_short_one(scene: Scene) -> None:
    await scene.submit(machine="*", working_directory="/")
    with overheard() as few:
        await scene.claim()
    await scene.database.write("fill", fill)
    with overheard() as many:
        await scene.claim()

    assert 0 < len(many) <= len(few)


async def test_the_lanes_of_other_machines_cost_a_claim_nothing(scene: Scene) -> None:
    for number in range(40):
        await scene.submit(machine=f"other-{number}", agent="claude")
    await scene.submit()

    found = await scene.database.read(lambda c: queued_lanes(c, scope_of(runner().runner, runner().agents).prefixes))

    assert found == [lane_of(Placement(agent="shell", machine="desk"))]


async def test_a_claim_that_continues_a_chain_finds_the_others_by_an_index(scene: Scene) -> None:
    held = await scene.take(agent="claude", mode=Mode.WORKTREE)
    await scene.announce(held, EffectState.INTENT)
    failed = await scene.finish(held, replace(DONE, state=AttemptState.FAILED))
    retried = await scene.retry(failed)
    await scene.database.write("fill", fill)

    with overheard() as statements:
        again = await scene.claim(runner(agents=["claude"]))

    assert again is not None
    assert (again.task.id, len(again.continuation.effects)) == (retried.id, 1)
    for statement in statements:
        plan = await plan_of(scene.database, statement)
        assert not any("SCAN task" in step or "Seq Scan task" in step for step in plan), (statement, plan)


async def test_the_first_claim_of_a_task_asks_nothing_about_others(scene: Scene) -> None:
    await scene.submit(agent="claude", mode=Mode.PULL_REQUEST)

    with overheard() as statements:
        assert await scene.claim() is not None

    assert not [sql for sql, _ in statements if "checkpoint" in sql or "effect" in sql]


async def test_dependents_are_found_and_settled_by_indexes(scene: Scene) -> None:
    bad, good = await scene.take(), await scene.take()
    waiting = await scene.submit(depends_on=(bad.task.id, good.task.id))
    for other in (good.task, waiting):
        await scene.submit(depends_on=(other.id,), continue_from=good.task.id)
    await scene.database.write("fill", fill)

    with overheard() as statements:
        await scene.submit(depends_on=(good.task.id, waiting.id))
        await scene.finish(good)
        await scene.finish(bad, replace(DONE, state=AttemptState.FAILED))
        await graph_of(scene.database, waiting.id, scene.rules, scene.now)
        await scene.snapshot(waiting)

    assert [sql for sql, _ in statements if "dependency" in sql]
    for statement in statements:
        plan = await plan_of(scene.database, statement)
        assert not any("SCAN task" in step or "Seq Scan task" in step for step in plan), (statement, plan)


async def test_a_page_of_what_waits_is_read_from_its_end(scene: Scene) -> None:
    await scene.database.write("fill", fill)

    with overheard() as statements:
        found = await scene.page(states=[TaskState.QUEUED, TaskState.BLOCKED])

    assert len(found) == 10
    for statement in statements:
        plan = await plan_of(scene.database, statement)
        assert not any("Sort" in step or "TEMP B-TREE" in step or "Seq Scan" in step for step in plan), (
            statement,
            plan,
        )


async def test_an_end_without_dependents_queries_for_them_once(scene: Scene) -> None:
    held = await scene.take()

    with overheard() as statements:
        await scene.finish(held)

    assert len([sql for sql, _ in statements if "FROM dependency" in sql or "JOIN dependency" in sql]) == 1


async def test_no_write_of_a_runner_looks_at_all_rows(scene: Scene) -> None:
    held = await scene.take()
    await scene.database.write("fill", fill)

    with overheard() as statements:
        await scene.renew(held)
        await scene.record(held, fact(0))
        await scene.finish(held, DONE, next_seq=1)

    assert statements
    for statement in statements:
        plan = await plan_of(scene.database, statement)
        assert not any("SCAN task" in step or "Seq Scan task" in step for step in plan), (statement, plan)


async def test_a_child_is_admitted_without_a_look_at_other_tasks(scene: Scene) -> None:
    root = await scene.submit(agent="claude", max_budget_usd=10.0)
    limited = Settings(max_runners=9)
    child = Request(
        prompt="x", agent="claude", machine="desk", working_directory="/", submitted_by=root.id, max_budget_usd=1.0
    )
    await submit(scene.database, child, limited, scene.now)
    await scene.database.write("fill", fill)

    with overheard() as statements:
        await submit(scene.database, child, limited, scene.now)

    plans = [(sql, await plan_of(scene.database, (sql, parameters))) for sql, parameters in statements]
    for index, condition in (("ix_task_root", "task.root_id ="), ("ix_task_open_child", "child.submitted_by =")):
        found = [plan for sql, plan in plans if condition in sql]
        assert found
        assert all(any(index in step for step in plan) for plan in found), found
    for sql, plan in plans:
        assert not any(re.search("Seq Scan|SCAN (?!child USING)", step) for step in plan), (sql, plan)
        assert "root_id =" not in sql or "task.prompt" not in sql
