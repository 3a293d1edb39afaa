"""A runner offers the agents whose programs it has seen to run, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.fakes.scripted_agent import install

from delegate.runner.loop import RunnerLoop
from delegate.states import Reason

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

    from delegate.runner.context import RunnerContext
    from delegate.wire.tasks import TaskDetail

pytestmark = pytest.mark.anyio


async def carried_out(stage: Stage, equipment: RunnerContext, task_id: str) -> TaskDetail:
    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(30):
            ended = await stage.ended(task_id)
        equipment.shutdown.drain()
    return ended


async def test_an_agent_is_offered_once_its_program_has_been_seen_to_run(stage: Stage, tmp_path: Path) -> None:
    install(tmp_path / "bin")
    equipment = stage.equipment(PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    task_id = await stage.submit("Do it.", agent="claude")
    assert equipment.available_agents() == ["shell"]

    ended = await carried_out(stage, equipment, task_id)

    assert ended.task.reason is Reason.DONE
    assert "claude" in equipment.available_agents()
    assert "claude" in stage.equipment("2", PATH=equipment.environ["PATH"]).available_agents()


async def test_an_agent_that_could_not_be_started_is_not_offered_again(stage: Stage, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 127\n')  # as if its interpreter had gone
    program.chmod(0o755)
    equipment = stage.equipment(PATH=f"{program.parent}:/usr/bin:/bin")
    task_id = await stage.submit("Do it.", agent="claude")

    ended = await carried_out(stage, equipment, task_id)

    assert ended.task.reason is Reason.NOT_INSTALLED
    assert equipment.available_agents() == ["shell"]
    assert equipment.next_untried_agent() is None
