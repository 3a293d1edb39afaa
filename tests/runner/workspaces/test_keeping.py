from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from tests.runner.workspaces.conftest import BRANCH, LIMITS, LINEAGE, Scene, never
from tests.runner.workspaces.killed import attempt, missing

from delegate.config.home_files import acquire_lock
from delegate.errors import InvalidField, NoSuchWorkspace
from delegate.runner import removal
from delegate.runner.git import fifo_guard
from delegate.runner.git.program import GitFailed
from delegate.runner.removal import remove
from delegate.runner.workspaces import sweep as sweeping
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.kept import drop, list_kept, restore
from delegate.runner.workspaces.mirrors import mirror_of
from delegate.runner.workspaces.saving import last_saved, save
from delegate.runner.workspaces.sweep import SalvageLimits, sweep
from delegate.runner.workspaces.worktrees import Workspace, release_workspace

pytestmark = pytest.mark.anyio


def contents(directory: Path) -> dict[bytes, tuple[str, bytes]]:
    """Kind, executability and bytes of everything but git's own."""
    found = {}
    top = os.fsencode(directory)
    for parent, directories, names in os.walk(top):
        directories[:] = [name for name in directories if name != b".git"]
        for name in names:
            path = parent + b"/" + name
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[path[len(top) :]] = ("link", os.fsencode(Path(os.fsdecode(path)).readlink()))
            elif stat.S_ISREG(mode) and name != b".git":
                found[path[len(top) :]] = (f"{mode & 0o100:o}", Path(os.fsdecode(path)).read_bytes())
    return found


async def kept_and_restored(scene: Scene, workspace: Workspace, left: Sequence[Path] = ()) -> Path:
    assert await close(scene.git, scene.home, workspace, pushed=None)
    assert list(scene.home.workspaces.iterdir()) == list(left)
    return await scene.restored()


async def test_everything_comes_back_byte_for_byte(scene: Scene) -> None:
    scene.push(".gitattributes", "* text=auto\n*.crlf text eol=crlf\n*.id ident\n*.wide working-tree-encoding=UTF-16\n")
    workspace = await scene.workspace()
    tree = workspace.tree
    (tree / "README.md").unlink()
    (tree / "src" / "app.py").chmod(0o755)
    for name in (
        b"a\nb",
        b"\xff\xfe",
        b"-rf",
        b"--",
        b":(glob)**",
        b" lead",
        b"trail ",
        b'q"uote',
        b"n" * 255,
        b"git~1",
    ):
        (tree / os.fsdecode(name)).write_bytes(b"content of " + name)
    (tree / "mixed.txt").write_bytes(b"unix\nwindows\r\nbinary\0\xff")
    (tree / "forced.crlf").write_bytes(b"unix only\n")
    (tree / "some.id").write_bytes(b"$Id: mine $\n")
    (tree / "some.wide").write_bytes("wide\n".encode("utf-16"))
    (tree / "empty").touch()
    (tree / "up").symlink_to("../../..")
    (tree / "loop").symlink_to("loop")
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "file").write_text("deep")
    (tree / ".GIT").mkdir()
    (tree / ".GIT" / "config").write_text("tricky")
    expected = contents(tree)

    back = await kept_and_restored(scene, workspace)

    assert contents(back) == expected
    assert scene.run("log", "--format=%s", cwd=back) == "change .gitattributes"
    assert scene.run("remote", "get-url", "origin", cwd=back) == str(scene.remote)


async def test_links_and_directories_that_changed_places_come_back(scene: Scene) -> None:
    workspace = await scene.workspace()
    tree = workspace.tree
    (tree / "src" / "app.py").unlink()
    (tree / "src").rmdir()
    (tree / "src").symlink_to("/etc")
    (tree / "README.md").unlink()
    (tree / "README.md").mkdir()
    (tree / "README.md" / "inside").write_text("a file became a directory")
    expected = contents(tree)

    assert contents(await kept_and_restored(scene, workspace)) == expected


