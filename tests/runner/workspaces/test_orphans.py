"""P12: no orphan worktree, branch or lock is left, and no unpushed work is ever deleted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.runner.workspaces.conftest import LINEAGE, Scene, make_scene
from tests.runner.workspaces.killed import POINTS, agent_at_work, attempt, killed_at, lost_attempt, missing, worked

from delegate.runner.removal import remove
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.kept import list_kept
from delegate.runner.workspaces.saving import save
from delegate.runner.workspaces.worktrees import release_workspace

pytestmark = pytest.mark.promise("P12")

Before = Callable[[Scene, int], Awaitable[None]]


async def nothing(scene: Scene, number: int) -> None:
    """The first attempt of all."""


async def in_order_again(scene: Scene) -> None:
    """One start of a runner, then what a person and the next attempt find."""
    assert await scene.swept() == []
    assert not list(scene.home.mirrors.glob(".*"))
    if worked(scene):
        [kept] = list_kept(scene.home)
        assert missing(scene, await scene.restored(kept.lineage)) == []
    following = await scene.workspace()
    assert missing(scene, following.tree) == []
    await close(scene.git, scene.home, following, pushed=None)
    assert await scene.swept() == []


def kill_and_recover(place: Path, point: str, before: Before) -> bool:
    scene = anyio.run(make_scene, place)
    anyio.run(before, scene, 1)
    is_killed = killed_at(point, partial(attempt, scene, 2))
    anyio.run(in_order_again, scene)
    return is_killed


@pytest.mark.parametrize("point", ["workspace.tree_made", "workspace.decided"])
def test_work_survives_a_kill_at(point: str, tmp_path: Path) -> None:
    assert kill_and_recover(tmp_path, point, lost_attempt)


@pytest.mark.slow
@pytest.mark.parametrize("before", [nothing, attempt, lost_attempt])
def test_work_survives_a_kill_at_every_point(before: Before, tmp_path: Path) -> None:
    hit = set()
    for point in POINTS:
        place = tmp_path / point
        place.mkdir()
        if kill_and_recover(place, point, before):
            hit.add(point)

    first = {"mirror.made", "mirror.fetched", "mirror.placed"}
    later = {"salvage.taken", "workspace.rescued", "workspace.put_back"}
    assert set(POINTS) - hit <= (later if before is nothing else first | later)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Something of the user's that a runner must not touch."""
    directory = tmp_path / "canary"
    directory.mkdir()
    (directory / "song").write_text("sing")
    (directory / "objects").mkdir()
    return directory


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["tree", "git", "kept.git", "aside"])
async def test_a_directory_replaced_by_a_link_is_not_followed(scene: Scene, canary: Path, place: str) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, 1)
    await save(scene.git, workspace)
    if (workspace.root / place).exists():
        (workspace.root / place).rename(scene.place / "elsewhere")
    (workspace.root / place).symlink_to(canary)

    await close(scene.git, scene.home, workspace, pushed=None)
    left = await scene.swept()

    assert left == []
    assert names_in(canary) == ["objects", "song"]
    assert names_in(canary / "objects") == []


@pytest.mark.anyio
async def test_a_workspace_replaced_by_a_link_is_not_followed(scene: Scene, canary: Path) -> None:
    workspace = await scene.workspace()
    release_workspace(workspace)
    workspace.root.rename(scene.place / "elsewhere")
    workspace.root.symlink_to(canary)

    assert await scene.swept() == []
    assert names_in(canary) == ["objects", "song"]
    assert (await scene.workspace()).root == workspace.root


@pytest.mark.anyio
async def test_what_was_saved_survives_a_tree_that_is_gone(scene: Scene) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, 1)
    await save(scene.git, workspace)
    shutil.rmtree(workspace.tree)

    assert await close(scene.git, scene.home, workspace, pushed=None)

    assert missing(scene, await scene.restored()) == [ascii(b"nested-1/file")]


@pytest.mark.anyio
@pytest.mark.parametrize("lost", ["tree/.git", "git/worktrees", "saved.index", "git/HEAD", "git/config"])
async def test_work_survives_the_loss_of(scene: Scene, lost: str) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, 1)
    remove((workspace.root / lost).parent, (workspace.root / lost).name)

    assert await close(scene.git, scene.home, workspace, pushed=None)

    gone = set(missing(scene, await scene.restored()))
    assert gone <= ({"commit 1"} if lost == "git/worktrees" else set())
    assert await scene.swept() == []


@pytest.mark.anyio
async def test_another_runner_leaves_a_workspace_in_use_alone(scene: Scene) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, 1)

    left = await scene.swept()
    second = await scene.workspace()

    assert left == [LINEAGE]
    assert second.root.name == f"{LINEAGE}-2"
    assert missing(scene, workspace.tree) == []


@pytest.mark.anyio
async def test_a_workspace_waits_for_the_next_attempt_of_a_live_lineage(scene: Scene) -> None:
    await lost_attempt(scene, 1)

    left = await scene.swept(lambda lineage: lineage == LINEAGE)

    assert left == [LINEAGE]
    assert missing(scene, scene.home.workspaces / LINEAGE / "tree") == []


@pytest.mark.anyio
async def test_locks_that_a_killed_git_left_in_the_mirror_do_not_stop_the_next_fetch(scene: Scene) -> None:
    release_workspace(await scene.workspace())
    [mirror] = scene.home.mirrors.glob("*.git")
    for name in ("packed-refs.lock", "HEAD.lock", "refs/heads/main.lock", "refs/delegate/head.lock"):
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror / name).touch()
    newest = scene.push("new.txt", "new\n")

    following = await scene.workspace()

    assert scene.run("rev-parse", "HEAD", cwd=following.tree) == newest


@pytest.mark.anyio
async def test_an_unfinished_creation_from_before_a_power_failure_is_not_believed(scene: Scene) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, 1)
    journal = workspace.root / "workspace.json"
    journal.write_text(json.dumps({**json.loads(journal.read_text()), "state": "making", "boot": "another"}))
    release_workspace(workspace)

    assert await scene.swept() == []

    assert missing(scene, await scene.restored()) == []
