from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from delegate.errors import StaleFence
from delegate.model import EffectKind, EffectState, Outcome
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.context import RunnerContext
from delegate.runner.lease import Lease
from delegate.runner.publishing.effects import (
    EffectAction,
    EffectEntry,
    EffectJournal,
    Effects,
    Undo,
    find_unsettled,
    is_settled,
    recorded_of,
)
from delegate.runner.workspaces.repositories import repository
from delegate.states import AttemptState, Reason
from delegate.wire.runners import EffectRequest, EffectsResponse
from delegate.wire.shared_models import EffectView

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

pytestmark = pytest.mark.anyio

BRANCH = "fix-it-3f2a"
MINE, OTHER = "1" * 40, "2" * 40
PULL_1, PULL_2 = "https://github.com/acme/shop/pull/1", "https://github.com/acme/shop/pull/2"
PUSH, PULL = EffectKind.PUSH, EffectKind.PULL_REQUEST


def entry(kind: EffectKind = PUSH, *, task_id: str = "task-1", pull_request: str | None = None) -> EffectEntry:
    return EffectEntry(
        task_id=task_id,
        attempt_id="att-1",
        kind=kind,
        target=BRANCH,
        commit=MINE,
        url="https://github.com/acme/shop.git",
        pull_request=pull_request,
    )


def answer(*effects: tuple[EffectKind, EffectState, str | None]) -> EffectsResponse:
    views = [
        EffectView(task_id="task-1", kind=kind, fence=fence, state=state, target=BRANCH, external_id=made)
        for fence, (kind, state, made) in enumerate(effects, start=1)
    ]
    return EffectsResponse(status="completed", effects=views)


def effects_of(equipment: RunnerContext, assignment: Assignment) -> Effects:
    return Effects(
        link=equipment.link,
        lease=Lease(equipment.link, assignment, equipment.shutdown.wakeup),
        assignment=assignment,
        journal=equipment.journal,
        repository=repository("https://github.com/acme/shop.git"),
    )


def deed(
    act: Callable[[], Awaitable[str]],
    kind: EffectKind = PUSH,
    *,
    may_be_done: Callable[[Exception], bool] | None = None,
) -> EffectAction[str]:
    open_end = may_be_done or (lambda _: False)
    return EffectAction(kind=kind, branch=BRANCH, commit=MINE, act=act, name=lambda done: done, may_be_done=open_end)


async def states(equipment: RunnerContext, assignment: Assignment) -> list[tuple[EffectState, str | None]]:
    """What the relay knows."""
    found = await equipment.link.effects(assignment.task_id)
    return [(effect.state, effect.external_id) for effect in found.effects]


async def finish(equipment: RunnerContext, assignment: Assignment) -> None:
    done = Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="")
    await equipment.link.end(assignment, outcomes.end_request(assignment.fence, done))


async def give_away(equipment: RunnerContext, assignment: Assignment) -> None:
    """From here on the attempt is not this runner's any more."""
    await equipment.link.end(
        assignment, outcomes.end_request(assignment.fence, outcomes.hand_back("another runner has it now"))
    )


def test_what_was_noted_is_there_after_a_restart(tmp_path: Path) -> None:
    journal = EffectJournal(tmp_path / "effects")
    journal.note(entry(PUSH))
    journal.note(entry(PULL))
    journal.note(entry(PULL, pull_request=PULL_1))
    journal.forget(entry(PUSH))

    assert EffectJournal(tmp_path / "effects").entries() == [entry(PULL, pull_request=PULL_1)]


def test_a_damaged_note_does_not_hide_the_others(tmp_path: Path) -> None:
    journal = EffectJournal(tmp_path)
    journal.note(entry())
    (tmp_path / "att-0-push.json").write_text('{"taskId": "task-0"')

    assert journal.entries() == [entry()]


def test_a_journal_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert EffectJournal(tmp_path / "none").entries() == []


@pytest.mark.parametrize(
    ("mine", "recorded", "expected"),
    [
        (entry(PUSH), [(PUSH, EffectState.DONE, MINE)], True),
        (entry(PUSH), [(PUSH, EffectState.DONE, OTHER)], False),
        (entry(PUSH), [(PUSH, EffectState.DONE, MINE), (PUSH, EffectState.DONE, OTHER)], False),
        (entry(PUSH), [(PUSH, EffectState.INTENT, MINE)], False),
        (entry(PUSH), [], False),
        (entry(PULL, pull_request=PULL_1), [(PULL, EffectState.DONE, PULL_1)], True),
        (entry(PULL, pull_request=PULL_2), [(PULL, EffectState.DONE, PULL_1)], False),
        (entry(PULL), [(PULL, EffectState.DONE, PULL_1)], False),
        (entry(PULL, pull_request=PULL_1), [(PUSH, EffectState.DONE, MINE)], False),
    ],
)
def test_an_effect_is_settled_when_the_task_ended_with_it(
    mine: EffectEntry, recorded: list[tuple[EffectKind, EffectState, str | None]], expected: bool
) -> None:
    assert is_settled(mine, answer(*recorded)) is expected