async def test_nested_repositories_come_back_without_their_settings(scene: Scene) -> None:
    workspace = await scene.workspace()
    nested = workspace.tree / "vendor" / "lib"
    scene.run("init", "-q", str(nested))
    scene.run("-C", str(nested), "commit", "-q", "--allow-empty", "-m", "nested")
    scene.run("-C", str(nested), "config", "core.fsmonitor", "/harmful")
    (nested / ".git" / "hooks").mkdir(exist_ok=True)
    (nested / ".git" / "hooks" / "post-checkout").write_text("harmful")
    (nested / "file").write_text("nested")
    (nested / ".env").write_text("ignored at the top, but not known here")
    os.mkfifo(nested / "pipe")

    back = await kept_and_restored(scene, workspace)

    restored = back / "vendor" / "lib"
    assert sorted(path.name for path in restored.iterdir()) == [".env", ".git", "file"]
    assert scene.run("-C", str(restored), "log", "--format=%s") == "nested"
    assert "harmful" not in (restored / ".git" / "config").read_text()
    assert not (restored / ".git" / "hooks").exists()


@pytest.mark.parametrize("place", ["root", "kept.git", "another task"])
async def test_a_forged_worktree_is_not_moved(scene: Scene, place: str) -> None:
    workspace = await scene.workspace()
    other = await scene.workspace(lineage="task-0000000002")
    forged = {"root": workspace.root, "kept.git": workspace.kept_repository, "another task": other.tree}[place]
    entry = workspace.git_dir / "worktrees" / "forged"
    shutil.copytree(workspace.git_dir / "worktrees" / "tree", entry)
    (entry / "gitdir").write_text(f"{forged / '.git'}\n")
    if forged != other.tree:
        (forged / ".git").write_text(f"gitdir: {entry}\n")
    (workspace.tree / "new.txt").write_text("new\n")

    back = await kept_and_restored(scene, workspace, left=[other.root])

    assert (back / "new.txt").read_text() == "new\n"
    assert (other.tree / "README.md").exists()


async def test_a_worktree_beside_that_cannot_be_read_comes_back(scene: Scene) -> None:
    workspace = await scene.workspace()
    scene.run("worktree", "add", "-q", "../fix", cwd=workspace.tree)
    (workspace.root / "fix" / "file").write_text("closed")
    (workspace.root / "fix" / "file").chmod(0)
    (workspace.root / "fix").chmod(0o500)

    back = await kept_and_restored(scene, workspace)

    assert (back / "fix-beside" / "file").read_text() == "closed"


async def test_a_nested_repository_is_not_taken_for_a_tree_beside_the_worktree(scene: Scene) -> None:
    workspace = await scene.workspace()
    for name in ("tree/fix-beside", "fix"):
        scene.run("init", "-q", str(workspace.root / name))
        (workspace.root / name / "file").write_text(name)
    await close(scene.git, scene.home, workspace, pushed=None)

    back = await scene.restored()
    again = await scene.workspace()

    assert (back / "fix-beside" / "file").read_text() == "tree/fix-beside"
    assert (back / "fix-beside2" / "file").read_text() == "fix"
    assert (again.tree / "fix-beside" / "file").read_text() == "tree/fix-beside"
    assert sorted(path.name for path in again.tree.glob("fix*")) == ["fix-beside"]


async def test_a_nested_repository_with_pipes_for_files_comes_back(scene: Scene) -> None:
    workspace = await scene.workspace()
    nested = workspace.tree / "lib"
    scene.run("init", "-q", str(nested))
    (nested / ".git" / "index").unlink(missing_ok=True)
    os.mkfifo(nested / ".git" / "index")
    (nested / "file").write_text("nested")

    back = await kept_and_restored(scene, workspace)

    assert (back / "lib" / "file").read_text() == "nested"


