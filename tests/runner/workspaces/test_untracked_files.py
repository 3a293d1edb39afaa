from __future__ import annotations

import pytest
from tests.runner.workspaces.conftest import Scene

from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.snapshot import take_snapshot
from delegate.runner.workspaces.untracked_files import carry_in

pytestmark = pytest.mark.anyio


async def test_files_that_git_does_not_have_are_carried_in(scene: Scene) -> None:
    (scene.checkout / ".env").write_text("KEY=1\n")
    (scene.checkout / "src" / ".env").write_text("KEY=2\n")
    (scene.checkout / "src" / ".env").chmod(0o640)
    (scene.checkout / "other").write_text("not named")
    workspace = await scene.workspace()

    carried = await carry_in(scene.git, workspace, [".env"])

    assert sorted(carried) == [".env", "src/.env"]
    assert (workspace.tree / ".env").read_text() == "KEY=1\n"
    assert (workspace.tree / "src" / ".env").stat().st_mode & 0o777 == 0o640
    assert not (workspace.tree / "other").exists()


async def test_a_worktreeinclude_file_is_honoured(scene: Scene) -> None:
    (scene.checkout / ".worktreeinclude").write_text("# what agents need\nbuild/*\n!build/huge\n")
    (scene.checkout / "build").mkdir()
    for name in ("tool", "huge"):
        (scene.checkout / "build" / name).write_text(name)
    workspace = await scene.workspace()

    assert await carry_in(scene.git, workspace, []) == ["build/tool"]


async def test_tracked_files_are_not_carried_in(scene: Scene) -> None:
    (scene.checkout / "README.md").write_text("the user's own version\n")
    workspace = await scene.workspace()

    assert await carry_in(scene.git, workspace, ["*.md"]) == []
    assert (workspace.tree / "README.md").read_text() == "read me\n"


async def test_carried_files_are_neither_published_nor_work(scene: Scene) -> None:
    odd = ["secret", "a b", "#c", "!d", "e*", "f[g]", "h\\i", "trail "]
    for name in odd:
        (scene.checkout / name).write_text("secret")
    workspace = await scene.workspace()
    clean = (await take_snapshot(scene.git, workspace)).tree

    carried = await carry_in(scene.git, workspace, ["*"])

    assert sorted(carried) == sorted(odd)
    assert (await take_snapshot(scene.git, workspace)).tree == clean
    assert scene.run("status", "--porcelain", cwd=workspace.tree) == ""
    assert not await close(scene.git, scene.home, workspace, pushed=None)


async def test_links_out_of_the_checkout_are_not_carried_in(scene: Scene) -> None:
    (scene.place / "outside").mkdir()
    (scene.place / "outside" / "secret").write_text("secret")
    (scene.checkout / "away").symlink_to(scene.place / "outside")
    (scene.checkout / "up").symlink_to("../outside/secret")
    (scene.checkout / "own").symlink_to(scene.checkout / "README.md")
    (scene.checkout / "near").symlink_to("README.md")
    workspace = await scene.workspace()

    assert await carry_in(scene.git, workspace, ["*"]) == ["near"]


async def test_nothing_is_written_through_a_link_in_the_worktree(scene: Scene) -> None:
    (scene.place / "outside").mkdir()
    (scene.checkout / "config").symlink_to(scene.place / "outside")
    scene.push("note", "a link is tracked\n")
    (scene.checkout / "config").unlink()
    (scene.checkout / "config").mkdir()
    (scene.checkout / "config" / "local").write_text("x")
    workspace = await scene.workspace()

    assert await carry_in(scene.git, workspace, ["config/local"]) == []
    assert list((scene.place / "outside").iterdir()) == []


async def test_a_task_without_a_checkout_carries_nothing(scene: Scene) -> None:
    workspace = await scene.workspace(repository=str(scene.remote), working_directory=None)

    assert await carry_in(scene.git, workspace, ["*"]) == []
