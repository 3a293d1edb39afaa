from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import anyio
import pytest
from tests.runner.publishing.conftest import PLAIN, Site, publication

from delegate.runner.git import fifo_guard
from delegate.runner.git.program import GitFailed, read_git
from delegate.runner.workspaces.classify import SkippedPath, SkipReason
from delegate.runner.workspaces.snapshot import take_snapshot

pytestmark = pytest.mark.anyio


async def test_an_untouched_tree_is_the_tree_of_the_base(site: Site) -> None:
    snapshot = await site.take()

    assert snapshot.tree == site.kept("rev-parse", f"{site.base}^{{tree}}")
    assert (snapshot.head, snapshot.descends, snapshot.dirty, snapshot.skipped) == (site.base, True, (), ())


async def test_every_kind_of_change_is_in_the_tree(site: Site) -> None:
    site.write("src/app.py", "print('changed')\n")
    site.write("new/deep/file.txt", "new\n")
    (site.tree / "src" / "old.py").unlink()
    (site.tree / "README.md").chmod(0o755)
    (site.tree / "link").unlink()
    (site.tree / "link").symlink_to("src/app.py")

    snapshot = await site.take()

    files = site.files(snapshot.tree)
    assert snapshot.dirty == ("README.md", "link", "new/deep/file.txt", "src/app.py", "src/old.py")
    assert files["README.md"] == "100755"
    assert files["new/deep/file.txt"] == "100644"
    assert "src/old.py" not in files
    assert site.kept("cat-file", "blob", f"{snapshot.tree}:link") == "src/app.py"
    assert site.kept("cat-file", "blob", f"{snapshot.tree}:src/app.py") == "print('changed')"


async def test_a_change_of_the_same_size_in_the_second_of_the_checkout_is_seen(site: Site) -> None:
    with (site.tree / "src" / "app.py").open("r+") as file:
        file.write("print('APP')\n")
    next_second = int(site.workspace.saved_index.stat().st_mtime) + 1
    await anyio.sleep(max(0, next_second - time.time()))

    assert (await site.take()).dirty == ("src/app.py",)


