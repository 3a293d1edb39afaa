from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.runner.workspaces.conftest import BRANCH, LINEAGE, Scene
from tests.runner.workspaces.killed import agent_at_work, attempt, lost_attempt, missing

from delegate.model import EffectKind, EffectState
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.kept import list_kept
from delegate.runner.workspaces.repositories import SetupProblem
from delegate.runner.workspaces.worktrees import release_workspace
from delegate.wire.shared_models import EffectView

pytestmark = pytest.mark.anyio


def picture(directory: Path) -> dict[str, object]:
    """Every file below, with what an eye or a program could tell from another; reading may leave its mark."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, status.st_ino, content)
    return found


async def test_a_fresh_workspace_is_on_its_own_branch_at_the_newest_commit_of_the_base(scene: Scene) -> None:
    await scene.workspace()
    newest = scene.push("new.txt", "new\n")

    workspace = await scene.workspace(lineage="task-0000000002")

    assert scene.run("rev-parse", "HEAD", cwd=workspace.tree) == newest
    assert scene.run("symbolic-ref", "--short", "HEAD", cwd=workspace.tree) == BRANCH
    assert scene.run("status", "--porcelain", cwd=workspace.tree) == ""
    assert (workspace.tree / "new.txt").read_text() == "new\n"


async def test_the_agent_finds_the_remote_as_in_a_clone(scene: Scene) -> None:
    workspace = await scene.workspace()

    assert scene.run("remote", "get-url", "origin", cwd=workspace.tree) == str(scene.remote)
    assert (
        scene.run("rev-parse", "origin/main", "origin/HEAD", cwd=workspace.tree).split() == [workspace.base.commit] * 2
    )
    scene.run("fetch", "-q", cwd=workspace.tree)


async def test_the_users_checkout_is_the_same_to_the_last_byte(scene: Scene) -> None:
    (scene.checkout / "src" / "app.py").write_text("not committed\n")
    scene.run("add", "src/app.py")
    (scene.checkout / "src" / "app.py").write_text("not even staged\n")
    before = picture(scene.checkout)

    await attempt(scene, 1)
    await lost_attempt(scene, 2)
    await scene.swept()

    assert picture(scene.checkout) == before


async def test_what_an_agent_sets_stays_in_its_workspace(scene: Scene) -> None:
    workspace = await scene.workspace()
    scene.run("config", "core.hooksPath", "/tmp/evil", cwd=workspace.tree)
    [mirror] = scene.home.mirrors.glob("*.git")

    assert "evil" not in (mirror / "config").read_text()
    assert "evil" not in (workspace.kept_repository / "config").read_text()
    assert "evil" not in (scene.checkout / ".git" / "config").read_text()


async def test_a_lost_attempts_work_is_in_the_next_ones_tree_at_the_same_path(scene: Scene) -> None:
    await lost_attempt(scene, 1)
    scene.push("moved.txt", "the base moves on\n")

    workspace = await scene.workspace(task_id="task-0000000009")

    assert workspace.tree == scene.home.workspaces / LINEAGE / "tree"
    assert missing(scene, workspace.tree) == []
    assert workspace.base.commit == scene.run("rev-parse", "HEAD~1")
    assert scene.run("log", "-1", "--format=%s", BRANCH, cwd=workspace.tree) == "by agent 1"


async def test_kept_work_is_taken_out_of_the_salvage_by_the_next_attempt(scene: Scene) -> None:
    await attempt(scene, 1)

    workspace = await scene.workspace(task_id="task-0000000009")

    assert missing(scene, workspace.tree) == []
    assert list_kept(scene.home) == []
    assert await close(scene.git, scene.home, workspace, pushed=None)
    [kept] = list_kept(scene.home)
    assert kept.task_ids == (LINEAGE, "task-0000000009")


async def test_the_agents_stash_and_other_branches_come_back(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "README.md").write_text("stashed\n")
    scene.run("stash", "-q", cwd=workspace.tree)
    scene.run("checkout", "-qb", "wip", cwd=workspace.tree)
    scene.run("commit", "-q", "--allow-empty", "-m", "on the side", cwd=workspace.tree)
    scene.run("checkout", "-q", BRANCH, cwd=workspace.tree)
    release_workspace(workspace)

    again = await scene.workspace()

    assert "stashed" in scene.run("show", "stash:README.md", cwd=again.tree)
    assert scene.run("stash", "list", cwd=again.tree).count("WIP on") == 1
    assert scene.run("log", "-1", "--format=%s", "wip", cwd=again.tree) == "on the side"


async def test_work_that_was_pushed_continues_from_there(scene: Scene) -> None:
    first = await scene.workspace()
    scene.run("commit", "-q", "--allow-empty", "-m", "pushed", cwd=first.tree)
    pushed = scene.run("rev-parse", "HEAD", cwd=first.tree)
    scene.run("push", "-q", "origin", f"HEAD:{BRANCH}", cwd=first.tree)
    assert not await close(scene.git, scene.home, first, pushed=pushed)
    scene.push("moved.txt", "the base moves on\n")
    done = EffectView(
        task_id=LINEAGE, kind=EffectKind.PUSH, fence=1, state=EffectState.DONE, target=BRANCH, external_id=pushed
    )

    following = await scene.workspace(effects=[done])

    assert scene.run("rev-parse", "HEAD", cwd=following.tree) == pushed
    assert following.base == first.base


async def test_a_foreign_branch_of_the_same_name_is_not_taken_for_ours(scene: Scene) -> None:
    scene.push("foreign.txt", "foreign\n", branch=BRANCH)

    workspace = await scene.workspace()

    assert scene.run("rev-parse", "HEAD", cwd=workspace.tree) == scene.run("rev-parse", "HEAD~1")


async def test_work_whose_base_is_gone_is_kept_and_the_task_starts_again(scene: Scene) -> None:
    await attempt(scene, 1)
    shutil.rmtree(scene.home.mirrors)
    scene.run("commit", "-q", "--amend", "-m", "rewritten")
    scene.run("push", "-qf", "origin", "main")
    scene.run("reflog", "expire", "--expire=now", "--all", cwd=scene.remote)
    scene.run("gc", "-q", "--prune=now", cwd=scene.remote)

    workspace = await scene.workspace()

    assert scene.run("rev-parse", "HEAD", cwd=workspace.tree) == scene.run("rev-parse", "HEAD")
    [kept] = list_kept(scene.home)
    assert missing(scene, await scene.restored(kept.lineage)) == []


async def test_an_object_that_the_mirror_lost_is_fetched_again(scene: Scene) -> None:
    release_workspace(await scene.workspace())
    [mirror] = scene.home.mirrors.glob("*.git")
    blob = scene.run("rev-parse", "main:README.md", cwd=mirror)
    (mirror / "objects" / blob[:2] / blob[2:]).unlink()

    workspace = await scene.workspace(lineage="task-0000000002")

    assert (workspace.tree / "README.md").read_text() == "read me\n"


async def test_a_second_attempt_beside_a_living_one_knows_the_first_path(scene: Scene) -> None:
    first = await scene.workspace()
    second = await scene.workspace()

    assert f"worktree {first.tree}" in scene.run("worktree", "list", "--porcelain", cwd=second.tree)
    assert agent_at_work(scene, second.tree, 1) is None


async def test_a_lineage_that_is_not_a_name_is_refused(scene: Scene) -> None:
    with pytest.raises(SetupProblem, match="lineage"):
        await scene.workspace(lineage="../escape")