async def test_the_list_of_kept_work_is_bounded(scene: Scene) -> None:
    workspace = await scene.workspace()
    scene.run("init", "-q", str(workspace.tree / "first"))
    for number in range(110):
        shutil.copytree(workspace.tree / "first", workspace.tree / f"repository-{number}")

    await kept_and_restored(scene, workspace)

    [kept] = list_kept(scene.home)
    assert len(kept.elsewhere) == 101
    assert kept.elsewhere[-1] == "11 more"


async def test_what_cannot_be_read_comes_back(scene: Scene) -> None:
    workspace = await scene.workspace()
    secret = workspace.tree / "closed" / "file"
    secret.parent.mkdir()
    secret.write_text("closed")
    secret.chmod(0)
    secret.parent.chmod(0)

    back = await kept_and_restored(scene, workspace)

    assert (back / "closed" / "file").read_text() == "closed"


async def test_huge_files_are_kept_without_being_read(scene: Scene) -> None:
    workspace = await scene.workspace()
    huge = workspace.tree / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)

    assert await close(scene.git, scene.home, workspace, pushed=None)

    [kept] = list_kept(scene.home)
    assert kept.size < 1 << 30
    assert (await scene.workspace()).tree.joinpath("huge").stat().st_size == 1 << 40


async def test_pipes_and_sockets_alone_do_not_count_as_work(scene: Scene) -> None:
    workspace = await scene.workspace()
    os.mkfifo(workspace.tree / "pipe")
    os.mknod(workspace.tree / "socket", stat.S_IFSOCK | 0o600)

    assert not await close(scene.git, scene.home, workspace, pushed=None)


@pytest.mark.parametrize("name", [".gitignore", "src/.gitattributes", "nested/.gitignore"])
async def test_a_pipe_that_git_would_wait_for_is_put_away(scene: Scene, name: str) -> None:
    workspace = await scene.workspace()
    scene.run("init", "-q", str(workspace.tree / "nested"))
    (workspace.tree / name).unlink(missing_ok=True)
    os.mkfifo(workspace.tree / name)
    (workspace.tree / "src" / "app.py").write_text("work")

    with anyio.fail_after(5):
        back = await kept_and_restored(scene, workspace)

    assert (back / "src" / "app.py").read_text() == "work"


async def test_saving_beside_an_agent_gives_up_on_such_a_pipe(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_guard, "FIFO_CHECK_DELAY", 0.2)
    workspace = await scene.workspace()
    (workspace.tree / ".gitignore").unlink()
    os.mkfifo(workspace.tree / ".gitignore")

    with pytest.raises(GitFailed, match=r"\.gitignore is a named pipe"):
        await save(scene.git, workspace)
    release_workspace(workspace)

    assert await scene.swept() == []


