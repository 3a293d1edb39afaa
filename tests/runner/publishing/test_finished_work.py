from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runner.workspaces.conftest import LINEAGE, assignment

from delegate.model import EffectKind, EffectState
from delegate.runner.publishing import finished_work
from delegate.runner.publishing.finished_work import FinishedWork
from delegate.runner.workspaces.repositories import Base, repository
from delegate.runner.workspaces.saving import FINISHED_WORK
from delegate.runner.workspaces.worktrees import Workspace

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
BASE, HEAD, COMMIT, PUSHED = (digit * 40 for digit in "0123")
NOTED = FinishedWork(task_id=LINEAGE, commit=COMMIT, at=NOW, head=HEAD, summary="What was done.")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return made(tmp_path / LINEAGE)


def made(root: Path) -> Workspace:
    place = Workspace(
        lineage=LINEAGE,
        root=root,
        repository=repository("https://github.com/acme/shop.git"),
        mirror=root.parent / "mirror.git",
        base=Base(branch="main", commit=BASE),
        branch="fix-it-3f2a",
        lock=cast("Any", None),
    )
    place.kept_repository.mkdir(parents=True)
    return place


def effect(commit: str, task_id: str = LINEAGE) -> dict[str, object]:
    fields = {"kind": EffectKind.PUSH, "state": EffectState.INTENT, "target": "fix-it-3f2a", "fence": 1}
    return {**fields, "task_id": task_id, "expected": commit}


def test_what_was_finished_work_is_found_by_the_next_attempt(workspace: Workspace) -> None:
    finished_work.save_note(workspace, NOTED)

    assert finished_work.find_candidates(workspace, assignment(), NOW) == [NOTED]


def test_nothing_is_found_when_the_agent_worked_on(workspace: Workspace) -> None:
    finished_work.save_note(workspace, NOTED)
    finished_work.forget(workspace)

    assert finished_work.find_candidates(workspace, assignment(), NOW) == []


def test_what_was_finished_work_for_another_task_of_the_lineage_does_not_count(workspace: Workspace) -> None:
    finished_work.save_note(workspace, NOTED)
    resumed = assignment(task_id="task-0000000002", effects=[effect(PUSHED)])

    assert finished_work.find_candidates(workspace, resumed, NOW) == []


def test_beside_an_attempt_that_holds_the_place_its_note_counts_only_for_its_commit(workspace: Workspace) -> None:
    finished_work.save_note(workspace, NOTED)
    beside = made(workspace.root.with_name(f"{LINEAGE}-2"))

    (found,) = finished_work.find_candidates(beside, assignment(), NOW)

    assert (found.commit, found.head, found.summary) == (COMMIT, None, "What was done.")


def test_what_was_pushed_was_finished_work_even_when_its_note_is_gone(workspace: Workspace) -> None:
    pushes = [effect(COMMIT), effect(PUSHED), effect(HEAD, "task-0000000002")]

    found = finished_work.find_candidates(workspace, assignment(effects=pushes), NOW)

    assert [(one.commit, one.head) for one in found] == [(PUSHED, None), (COMMIT, None)]


@pytest.mark.parametrize("text", ["", "{", '{"taskId": "task-0000000001"}', "\udcff"])
def test_a_note_that_cannot_be_read_is_none(workspace: Workspace, text: str) -> None:
    (workspace.kept_repository / FINISHED_WORK).write_text(text, errors="surrogateescape")

    assert finished_work.find_candidates(workspace, assignment(), NOW) == []


def test_a_note_that_cannot_be_written_does_not_stop_the_work(workspace: Workspace) -> None:
    gone = replace(workspace, root=workspace.root / "gone")

    finished_work.save_note(gone, NOTED)

    assert finished_work.find_candidates(gone, assignment(), NOW) == []
