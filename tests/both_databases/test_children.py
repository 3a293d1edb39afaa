"""Tasks that agents submit stay within the limits of their tree, and have no more rights than their parents."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.both_databases.scene import DONE, Scene, parked_until, runner
from tests.both_databases.test_fleet_orders import working

from delegate.config.settings import Settings
from delegate.errors import (
    ChildRefused,
    ChildrenOverBudget,
    ChildrenTooDeep,
    DelegateError,
    KeyUsed,
    NoRunnerLeft,
    TooManyChildren,
)
from delegate.intake.children import CHILDREN_PER_HOUR, GENERATIONS_MAX
from delegate.intake.submit import Request, submit
from delegate.model import Mode, Task, Usage
from delegate.relay.views import assignment
from delegate.runner.assignment import assignment_of
from delegate.states import AttemptState, Reason

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P22")]
CODEX_IN_WORKTREE: dict[str, Any] = {"agent": "codex", "mode": Mode.WORKTREE, "working_directory": "/work"}


async def child_of(scene: Scene, parent: Task, settings: Settings | None = None, **fields: Any) -> Task:
    wanted = {"agent": parent.agent, "machine": "desk", "working_directory": "/", "submitted_by": parent.id, **fields}
    request = Request(prompt="true", **wanted)
    return (await submit(scene.database, request, settings or Settings(), scene.now)).task


async def test_a_child_knows_its_parent_and_the_root(scene: Scene) -> None:
    root = await scene.submit()

    child = await child_of(scene, root)
    grandchild = await child_of(scene, child)

    assert (child.submitted_by, child.root_id, child.generation) == (root.id, root.id, 1)
    assert (grandchild.submitted_by, grandchild.root_id, grandchild.generation) == (child.id, root.id, 2)


async def test_a_runner_learns_that_an_agent_submitted_the_task(scene: Scene) -> None:
    parent = await scene.take()
    await child_of(scene, parent.task)

    held = await scene.claim()

    assert held is not None
    assert [assignment_of(assignment(one, runner().runner)).submitted_by for one in (parent, held)] == [
        None,
        parent.task.id,
    ]


async def test_generations_are_limited(scene: Scene) -> None:
    last = await scene.submit()
    for _ in range(GENERATIONS_MAX):
        last = await child_of(scene, last)

    with pytest.raises(ChildrenTooDeep) as caught:
        await child_of(scene, last)

    assert caught.value.code == "children_too_deep"


async def test_children_of_one_root_are_limited_per_hour_at_all_depths_together(scene: Scene) -> None:
    root, other = await scene.submit(), await scene.submit()
    first = await child_of(scene, root)
    for number in range(CHILDREN_PER_HOUR - 1):
        await child_of(scene, first if number % 2 else root)

    with pytest.raises(TooManyChildren) as caught:
        await child_of(scene, root)
    assert (caught.value.code, caught.value.status) == ("too_many_children", 429)
    await child_of(scene, other)

    scene.now += timedelta(hours=1)
    await child_of(scene, root)


async def test_children_share_what_the_budget_of_the_root_leaves(scene: Scene) -> None:
    root = await scene.submit(agent="claude", max_budget_usd=10.0)
    first = await child_of(scene, root, max_budget_usd=4.0)

    with pytest.raises(ChildrenOverBudget) as caught:
        await child_of(scene, first, max_budget_usd=7.0)
    half = await child_of(scene, first)

    assert caught.value.code == "children_over_budget"
    assert "leaves 6.00 USD" in caught.value.message
    assert "submit with a lower budget" in str(caught.value.hint)
    assert half.limits.max_budget_usd == 3.0
    await child_of(scene, root, max_budget_usd=3.0)
    with pytest.raises(ChildrenOverBudget) as caught:
        await child_of(scene, root)
    assert "do the work in this task" in str(caught.value.hint)


async def test_the_next_attempt_of_the_root_may_spend_what_its_children_leave(scene: Scene) -> None:
    held = await scene.take(agent="claude", max_budget_usd=10.0)
    await child_of(scene, held.task, max_budget_usd=4.0, machine="elsewhere")
    await scene.finish(held, parked_until(scene.now, usage=Usage(cost_usd=1.0)))

    again = await scene.claim()

    assert again is not None
    assert (again.task.id, again.attempt.budget_usd) == (held.task.id, 5.0)
    spent = replace(DONE, state=AttemptState.FAILED, reason=Reason.BUDGET, usage=Usage(cost_usd=5.0))
    assert (await scene.finish(again, spent)).reason is Reason.BUDGET


async def test_a_child_that_has_ended_counts_with_what_it_has_spent(scene: Scene) -> None:
    root = await scene.submit(agent="claude", max_budget_usd=10.0)
    await scene.claim()
    await child_of(scene, root, max_budget_usd=10.0)
    held = await scene.claim()
    assert held is not None
    await scene.finish(held, replace(DONE, usage=Usage(cost_usd=2.5)))

    assert (await child_of(scene, root)).limits.max_budget_usd == 3.75


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        ({"agent": "claude"}, {"agent": "shell"}),
        ({"agent": "claude", "permission_mode": "plan"}, {"agent": "claude", "permission_mode": "bypassPermissions"}),
        ({"agent": "codex"}, {"agent": "claude"}),
        ({"agent": "codex"}, {"agent": "acp:opencode acp"}),
        ({"agent": "codex"}, {"permission_mode": "bypassPermissions"}),
        ({"agent": "codex", "working_directory": "/work"}, {"working_directory": "/"}),
        ({"agent": "codex", "working_directory": "/work"}, {"working_directory": "/work/../etc"}),
        ({"agent": "codex", "working_directory": "/work"}, {"working_directory": "/workshop"}),
        ({"agent": "codex", "working_directory": "/work"}, {"working_directory": "/work/nested"}),
        (CODEX_IN_WORKTREE, {"working_directory": "/work"}),
        (CODEX_IN_WORKTREE, {**CODEX_IN_WORKTREE, "base": "pushed-by-the-agent"}),
        (CODEX_IN_WORKTREE, {**CODEX_IN_WORKTREE, "mode": Mode.PULL_REQUEST}),
        (CODEX_IN_WORKTREE, {**CODEX_IN_WORKTREE, "working_directory": None, "repository": "/work/nested"}),
    ],
)
async def test_a_child_has_no_more_rights_than_its_parent(
    scene: Scene, parent: dict[str, Any], child: dict[str, Any]
) -> None:
    task = await scene.submit(**parent)

    with pytest.raises(ChildRefused):
        await child_of(scene, task, **child)


async def test_codex_in_its_sandbox_submits_for_its_own_place(scene: Scene) -> None:
    parent = await scene.submit(**CODEX_IN_WORKTREE, base="stable")

    child = await child_of(scene, parent, **CODEX_IN_WORKTREE, base="stable")

    assert (child.working_directory, child.mode, child.base) == ("/work", Mode.WORKTREE, "stable")


async def test_a_child_has_the_permission_mode_of_its_parent(scene: Scene) -> None:
    planning = await scene.submit(agent="claude", permission_mode="plan")

    assert (await child_of(scene, planning)).permission_mode == "plan"


async def test_a_child_depends_on_tasks_of_its_own_agent_only(scene: Scene) -> None:
    root, other = await scene.submit(), await scene.submit()
    first = await child_of(scene, root)

    for foreign in (root, other):
        with pytest.raises(ChildRefused):
            await child_of(scene, root, depends_on=(foreign.id,))
        with pytest.raises(ChildRefused):
            await child_of(scene, root, continue_from=foreign.id)

    assert (await child_of(scene, root, depends_on=(first.id,))).depends_on == (first.id,)


async def test_tasks_that_may_wait_for_children_never_hold_the_last_runner(scene: Scene) -> None:
    two = Settings(max_runners=2)
    first, second = await scene.take(), await scene.take()
    child = await child_of(scene, first.task, two)
    await child_of(scene, first.task, two)

    with pytest.raises(NoRunnerLeft) as caught:
        await child_of(scene, second.task, two)
    with pytest.raises(NoRunnerLeft):
        await child_of(scene, child, two)
    with pytest.raises(NoRunnerLeft):
        await child_of(scene, first.task, Settings(max_runners=1))

    assert caught.value.code == "no_runner_left"


async def test_the_slots_of_paired_runners_are_the_limit_where_no_keeper_has_one(scene: Scene) -> None:
    mbp = await working(scene)  # with two slots
    first, second = [await scene.take(mbp, agent="claude", machine="mbp-1") for _ in range(2)]
    await child_of(scene, first.task, agent="claude")

    with pytest.raises(NoRunnerLeft):
        await child_of(scene, second.task, agent="claude")


async def test_a_request_key_of_another_task_gives_an_agent_nothing(scene: Scene) -> None:
    root = await scene.submit()
    await scene.submit("the user's own", request_key="known")
    own = await child_of(scene, root, request_key="mine")

    with pytest.raises(KeyUsed):
        await child_of(scene, root, request_key="known")
    assert (await child_of(scene, root, request_key="mine")).id == own.id


async def test_no_refused_child_leaves_anything(scene: Scene) -> None:
    root = await scene.submit(agent="claude")

    with pytest.raises(DelegateError):
        await child_of(scene, root, agent="shell", request_key="again")

    assert (await child_of(scene, root, request_key="again")).submitted_by == root.id