def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this name cannot be removed, as if a container had made them as another user."""
    unlink = os.unlink

    def refused(path: str, *, dir_fd: int | None = None) -> None:
        if path == "stuck":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refused)


async def test_files_that_cannot_be_removed_do_not_hold_back_what_is_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "build" / "deep").mkdir(parents=True)
    (workspace.tree / "build" / "deep" / "stuck").write_text("a container's")
    (workspace.tree / "new.txt").write_text("new")
    with monkeypatch.context() as patched:
        stuck(patched)

        assert await close(scene.git, scene.home, workspace, pushed=None)
        [rest] = await scene.swept()
        assert (await scene.restored() / "new.txt").read_text() == "new"
        again = await scene.workspace()

    assert rest.startswith(f"{LINEAGE}.rest-")
    assert (again.tree / "new.txt").read_text() == "new"
    assert again.root == workspace.root
    assert await scene.swept() == [LINEAGE]


async def test_neither_do_they_stop_the_next_attempt_of_a_lost_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "build").mkdir()
    (workspace.tree / "build" / "stuck").write_text("a container's")
    (workspace.tree / "new.txt").write_text("new")
    release_workspace(workspace)
    stuck(monkeypatch)

    again = await scene.workspace()

    assert (again.tree / "new.txt").read_text() == "new"
    assert not (again.tree / "build").exists()


@pytest.mark.parametrize("name", ["shallow", "HEAD", "config", "refs/delegate", "objects/info/alternates"])
async def test_what_an_agent_put_into_our_repository_is_not_written_through(scene: Scene, name: str) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "new.txt").write_text("new")
    canary = scene.place / "canary"
    canary.mkdir()
    (canary / "song").write_text("sing")
    remove((workspace.kept_repository / name).parent, (workspace.kept_repository / name).name)
    (workspace.kept_repository / name).symlink_to(canary if name == "refs/delegate" else canary / "song")

    back = await kept_and_restored(scene, workspace)

    assert (back / "new.txt").read_text() == "new"
    assert [path.name for path in canary.iterdir()] == ["song"]
    assert (canary / "song").read_text() == "sing"


async def test_our_repository_has_nothing_that_leads_git_elsewhere(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "new.txt").write_text("new")
    for name in ("commondir", "gitdir", "config.worktree", "reftable"):
        (workspace.kept_repository / name).write_text("/nowhere\n")
    os.mkfifo(workspace.kept_repository / "shallow")
    (workspace.kept_repository / "info").mkdir()
    (workspace.kept_repository / "info" / "grafts").write_text("evil")

    with anyio.fail_after(5):
        await kept_and_restored(scene, workspace)

    kept = scene.home.salvage / LINEAGE / "kept.git"
    assert {path.name for path in kept.iterdir()} <= {"HEAD", "config", "objects", "refs", "packed-refs", "shallow"}


async def test_ignored_files_alone_do_not_count_as_work(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "build").mkdir()
    (workspace.tree / "build" / "out").write_text("built")

    assert not await close(scene.git, scene.home, workspace, pushed=None)
    assert list_kept(scene.home) == []


async def test_a_file_that_is_ignored_and_was_committed_comes_back(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.tree / ".env").write_text("committed")
    scene.run("add", "-f", ".env", cwd=workspace.tree)
    scene.run("commit", "-qm", "add .env", cwd=workspace.tree)

    back = await kept_and_restored(scene, workspace)

    assert (back / ".env").read_text() == "committed"
    assert scene.run("status", "--porcelain", cwd=back) == ""


async def pushed_work(scene: Scene) -> tuple[Workspace, str]:
    workspace = await scene.workspace()
    (workspace.tree / "new.txt").write_text("new\n")
    scene.run("add", "-A", cwd=workspace.tree)
    scene.run("commit", "-qm", "new", cwd=workspace.tree)
    scene.run("push", "-q", "origin", f"HEAD:{BRANCH}", cwd=workspace.tree)
    return workspace, scene.run("rev-parse", "HEAD", cwd=workspace.tree)


async def test_what_is_pushed_and_clean_is_removed(scene: Scene) -> None:
    workspace, commit = await pushed_work(scene)

    assert not await close(scene.git, scene.home, workspace, pushed=commit)

    assert list(scene.home.workspaces.iterdir()) == []
    assert list_kept(scene.home) == []


async def test_what_was_left_behind_a_push_is_kept(scene: Scene) -> None:
    workspace, commit = await pushed_work(scene)
    (workspace.tree / "later.txt").write_text("later")

    assert await close(scene.git, scene.home, workspace, pushed=commit)

    assert (await scene.restored() / "later.txt").read_text() == "later"


async def test_a_branch_beside_the_pushed_one_is_kept(scene: Scene) -> None:
    workspace, commit = await pushed_work(scene)
    scene.run(
        "branch", "wip", scene.run("commit-tree", "-m", "wip", "HEAD^{tree}", cwd=workspace.tree), cwd=workspace.tree
    )

    assert await close(scene.git, scene.home, workspace, pushed=commit)

    assert scene.run("log", "-1", "--format=%s", "wip", cwd=await scene.restored()) == "wip"


async def test_saving_again_saves_only_what_changed(scene: Scene) -> None:
    workspace = await scene.workspace()

    nothing = await save(scene.git, workspace)
    (workspace.tree / "new.txt").write_text("one")
    one = await save(scene.git, workspace)
    again = await save(scene.git, workspace)
    (workspace.tree / "new.txt").write_text("two")
    two = await save(scene.git, workspace)

    assert nothing is None
    assert again is None
    assert one is not None
    assert two is not None
    assert last_saved(workspace.kept_repository) == two.commit != one.commit


async def test_a_repository_of_the_agents_that_cannot_be_read_is_kept_as_it_is(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "new.txt").write_text("new")
    scene.run("add", "-A", cwd=workspace.tree)
    scene.run("commit", "-qm", "soon damaged", cwd=workspace.tree)
    for path in (workspace.git_dir / "objects").glob("??/*"):
        path.chmod(0o600)
        path.write_bytes(b"damaged")

    back = await kept_and_restored(scene, workspace)

    assert (back / "new.txt").read_text() == "new"
    assert (scene.home.salvage / LINEAGE / "unreadable.git" / "HEAD").exists()


async def test_what_is_kept_is_listed_and_dropped(scene: Scene) -> None:
    await attempt(scene, 1)

    [kept] = list_kept(scene.home)
    assert (kept.lineage, kept.repository, kept.branch, kept.files) == (LINEAGE, "remote", BRANCH, 5)
    drop(scene.home, LINEAGE)

    assert list_kept(scene.home) == []
    assert list(scene.home.salvage.iterdir()) == []


@pytest.mark.parametrize("name", ["task-unknown", "../workspaces", ""])
async def test_nothing_else_is_dropped(scene: Scene, name: str) -> None:
    await attempt(scene, 1)

    with pytest.raises(NoSuchWorkspace, match="no work is kept"):
        drop(scene.home, name)


async def test_a_directory_with_something_in_it_is_not_restored_into(scene: Scene) -> None:
    await attempt(scene, 1)

    with pytest.raises(InvalidField, match="is not empty"):
        await restore(scene.git, scene.home, LINEAGE, scene.checkout)
    assert (scene.checkout / "README.md").exists()


async def swept_later(scene: Scene, later: timedelta, limits: SalvageLimits = LIMITS) -> int:
    await sweep(scene.git, scene.home, never, limits=limits, now=datetime.now(UTC) + later)
    return len(list_kept(scene.home))


async def test_kept_work_is_dropped_when_it_is_too_old(scene: Scene) -> None:
    await attempt(scene, 1)

    assert await swept_later(scene, timedelta(days=13)) == 1
    assert await swept_later(scene, timedelta(days=15)) == 0


async def test_mirrors_that_nothing_borrows_from_have_the_limits_of_kept_work(scene: Scene) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    workspace = await scene.workspace()
    release_workspace(workspace)
    borrowed = mirror_of(scene.home, workspace.repository.key)
    uses = {"old": 15 * day, "big": 2 * day, "young": day / 2, "newest": timedelta()}
    for name, age in uses.items():
        shutil.copytree(borrowed, mirror_of(scene.home, name))
        os.utime(mirror_of(scene.home, name), ((now - age).timestamp(),) * 2)
    os.utime(borrowed, ((now - 30 * day).timestamp(),) * 2)
    left = []

    for limits in (LIMITS, replace(LIMITS, size=1)):
        await sweep(scene.git, scene.home, lambda _: True, limits=limits, now=now)
        left.append({path.stem for path in scene.home.mirrors.glob("*.git")} - {borrowed.stem})

    assert left == [{"big", "young", "newest"}, {"young", "newest"}]
    assert borrowed.exists()


async def test_a_mirror_that_is_fetched_during_a_sweep_stays(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = await scene.workspace()
    mirror = workspace.mirror
    assert not await close(scene.git, scene.home, workspace, pushed=None)
    shutil.copytree(mirror, mirror_of(scene.home, "newest"))
    long_ago = (datetime.now(UTC) - timedelta(days=100)).timestamp()
    os.utime(mirror, (long_ago, long_ago))

    def measure(path: Path) -> int:
        if path == mirror:
            anyio.from_thread.run(scene.workspace)
        return 1

    monkeypatch.setattr(sweeping, "directory_size", measure)
    await sweep(scene.git, scene.home, lambda _: True, limits=LIMITS, now=datetime.now(UTC))

    assert mirror.exists()


async def test_what_cannot_be_read_is_listed_without_its_size(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await attempt(scene, 1)
    whole = list_kept(scene.home)[0].size
    scandir = os.scandir

    def refused(path: str) -> object:
        if path.endswith("objects"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    [kept] = list_kept(scene.home)

    assert kept.lineage == LINEAGE
    assert 0 < kept.size < whole


async def test_kept_work_that_cannot_be_removed_does_not_stop_the_sweep(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lineage in ("task-1", "task-2"):
        workspace = await scene.workspace(lineage=lineage)
        (workspace.tree / "new.txt").write_text("new")
        await close(scene.git, scene.home, workspace, pushed=None)
    (scene.home.salvage / "task-1" / "stuck").touch()
    (scene.home.workspaces / "stuck").touch()
    with monkeypatch.context() as patched:
        stuck(patched)
        assert await swept_later(scene, timedelta(days=15)) == 0
        [file, rest] = await scene.swept()

    assert file == "stuck"
    assert rest.startswith("task-1.rest-")
    assert await scene.swept() == []


async def test_a_mirror_is_free_again_when_a_half_made_one_cannot_be_removed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = scene.home.mirrors / ".key.abcd"
    half.mkdir(parents=True)
    (half / "stuck").touch()
    with monkeypatch.context() as patched:
        stuck(patched)
        await scene.swept()

    lock = acquire_lock(scene.home.mirrors / "key.lock", 0)
    assert half.exists()
    assert lock is not None
    os.close(lock)
    await scene.swept()
    assert not half.exists()


async def test_the_oldest_work_goes_first_when_there_is_too_much_and_none_on_its_first_day(scene: Scene) -> None:
    for lineage in ("task-1", "task-2"):
        workspace = await scene.workspace(lineage=lineage)
        (workspace.tree / "noise").write_bytes(os.urandom(200_000))
        await close(scene.git, scene.home, workspace, pushed=None)
    limits = SalvageLimits(age=timedelta(days=14), size=400_000)

    assert await swept_later(scene, timedelta(hours=23), limits) == 2
    assert await swept_later(scene, timedelta(hours=25), limits) == 1
    assert [kept.lineage for kept in list_kept(scene.home)] == ["task-2"]


async def test_a_workspace_that_cannot_be_saved_stays(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.tree / "new.txt").write_text("new")
    workspace.mirror.rename(scene.place / "away")

    assert await close(scene.git, scene.home, workspace, pushed=None)
    assert (workspace.tree / "new.txt").read_text() == "new"

    (scene.place / "away").rename(workspace.mirror)
    assert await scene.swept() == []
    assert (await scene.restored() / "new.txt").read_text() == "new"


async def test_a_workspace_whose_journal_is_gone_is_left_to_a_person(scene: Scene) -> None:
    workspace = await scene.workspace()
    (workspace.root / "workspace.json").unlink()
    release_workspace(workspace)

    assert await scene.swept() == [LINEAGE]
    assert missing(scene, workspace.tree) == []


async def test_a_tree_that_takes_long_to_remove_holds_nothing_up_and_goes_with_the_next_sweep(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await scene.workspace()
    for number in range(50):
        (workspace.tree / f"build/{number}").mkdir(parents=True)
        (workspace.tree / f"build/{number}/made").touch()
    monkeypatch.setattr(removal, "CLEAR_TIMEOUT", -1.0)

    assert not await close(scene.git, scene.home, workspace, pushed=None)

    left = [path.name for path in scene.home.workspaces.iterdir()]
    assert left
    assert all(name.startswith(f"{LINEAGE}.rest-") for name in left)
    assert await scene.swept() == []