def test_the_newest_effect_that_was_done_is_what_the_task_ended_with() -> None:
    known = answer((PULL, EffectState.DONE, PULL_1), (PULL, EffectState.DONE, PULL_2), (PULL, EffectState.INTENT, None))

    assert recorded_of(known, PULL) == PULL_2
    assert recorded_of(known, PUSH) is None


async def test_an_effect_is_announced_and_noted_before_it_is_done(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", worktree=True)
    seen: list[object] = []

    async def act() -> str:
        seen.append(await states(equipment, assignment))
        seen.append([noted.commit for noted in equipment.journal.entries()])
        return MINE

    done = await effects_of(equipment, assignment).perform(deed(act))

    assert done == MINE
    assert seen == [[(EffectState.INTENT, None)], [MINE]]
    assert await states(equipment, assignment) == [(EffectState.DONE, MINE)]
    assert equipment.journal.entries() == []


async def test_an_effect_that_failed_is_abandoned(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", worktree=True)

    async def act() -> str:
        raise ValueError("the remote refused it")

    with pytest.raises(ValueError, match="refused"):
        await effects_of(equipment, assignment).perform(deed(act))

    assert await states(equipment, assignment) == [(EffectState.ABANDONED, None)]
    assert equipment.journal.entries() == []


async def test_an_effect_that_may_be_done_all_the_same_stays_announced(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", pr=True)

    async def act() -> str:
        raise ValueError("nobody could look")

    with pytest.raises(ValueError, match="look"):
        await effects_of(equipment, assignment).perform(deed(act, PULL, may_be_done=lambda _: True))

    assert await states(equipment, assignment) == [(EffectState.INTENT, None)]


async def test_a_runner_that_lost_the_attempt_does_nothing_outside(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", worktree=True)
    acted: list[str] = []

    async def act() -> str:
        acted.append("pushed")
        return MINE

    await give_away(equipment, assignment)
    with pytest.raises(StaleFence):
        await effects_of(equipment, assignment).perform(deed(act))

    assert acted == []
    assert equipment.journal.entries() == []


@pytest.mark.promise("P2")
async def test_what_was_done_too_late_stays_in_the_journal_with_its_address(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", pr=True)

    async def act() -> str:
        await give_away(equipment, assignment)
        return PULL_2

    with pytest.raises(StaleFence):
        await effects_of(equipment, assignment).perform(deed(act, PULL))

    assert [(noted.kind, noted.pull_request) for noted in equipment.journal.entries()] == [(PULL, PULL_2)]


async def test_what_a_task_that_continues_has_outside_is_left_to_its_next_holder(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", worktree=True)
    equipment.journal.note(entry(task_id=assignment.task_id))

    assert await find_unsettled(equipment.link, equipment.journal) == []
    assert equipment.journal.entries() == [entry(task_id=assignment.task_id)]


async def test_what_a_task_ended_with_is_settled(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", worktree=True)

    async def act() -> str:
        return MINE

    await effects_of(equipment, assignment).perform(deed(act))
    await finish(equipment, assignment)
    equipment.journal.note(entry(task_id=assignment.task_id))

    assert await find_unsettled(equipment.link, equipment.journal) == []
    assert equipment.journal.entries() == []


async def test_what_a_task_ended_without_must_be_undone(stage: Stage) -> None:
    equipment, assignment = await stage.take("true", pr=True)
    request = EffectRequest(
        fence=assignment.fence, kind=PULL, state=EffectState.DONE, target=BRANCH, external_id=PULL_1
    )
    await equipment.link.effect(assignment, request)
    await finish(equipment, assignment)
    late = entry(PULL, task_id=assignment.task_id, pull_request=PULL_2)
    equipment.journal.note(late)

    assert await find_unsettled(equipment.link, equipment.journal) == [Undo(entry=late, recorded=PULL_1)]
    assert equipment.journal.entries() == [late]


async def test_what_belongs_to_a_task_that_the_relay_does_not_know_is_forgotten(stage: Stage) -> None:
    equipment, _ = await stage.take("true")
    equipment.journal.note(entry(task_id="task-0000000000"))

    assert await find_unsettled(equipment.link, equipment.journal) == []
    assert equipment.journal.entries() == []