async def test_a_change_with_its_old_time_put_back_is_seen(site: Site) -> None:
    before = (site.tree / "src" / "app.py").stat()
    with (site.tree / "src" / "app.py").open("r+") as file:
        file.write("print('APP')\n")
    os.utime(site.tree / "src" / "app.py", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert (await site.take()).dirty == ("src/app.py",)


async def test_a_snapshot_changes_nothing_in_the_tree(site: Site) -> None:
    site.write("src/app.py", "print('changed')\n")
    before = [(path, path.lstat().st_ino, path.lstat().st_mtime_ns) for path in sorted(site.workspace.tree.rglob("*"))]

    await site.take()

    after = [(path, path.lstat().st_ino, path.lstat().st_mtime_ns) for path in sorted(site.workspace.tree.rglob("*"))]
    assert after == before
    assert not list(site.workspace.root.glob("publish-*"))


async def test_ignored_and_carried_files_stay_out(site: Site) -> None:
    site.write("ignored/cache", "x")
    site.write("debug.log", "x")
    site.write(".env", "TOKEN=1\n")
    site.workspace.carried_excludes.write_text("/.env\n")

    assert (await site.take()).dirty == ()


async def test_what_the_user_never_commits_stays_out(site: Site, tmp_path: Path) -> None:
    (tmp_path / "ignore").write_text("*.swp")
    (tmp_path / "user" / ".gitconfig").write_text(f"[core]\n\texcludesFile = {tmp_path}/ignore\n")
    git = await read_git({**PLAIN, "GIT_CONFIG_GLOBAL": str(tmp_path / "user" / ".gitconfig")}, tmp_path / "runner")
    site.write("file.swp", "x")

    assert (await take_snapshot(git, site.workspace)).dirty == ()


@pytest.mark.parametrize(
    "name",
    [
        b"-rf",
        b"--",
        b":(glob)**",
        b"line\nbreak",
        b'tab\tand "quotes"',
        b"not utf-8 \xff\xfe",
        b"n" * 255,
        "späße \u202e".encode(),
        b" leading space",
    ],
)
async def test_odd_names_are_only_names(site: Site, name: bytes) -> None:
    site.write(os.fsdecode(name), "odd\n")

    snapshot = await site.take()

    assert os.fsdecode(name) in site.files(snapshot.tree)
    assert len(site.files(snapshot.tree)) == len(site.files(site.base)) + 1


@pytest.mark.parametrize(
    "name", [".GIT/config", "git~1", "sub/.Git/hooks/pre-commit", ".git /config", ".g\u200cit/config"]
)
async def test_names_that_pass_for_gits_own_are_left_out_and_reported(site: Site, name: str) -> None:
    site.write(name, "x")

    snapshot = await site.take()

    assert snapshot.skipped == (SkippedPath(path=name, kind=SkipReason.RESERVED_NAME),)
    assert site.files(snapshot.tree) == site.files(site.base)


async def test_names_that_differ_only_in_case_are_two_files(site: Site) -> None:
    site.write("readme.md", "x")

    assert {"README.md", "readme.md"} <= site.files((await site.take()).tree).keys()


async def test_a_nested_repository_is_skipped_and_reported(site: Site) -> None:
    site.write("vendor/lib/code.py", "x")
    site.agent("init", "-q", "vendor/lib")
    site.agent("-C", "vendor/lib", "add", ".")
    site.agent("-C", "vendor/lib", "commit", "-qm", "inner")

    snapshot = await site.take()

    assert tuple(odd.path for odd in snapshot.skipped) == ("vendor/lib/",)
    assert site.files(snapshot.tree) == site.files(site.base)


async def test_a_folder_replaced_by_a_link_is_that_link(site: Site, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (site.tree / "src").rename(elsewhere)
    (site.tree / "src").symlink_to(elsewhere)

    files = site.files((await site.take()).tree)

    assert files["src"] == "120000"
    assert not [path for path in files if path.startswith("src/")]


async def test_a_file_replaced_by_a_folder_is_that_folder(site: Site) -> None:
    (site.tree / "run").unlink()
    site.write("run/fast", "x")

    files = site.files((await site.take()).tree)

    assert "run" not in files
    assert files["run/fast"] == "100644"


async def test_a_file_replaced_by_an_ignored_folder_is_gone(site: Site) -> None:
    (site.tree / "run").unlink()
    site.write("run/only.log", "x")

    assert "run" not in site.files((await site.take()).tree)


async def test_pipes_and_sockets_are_not_opened(site: Site) -> None:
    (site.tree / "run").unlink()
    os.mkfifo(site.tree / "run")
    os.mkfifo(site.tree / "new-pipe")
    listening = socket.socket(socket.AF_UNIX)
    here = os.open(site.tree, os.O_RDONLY)
    listening.bind(f"/proc/self/fd/{here}/socket")

    snapshot = await site.take()

    listening.close()
    os.close(here)
    assert snapshot.skipped == (SkippedPath(path="run", kind=SkipReason.SPECIAL),)
    assert site.files(snapshot.tree).keys() == site.files(site.base).keys() - {"run"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
async def test_a_device_is_not_opened(site: Site) -> None:
    (site.tree / "run").unlink()
    os.mknod(site.tree / "run", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(site.tree / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))

    snapshot = await site.take()

    assert snapshot.skipped == (SkippedPath(path="run", kind=SkipReason.SPECIAL),)
    assert site.files(snapshot.tree).keys() == site.files(site.base).keys() - {"run"}


async def test_a_huge_sparse_file_is_not_read(site: Site) -> None:
    with (site.tree / "huge").open("wb") as file:
        file.truncate(2**40)

    assert (await site.take()).skipped == (SkippedPath(path="huge", kind=SkipReason.OVERSIZED),)


async def test_a_hard_link_to_a_file_elsewhere_is_reported(site: Site, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    os.link(tmp_path / "secret", site.tree / "stolen")
    site.write("twin", "x")
    os.link(site.tree / "twin", site.tree / "twin2")

    snapshot = await site.take()

    assert snapshot.skipped == (SkippedPath(path="stolen", kind=SkipReason.SHARED),)
    assert {"stolen", "twin", "twin2"} <= site.files(snapshot.tree).keys()


async def test_a_submodule_stays_as_the_base_has_it(site: Site) -> None:
    inner = "1" * 40
    head = _commit_gitlink(site, "lib", inner)
    site.write("lib/code.py", "x")
    site.agent("init", "-q", "lib")
    site.agent("-C", "lib", "add", ".")
    site.agent("-C", "lib", "commit", "-qm", "moved")

    snapshot = await site.take()

    assert snapshot.head == head
    assert tuple(odd.path for odd in snapshot.skipped) == ("lib",)
    assert site.files(snapshot.tree)["lib"] == "160000"
    assert inner in site.kept("ls-tree", snapshot.tree, "lib")


def _commit_gitlink(site: Site, path: str, commit: str) -> str:
    site.agent("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    (site.tree / path).mkdir()
    site.agent("commit", "-qm", "a submodule")
    return site.agent("rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["lfs", "git-crypt", "git-crypt-team"])
async def test_what_is_stored_through_a_filter_stays_as_it_was_committed(site: Site, name: str) -> None:
    site.agent_commits("assets/.gitattributes", f"*.bin filter={name} -text\n")
    head = site.agent_commits("assets/old.bin", "a pointer, or encrypted\n")
    site.write("assets/old.bin", "the file itself, or in clear\n")
    site.write("assets/new.bin", "the file itself, or in clear\n")
    site.write("assets/new.txt", "text\n")

    snapshot = await site.take()

    assert tuple(odd.path for odd in snapshot.skipped) == ("assets/new.bin", "assets/old.bin")
    assert snapshot.dirty == ("assets/new.txt",)
    assert site.kept("diff", "--name-only", head, snapshot.tree) == "assets/new.txt"


async def test_another_filter_is_not_run_and_the_reviewer_is_told(site: Site) -> None:
    site.agent_commits(".gitattributes", "*.ipynb filter=nbstripout\n*.txt -filter\n")
    site.write("note.ipynb", "with outputs\n")
    site.write("note.txt", "text\n")

    draft = await publication(site).draft()

    assert draft is not None
    assert site.kept("show", f"{draft.commit}:note.ipynb") == "with outputs"
    assert draft.warnings == ("published as in the worktree, because git's clean filters are not run: note.ipynb",)


async def test_what_was_stored_through_a_filter_can_be_deleted(site: Site) -> None:
    site.agent_commits(".gitattributes", "*.bin filter=lfs\n")
    site.agent_commits("old.bin", "pointer\n")
    (site.tree / "old.bin").unlink()

    snapshot = await site.take()

    assert snapshot.dirty == ("old.bin",)
    assert "old.bin" not in site.files(snapshot.tree)


async def test_a_worktree_swapped_for_a_link_is_not_looked_into(site: Site, tmp_path: Path) -> None:
    site.tree.rename(tmp_path / "moved")
    site.tree.symlink_to(tmp_path / "user")

    with pytest.raises(GitFailed, match="replaced by a file or a link"):
        await site.take()


async def test_without_the_saved_index_nothing_is_lost(site: Site) -> None:
    site.write("src/app.py", "print('changed')\n")
    site.workspace.saved_index.unlink()

    snapshot = await site.take()

    assert snapshot.dirty == ("src/app.py",)


@pytest.mark.parametrize("name", [".gitignore", "docs/.gitattributes"])
async def test_a_pipe_that_git_would_wait_for_is_named(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_guard, "FIFO_CHECK_DELAY", 0.2)
    (site.tree / name).unlink(missing_ok=True)
    os.mkfifo(site.tree / name)
    site.write("docs/guide.md", "changed\n")

    with pytest.raises(GitFailed, match=f"{name} is a named pipe"):
        await site.take()


async def test_a_slow_snapshot_of_a_tree_without_such_a_pipe_continues(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fifo_guard, "FIFO_CHECK_DELAY", 0.0)
    site.write("docs/guide.md", "changed\n")

    assert (await site.take()).dirty == ("docs/guide.md",)
