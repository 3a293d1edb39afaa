"""Rules that the database itself keeps, whatever the code above it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Table, insert, select, update
from sqlalchemy.exc import DBAPIError
from tests.both_databases.scene import GONE, HANDED_BACK, NOON, Scene, fact, output

from delegate.model import Attempt, AttemptId
from delegate.states import AttemptState, TaskState
from delegate.store.attempts import insert_attempt
from delegate.store.database import Connection
from delegate.store.tables import attempt, event_table, task
from delegate.store.tables import output as output_table

pytestmark = pytest.mark.anyio


async def write(scene: Scene, work: Callable[[Connection], object]) -> None:
    await scene.database.write("forbidden", work)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("column", ["state", "reason", "message", "fence", "finished_at", "usage"])
async def test_the_row_of_an_ended_task_never_changes(scene: Scene, column: str) -> None:
    values: dict[str, Any] = {
        "state": "queued",
        "reason": None,
        "message": "x",
        "fence": 99,
        "finished_at": NOON,
        "usage": {},
    }
    held = await scene.take()
    await scene.finish(held)

    change = update(task).where(task.c.id == held.task.id).values({column: values[column]})

    with pytest.raises(DBAPIError, match="never change"):
        await write(scene, lambda c: c.execute(change))


@pytest.mark.promise("P1")
@pytest.mark.parametrize("ending", ["finished", "handed back", "lost"])
async def test_the_row_of_an_ended_attempt_never_changes(scene: Scene, ending: str) -> None:
    held = await scene.take(agent="claude")
    if ending == "finished":
        await scene.finish(held)
    else:
        await scene.release(held, HANDED_BACK if ending == "handed back" else GONE)

    change = update(attempt).where(attempt.c.id == held.attempt.id).values(state=AttemptState.RUNNING)

    with pytest.raises(DBAPIError, match="never change"):
        await write(scene, lambda c: c.execute(change))


@pytest.mark.promise("P3")
async def test_a_task_cannot_have_two_running_attempts(scene: Scene) -> None:
    held = await scene.take()
    rival = second_attempt(held.attempt, fence=2)

    with pytest.raises(DBAPIError, match=r"(?i)unique"):
        await write(scene, lambda c: insert_attempt(c, rival))


@pytest.mark.promise("P3")
async def test_a_fence_is_given_out_once(scene: Scene) -> None:
    held = await scene.take(agent="claude")
    await scene.release(held)

    rival = second_attempt(held.attempt, fence=1)

    with pytest.raises(DBAPIError, match=r"(?i)unique"):
        await write(scene, lambda c: insert_attempt(c, rival))


@pytest.mark.parametrize(("table", "key"), [(task, "task_id"), (attempt, "id")])
async def test_a_state_that_is_not_in_the_list_is_refused(scene: Scene, table: Table, key: str) -> None:
    held = await scene.take()

    change = update(table).where(table.c.id == getattr(held.attempt, key)).values(state="confused")

    with pytest.raises(DBAPIError, match=r"(?i)check"):
        await write(scene, lambda c: c.execute(change))


@pytest.mark.promise("P10")
async def test_a_number_and_a_place_in_the_output_are_taken_once(scene: Scene) -> None:
    held = await scene.take()
    await scene.record(held, fact(0), output(1, b"x"))

    def again(table: Table) -> Callable[[Connection], None]:
        def write(connection: Connection) -> None:
            row = connection.execute(
                select(table).where(table.c.attempt_id == held.attempt.id, table.c.seq.isnot(None))
            )
            connection.execute(insert(table).values({**row.one()._mapping, "id": 10_000}))

        return write

    with pytest.raises(DBAPIError, match=r"(?i)unique"):
        await write(scene, again(event_table))
    with pytest.raises(DBAPIError, match=r"(?i)unique"):
        await write(scene, again(output_table))


async def test_a_failed_write_leaves_nothing_behind(scene: Scene) -> None:
    held = await scene.take()

    def half(connection: Connection) -> None:
        connection.execute(update(task).where(task.c.id == held.task.id).values(state=TaskState.WAITING))
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        await scene.database.write("half", half)

    assert (await scene.task(held)).state is TaskState.RUNNING


def second_attempt(first: Attempt, *, fence: int) -> Attempt:
    return Attempt(
        id=AttemptId("att-rival"),
        task_id=first.task_id,
        slot_id=first.slot_id,
        runner_id=first.runner_id,
        claim_id="rival",
        fence=fence,
        number=2,
        state=AttemptState.RUNNING,
        started_at=NOON,
        renewed_at=NOON,
    )
