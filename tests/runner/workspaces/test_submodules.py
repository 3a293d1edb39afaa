"""A set-up command that brings submodules works in the first attempt, and in one that continues from kept work."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runner.workspaces.conftest import Scene

from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.kept import list_kept
from delegate.runner.workspaces.worktrees import Workspace, release_workspace

pytestmark = pytest.mark.anyio

LOCAL = ("-c", "protocol.file.allow=always")


@pytest.fixture
def library(scene: Scene) -> Path:
    """A repository that has another one as its submodule, and is one of the user's repository."""
    inner = made(scene, "inner")
    library = made(scene, "library")
    scene.run(*LOCAL, "submodule", "--quiet", "add", str(inner), "inner", cwd=library)
    scene.run("commit", "-qm", "with inner", cwd=library)
    scene.run(*LOCAL, "submodule", "--quiet", "add", str(library), "lib")
    scene.push("README.md", "with a library\n")
    return library


def made(scene: Scene, name: str) -> Path:
    directory = scene.place / name
    scene.run("init", "-q", str(directory))
    (directory / "code.c").write_text(f"{name}\n")
    (directory / ".gitignore").write_text("*.o\n")
    scene.run("add", "-A", cwd=directory)
    scene.run("commit", "-qm", "begin", cwd=directory)
    return directory


def set_up(scene: Scene, workspace: Workspace) -> Path:
    scene.run(*LOCAL, "submodule", "--quiet", "update", "--init", "--recursive", cwd=workspace.tree)
    return workspace.tree / "lib"


@pytest.mark.usefixtures("library")
async def test_a_submodule_alone_does_not_count_as_work(scene: Scene) -> None:
    workspace = await scene.workspace()
    (set_up(scene, workspace) / "built.o").write_text("ignored")

    assert not await close(scene.git, scene.home, workspace, pushed=None)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("is_lost", [True, False])
async def test_the_set_up_of_a_retry_brings_it_again(scene: Scene, is_lost: bool) -> None:
    workspace = await scene.workspace()
    set_up(scene, workspace)
    (workspace.tree / "new.txt").write_text("new")
    if is_lost:
        release_workspace(workspace)
    else:
        await close(scene.git, scene.home, workspace, pushed=None)

    again = await scene.workspace()
    lib = set_up(scene, again)

    assert (lib / "inner" / "code.c").read_text() == "inner\n"
    assert scene.run("status", "--porcelain", cwd=again.tree) == "?? new.txt"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("place", ["lib", "lib/inner"])
async def test_changes_in_it_come_back_and_the_set_up_works(scene: Scene, place: str) -> None:
    workspace = await scene.workspace()
    set_up(scene, workspace)
    (workspace.tree / place / "code.c").write_text("changed\n")
    (workspace.tree / place / "new.c").write_text("new\n")
    assert await close(scene.git, scene.home, workspace, pushed=None)

    again = await scene.workspace()
    set_up(scene, again)

    assert (again.tree / place / "code.c").read_text() == "changed\n"
    assert scene.run("status", "--porcelain", cwd=again.tree / place) == "M code.c\n?? new.c"
    assert (await close_and_restore(scene, again) / place / "new.c").read_text() == "new\n"


async def close_and_restore(scene: Scene, workspace: Workspace) -> Path:
    await close(scene.git, scene.home, workspace, pushed=None)
    [kept] = list_kept(scene.home)
    return await scene.restored(kept.lineage)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("is_recorded", [True, False])
async def test_commits_in_it_come_back_with_it(scene: Scene, is_recorded: bool) -> None:
    workspace = await scene.workspace()
    lib = set_up(scene, workspace)
    scene.run("commit", "-q", "--allow-empty", "-m", "by the agent", cwd=lib)
    if is_recorded:
        scene.run("commit", "-qam", "newer library", cwd=workspace.tree)
    release_workspace(workspace)

    again = await scene.workspace()
    assert scene.run("log", "-1", "--format=%s", cwd=again.tree / "lib") == "by the agent"
    lib = set_up(scene, again)

    assert scene.run("log", "-1", "--format=%s", cwd=lib) == ("by the agent" if is_recorded else "with inner")


@pytest.mark.usefixtures("library")
async def test_a_stash_in_it_is_work(scene: Scene) -> None:
    workspace = await scene.workspace()
    lib = set_up(scene, workspace)
    (lib / "code.c").write_text("stashed\n")
    scene.run("stash", "-q", cwd=lib)
    release_workspace(workspace)

    again = await scene.workspace()

    assert "stashed" in scene.run("show", "stash:code.c", cwd=again.tree / "lib")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("goal", ["../../git", "../../../../../checkout/.git", "nowhere", "../../git/worktrees/tree"])
async def test_no_other_repository_is_taken_for_that_of_a_submodule(scene: Scene, goal: str) -> None:
    workspace = await scene.workspace()
    lib = set_up(scene, workspace)
    scene.run("commit", "-q", "--allow-empty", "-m", "by the agent", cwd=workspace.tree)
    (lib / ".git").write_text(f"gitdir: {goal}\n")

    back = await close_and_restore(scene, workspace)

    assert scene.run("log", "-1", "--format=%s", cwd=back) == "by the agent"
    assert (back / "lib" / "code.c").read_text() == "library\n"
    assert scene.run("status", "--porcelain") == ""
