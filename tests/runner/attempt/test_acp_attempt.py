"""An attempt with an agent that asks back while it works: the runner answers, and hears it all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.fakes import acp_agent

from delegate.model import EventKind
from delegate.runner.agents.acp import Acp
from delegate.runner.assignment import Assignment
from delegate.runner.attempt.attempt import run_attempt
from delegate.states import TaskState
from delegate.wire.runners import ClaimRequest

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

    from delegate.runner.context import RunnerContext

pytestmark = pytest.mark.anyio
MANY = 2_000  # questions, whose answers fill a pipe several times


async def taken(stage: Stage, tmp_path: Path, *steps: dict[str, object]) -> tuple[RunnerContext, Assignment]:
    """A runner that has just been given a task for the scripted agent."""
    agent = Acp(command=str(acp_agent.install(tmp_path / "bin")), is_root=False)
    await stage.submit(f"Play this: {json.dumps({'steps': steps})}", agent=agent.name)
    equipment = replace(stage.equipment(), agents={agent.name: agent})
    await equipment.link.register()
    answer = await equipment.link.claim(ClaimRequest(claim_id=equipment.slot.claim_id(), agents=[agent.name], wait=5))
    equipment.slot.forget_claim()
    assert answer is not None
    return equipment, answer


async def said(stage: Stage, assignment: Assignment) -> list[object]:
    detail = await stage.detail(assignment.task_id)
    assert detail.task.status == TaskState.COMPLETED, detail.task.message
    return [event.data["text"] for event in detail.events if event.kind is EventKind.MESSAGE]


async def test_an_agent_that_asks_for_permission_gets_it(stage: Stage, tmp_path: Path) -> None:
    equipment, assignment = await taken(stage, tmp_path, {"ask": "execute"})

    with anyio.fail_after(30):
        await run_attempt(equipment, assignment)

    assert await said(stage, assignment) == ["once"]


async def test_an_agent_that_asks_much_and_reads_late_is_read_meanwhile(stage: Stage, tmp_path: Path) -> None:
    equipment, assignment = await taken(stage, tmp_path, {"flood": MANY}, {"read": MANY})

    with anyio.fail_after(30):
        await run_attempt(equipment, assignment)

    assert await said(stage, assignment) == [f"{MANY} refused"]


async def test_a_message_in_mid_turn_waits_and_is_the_next_prompt(stage: Stage, tmp_path: Path) -> None:
    go = stage.work / "go"
    equipment, assignment = await taken(stage, tmp_path, {"say": "One."}, {"think": "Hm."}, {"wait": str(go)})
    more = json.dumps({"steps": [{"say": "Two."}]})

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run_attempt, equipment, assignment)
            await stage.news(assignment.task_id, "One.")
            await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": more})
            for _ in range(3):  # of the answers to come, only the first may have been on its way before the message
                await equipment.shutdown.wakeup.wait()
            go.touch()

    assert await said(stage, assignment) == ["One.", "Two."]
    warnings = [e for e in (await stage.detail(assignment.task_id)).events if e.kind is EventKind.WARNING]
    assert warnings == []
