from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.fakes.github import GitHub
from tests.fakes.github import github as github
from tests.fakes.github_repositories import Pull
from tests.runner.workspaces.conftest import BRANCH, Scene, make_scene

from delegate.config.observed_time import ObservedClock
from delegate.model import EffectKind, EffectState, Outcome
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.context import RunnerContext
from delegate.runner.forges.base import PullRequest, PullState
from delegate.runner.forges.body import END_MARKER, marker
from delegate.runner.loop import RunnerLoop
from delegate.runner.publishing.effects import UNDO_PAUSE, UNDO_PAUSE_MAX, UNDO_TIME, EffectEntry, Undo
from delegate.runner.tidying import UNWANTED, must_close, tidy_up
from delegate.runner.workspaces.kept import list_kept
from delegate.runner.workspaces.mirrors import fetch_mirror
from delegate.runner.workspaces.repositories import locate
from delegate.runner.workspaces.worktrees import release_workspace
from delegate.states import AttemptState, Reason
from delegate.wire.runners import EffectRequest

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

pytestmark = pytest.mark.anyio

SHOP = "acme/shop"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR, YEAR = timedelta(minutes=1), timedelta(hours=1), timedelta(days=365)
PULL_1, PULL_2 = (f"https://github.com/{SHOP}/pull/{number}" for number in (1, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A runner that has pushed its agent's own commit, and was lost before it could say so."""

    scene: Scene
    equipment: RunnerContext
    assignment: Assignment
    commit: str

    async def ends(self, state: AttemptState = AttemptState.FAILED, reason: Reason = Reason.AGENT_ERROR) -> None:
        outcome = Outcome(state=state, reason=reason, message="")
        await self.equipment.link.end(self.assignment, outcomes.end_request(self.assignment.fence, outcome))

    @property
    def branches(self) -> dict[str, str]:
        listed = self.scene.run("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", cwd=self.scene.remote)
        return dict(line.split(" ") for line in listed.splitlines())

    @property
    def workspaces(self) -> list[str]:
        return sorted(path.name for path in self.scene.home.workspaces.glob("*"))


@pytest.fixture
async def late(stage: Stage, tmp_path: Path) -> Late:
    scene = await make_scene(tmp_path)
    task_id = await stage.submit("true", worktree=True, workingDirectory=str(scene.checkout))
    equipment = stage.equipment(**scene.env)
    await equipment.link.register()
    assignment = await stage.claim(equipment)
    workspace = await scene.workspace(task_id=task_id, lineage=task_id)
    (workspace.tree / "work.txt").write_text("dear work\n")
    scene.run("add", "-A", cwd=workspace.tree)
    scene.run("commit", "-qm", "by the agent itself", cwd=workspace.tree)
    commit = scene.run("rev-parse", "HEAD", cwd=workspace.tree)
    scene.run("push", "-q", str(scene.remote), f"HEAD:refs/heads/{BRANCH}", cwd=workspace.tree)
    release_workspace(workspace)
    url = workspace.repository.url
    equipment.journal.note(
        EffectEntry(task_id=task_id, attempt_id="att-1", kind=EffectKind.PUSH, target=BRANCH, commit=commit, url=url)
    )
    return Late(scene=scene, equipment=equipment, assignment=assignment, commit=commit)


@pytest.mark.promise("P2")
async def test_a_branch_that_its_task_ended_without_is_deleted_and_its_work_kept(late: Late) -> None:
    # Another task has seen the branch meanwhile, so the mirror takes the work for pushed.
    git = await late.equipment.git.get()
    await fetch_mirror(
        git, late.scene.home, await locate(git, late.assignment.repository, late.assignment.working_directory)
    )
    await late.ends()

    again = await tidy_up(late.equipment, NOW)

    assert again is None
    assert list(late.branches) == ["main"]
    assert late.workspaces == []
    restored = await late.scene.restored(late.assignment.lineage)
    assert (restored / "work.txt").read_text() == "dear work\n"


@pytest.mark.promise("P23")
async def test_kept_work_is_dropped_only_after_an_hour_with_the_clock_beyond_its_limit(late: Late) -> None:
    now = datetime.now(UTC)
    looks = [(now, HOUR), (now + YEAR, HOUR), (now, HOUR), (now + YEAR, MINUTE), (now + YEAR, HOUR), (now + YEAR, HOUR)]
    uptimes = accumulate(span.total_seconds() for _, span in looks)
    equipment = replace(late.equipment, clock=ObservedClock(late.equipment.slot.clock, uptimes.__next__))
    await late.ends()
    kept = []

    for moment, _ in looks:
        await tidy_up(equipment, moment)
        kept.append(len(list_kept(late.scene.home)))

    assert kept == [1, 1, 1, 1, 1, 0]


async def test_a_branch_that_a_person_has_worked_on_since_is_left_alone(late: Late) -> None:
    late.scene.run("fetch", "-q", "origin", BRANCH)
    late.scene.run("checkout", "-q", "FETCH_HEAD")
    theirs = late.scene.push("theirs.txt", "theirs\n", BRANCH)
    await late.ends()

    again = await tidy_up(late.equipment, NOW)

    assert again is None
    assert late.branches[BRANCH] == theirs


async def test_what_belongs_to_a_task_that_continues_waits_for_its_end(late: Late) -> None:
    before = await tidy_up(late.equipment, NOW), late.branches[BRANCH], late.workspaces
    await late.ends()
    after = await tidy_up(late.equipment, NOW), late.branches.get(BRANCH), late.workspaces

    assert before == (NOW, late.commit, [late.assignment.lineage])
    assert after == (None, None, [])


async def test_what_cannot_be_undone_now_is_undone_the_next_time(late: Late) -> None:
    await late.ends()
    away = late.scene.remote.rename(late.scene.place / "away.git")
    first = await tidy_up(late.equipment, NOW)
    away.rename(late.scene.remote)
    early = await tidy_up(late.equipment, NOW), late.branches.get(BRANCH)
    second = await tidy_up(late.equipment, NOW + UNDO_PAUSE)

    assert early == (first, late.commit)
    assert (first, second) == (NOW + UNDO_PAUSE, None)
    assert BRANCH not in late.branches


async def test_a_runner_works_on_beside_what_cannot_be_undone_also_after_a_restart(stage: Stage, late: Late) -> None:
    await late.ends()
    late.scene.remote.rename(late.scene.place / "away.git")
    equipment = late.equipment

    for _ in range(2):
        await stage.leave(equipment)
        equipment = stage.equipment(**late.scene.env)
        await works_off(stage, equipment, [await stage.submit("true") for _ in range(2)])

    assert [entry.failures for entry in equipment.journal.entries()] == [1]


async def works_off(stage: Stage, equipment: RunnerContext, tasks: list[str]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(5):
            for task in tasks:
                await stage.ended(task)
        equipment.shutdown.drain()


async def test_after_one_failure_the_next_claim_comes_before_the_next_try(late: Late) -> None:
    await late.ends()
    (entry,) = late.equipment.journal.entries()
    late.equipment.journal.note(replace(entry, attempt_id="att-2"))
    away = late.scene.remote.rename(late.scene.place / "away.git")

    looks = [await tidy_up(late.equipment, NOW) for _ in range(3)]

    assert looks == [NOW, NOW + UNDO_PAUSE, NOW + UNDO_PAUSE]
    assert [entry.failures for entry in late.equipment.journal.entries()] == [1, 1]
    away.rename(late.scene.remote)


async def test_work_whose_branch_cannot_be_deleted_now_is_kept_before_it_goes(late: Late) -> None:
    git = await late.equipment.git.get()
    await fetch_mirror(
        git, late.scene.home, await locate(git, late.assignment.repository, late.assignment.working_directory)
    )
    (entry,) = late.equipment.journal.entries()
    late.equipment.journal.note(replace(entry, not_before=NOW + UNDO_PAUSE))
    await late.ends()

    await tidy_up(late.equipment, NOW)

    restored = await late.scene.restored(late.assignment.lineage)
    assert (restored / "work.txt").read_text() == "dear work\n"


@pytest.mark.promise("P2")
async def test_what_cannot_be_undone_for_days_is_left_and_named(late: Late, caplog: pytest.LogCaptureFixture) -> None:
    await late.ends()
    (entry,) = late.equipment.journal.entries()
    late.scene.remote.rename(late.scene.place / "away.git")
    when: datetime | None = NOW
    tries: list[datetime] = []

    while when is not None:
        tries.append(when)
        when = await tidy_up(late.equipment, when)

    pauses = [later - earlier for earlier, later in pairwise(tries)]
    last = [record for record in caplog.records if record.message == "effect not undone: giving up"]
    assert (pauses[0], pauses[-1]) == (UNDO_PAUSE, UNDO_PAUSE_MAX)
    assert pauses == sorted(pauses)
    assert UNDO_TIME <= tries[-1] - NOW < UNDO_TIME + UNDO_PAUSE_MAX
    assert late.equipment.journal.entries() == []
    assert [(one.levelname, one.task_id, one.branch, one.remote) for one in last] == [  # type: ignore[attr-defined]
        ("WARNING", entry.task_id, BRANCH, entry.url)
    ]


def pull(**given: object) -> PullRequest:
    made = PullRequest(
        number=2,
        url=PULL_2,
        state=PullState.OPEN,
        is_draft=False,
        head=BRANCH,
        base="main",
        body=f"{marker('task-1')}\n\nWhat was done.\n\n{END_MARKER}",
    )
    return replace(made, **given)  # type: ignore[arg-type]  # checked by the dataclass's own fields


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pull(), True),
        (pull(url=PULL_1), False),
        (pull(state=PullState.MERGED), False),
        (pull(state=PullState.CLOSED), False),
        (pull(body=f"{marker('task-2')}\n\nAnother task's."), False),
        (pull(body=f"My own words.\n\n---\n\n{marker('task-1')}\n\nAdopted."), False),
        (pull(body="My own words."), False),
    ],
    ids=["late", "recorded", "merged", "closed", "another task's", "a person's, adopted", "a person's"],
)
def test_only_what_was_opened_for_the_task_and_is_not_its_own_is_closed(found: PullRequest, expected: bool) -> None:
    entry = EffectEntry(
        task_id="task-1",
        attempt_id="att-1",
        kind=EffectKind.PULL_REQUEST,
        target=BRANCH,
        commit="1" * 40,
        url=f"https://github.com/{SHOP}.git",
    )

    assert must_close(found, Undo(entry=entry, recorded=PULL_1)) is expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A runner that may have opened a pull request, and does not know it."""

    github: GitHub
    equipment: RunnerContext
    assignment: Assignment

    def pull(self) -> Pull:
        body = f"{marker(self.assignment.task_id)}\n\nWhat was done.\n\n{END_MARKER}"
        asked = {"title": "Work", "body": body, "base": "main", "head": BRANCH}
        return self.github.hub.repository(SHOP).open_pull(asked, "a-person")

    async def records(self, pull: Pull) -> None:
        """Another attempt of the task tells that this is its pull request."""
        done = EffectRequest(
            fence=self.assignment.fence,
            kind=EffectKind.PULL_REQUEST,
            state=EffectState.DONE,
            target=BRANCH,
            external_id=pull.url,
        )
        await self.equipment.link.effect(self.assignment, done)

    async def ends(self, state: AttemptState, reason: Reason) -> None:
        outcome = Outcome(state=state, reason=reason, message="")
        await self.equipment.link.end(self.assignment, outcomes.end_request(self.assignment.fence, outcome))


@pytest.fixture
async def opened(stage: Stage, github: GitHub) -> Opened:
    await stage.submit("true", pr=True)
    equipment = stage.equipment(**github.env)
    await equipment.link.register()
    assignment = await stage.claim(equipment)
    github.seed(SHOP, {"README.md": "# shop\n"})
    commit = github.seed(SHOP, {"work.txt": "work\n"}, branch=BRANCH)
    made = Opened(github=github, equipment=equipment, assignment=assignment)
    equipment.journal.note(
        EffectEntry(
            task_id=assignment.task_id,
            attempt_id=assignment.attempt_id,
            kind=EffectKind.PULL_REQUEST,
            target=BRANCH,
            commit=commit,
            url=github.url(SHOP),
        )
    )
    return made


@pytest.mark.real
@pytest.mark.promise("P2")
async def test_a_second_pull_request_is_closed_and_names_the_first(opened: Opened) -> None:
    first = opened.pull()
    first.state = "MERGED"
    second = opened.pull()
    await opened.records(first)
    await opened.ends(AttemptState.COMPLETED, Reason.DONE)

    again = await tidy_up(opened.equipment, NOW)

    assert again is None
    assert (first.state, second.state) == ("MERGED", "CLOSED")
    assert first.url in second.comments[0]


@pytest.mark.real
async def test_a_pull_request_of_a_task_that_ended_without_one_is_closed(opened: Opened) -> None:
    only = opened.pull()
    await opened.ends(AttemptState.CANCELLED, Reason.CANCELLED)

    again = await tidy_up(opened.equipment, NOW)

    assert again is None
    assert only.state == "CLOSED"
    assert only.comments == [UNWANTED]


@pytest.mark.real
async def test_the_pull_request_that_its_task_ended_with_stays(opened: Opened) -> None:
    only = opened.pull()
    await opened.records(only)
    await opened.ends(AttemptState.COMPLETED, Reason.DONE)

    again = await tidy_up(opened.equipment, NOW)

    assert again is None
    assert (only.state, only.comments) == ("OPEN", [])
