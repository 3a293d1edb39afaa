from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.git import run_git, try_git
from tests.runner.publishing.conftest import PLAIN, plain_git

from delegate.runner.attempt import directory_state as module
from delegate.runner.attempt.directory_state import INDEX_MAX, DirectoryState, read_checkout_marks, read_directory_state
from delegate.runner.git.program import GitSetup, read_git

pytestmark = pytest.mark.anyio

IGNORED = "*.log\n"


class Repository:
    """A user's repository in which two files are tracked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main", ".")
        for name in ("kept.txt", "src/code.py"):
            self.write(name, "first\n")
        self.write(".gitignore", IGNORED)
        self.git("add", ".")
        self.git("commit", "-qm", "first")

    def git(self, *arguments: str) -> str:
        return plain_git(*arguments, cwd=self.path)

    def write(self, name: str, text: str) -> None:
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def bytes(self) -> dict[str, tuple[int, int, str]]:
        """All that is in it, with the times at which it was written."""
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file() and not path.is_symlink())
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_mode, sha256(path.read_bytes()).hexdigest())
            for path in found
        }


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is state must not hang on how busy the machine is."""
    monkeypatch.setattr(module, "STATE_TIMEOUT", 5.0)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def state_of(directory: Path) -> DirectoryState:
    with TemporaryDirectory() as scratch:
        state = await read_directory_state(GitSetup(PLAIN, Path(scratch) / "git"), directory, Path(scratch))
        assert names_in(Path(scratch)) <= {"git"}
    return state


async def test_branch_commit_and_changed_files_are_reported_and_nothing_is_written(repository: Repository) -> None:
    repository.write("kept.txt", "second\n")
    repository.write("staged.txt", "new\n")
    repository.git("add", "staged.txt")
    repository.write("new/one.txt", "new\n")
    repository.write("new/two.txt", "new\n")
    repository.write("noise.log", "ignored\n")
    (repository.path / "src" / "code.py").unlink()
    before = repository.bytes()

    state = await state_of(repository.path)

    dirty = ("kept.txt", "new/", "src/code.py", "staged.txt")
    assert state == DirectoryState(branch="main", commit=repository.head, dirty=dirty)
    assert repository.bytes() == before


async def test_a_clean_repository_has_no_dirty_files_also_seen_from_below(repository: Repository) -> None:
    repository.git("switch", "-qc", "topic/one")
    repository.git("pack-refs", "--all")
    os.utime(repository.path / "kept.txt")  # as a build touches a file without changing it

    state = await state_of(repository.path / "src")

    assert state == DirectoryState(branch="topic/one", commit=repository.head, dirty=())


async def test_what_is_staged_and_taken_back_in_the_file_is_still_reported(repository: Repository) -> None:
    repository.write("kept.txt", "second\n")
    repository.git("add", "kept.txt")
    repository.write("kept.txt", "first\n")

    assert (await state_of(repository.path)).dirty == ("kept.txt",)


async def test_a_directory_without_a_repository_has_nothing_to_tell(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()

    assert await state_of(plain) == DirectoryState()
    assert await state_of(tmp_path / "gone") == DirectoryState()


async def test_a_repository_without_a_commit_or_an_index_is_reported_as_it_is(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    plain_git("init", "-q", "-b", "main", ".", cwd=empty)
    (empty / "draft.txt").write_text("x")

    assert await state_of(empty) == DirectoryState(branch="main", dirty=("draft.txt",))

    plain_git("add", ".", cwd=empty)

    assert await state_of(empty) == DirectoryState(branch="main", dirty=("draft.txt",))


async def test_a_linked_worktree_and_a_detached_head_are_reported(repository: Repository, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", "-b", "side", str(linked))
    (linked / "kept.txt").write_text("changed\n")

    state = await state_of(linked)

    assert state == DirectoryState(branch="side", commit=repository.head, dirty=("kept.txt",))
    plain_git("switch", "-q", "--detach", cwd=linked)
    assert await state_of(linked) == DirectoryState(commit=repository.head, dirty=("kept.txt",))


async def test_names_that_no_person_would_choose_are_reported(repository: Repository) -> None:
    repository.write("two\nlines", "x")
    (repository.path / os.fsdecode(b"half\xff")).write_text("x")
    repository.git("branch", "-m", "wild;$(id)")

    state = await state_of(repository.path)

    assert state.dirty == ("half�", "two\nlines")
    assert (state.branch, state.commit) == (None, repository.head)


async def test_nothing_that_a_repository_names_is_run(repository: Repository, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    payload = f"touch {canary}; false"
    nested = Repository(repository.path / "nested")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{nested.head},nested")
    for poisoned in (repository, nested):
        for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "diff.evil.command", "diff.external"):
            poisoned.git("config", key, payload)
        poisoned.write(".git/info/attributes", "* filter=evil diff=evil\n")
    repository.write(".gitattributes", "* filter=evil diff=evil\n")
    repository.write("kept.txt", "again\n")
    canary.unlink(missing_ok=True)  # what prepared the repository had to run it

    state = await state_of(repository.path)

    assert state.dirty == (".gitattributes", "kept.txt", "nested")
    assert not canary.exists()
    try_git("status", cwd=repository.path, env=PLAIN)
    assert canary.exists()  # an unwary git would have


async def test_what_would_take_too_long_is_not_known(repository: Repository) -> None:
    blob = repository.git("rev-parse", "HEAD:kept.txt")
    many = "".join(f"100644 {blob}\td{n % 100}/{n:020}\n" for n in range(100_000))
    run_git("update-index", "--index-info", cwd=repository.path, env=PLAIN, input=many.encode())

    assert await state_of(repository.path) == DirectoryState(branch="main", commit=repository.head)


async def test_a_pipe_in_git_s_way_ends_with_the_patience(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_TIMEOUT", 0.3)
    (repository.path / ".gitignore").unlink()
    os.mkfifo(repository.path / ".gitignore")

    assert await state_of(repository.path) == DirectoryState(branch="main", commit=repository.head)


@pytest.mark.parametrize("damage", ["index", "HEAD", "objects", "elsewhere"])
async def test_a_damaged_repository_is_reported_as_far_as_it_can_be(repository: Repository, damage: str) -> None:
    head, git_dir = repository.head, repository.path / ".git"
    match damage:
        case "index":
            (git_dir / "index").write_bytes(b"DIRC" + b"\xff" * 100)
        case "HEAD":
            (git_dir / "HEAD").write_text("ref: ../../etc/passwd\n")
        case "objects":
            (git_dir / "objects").rename(git_dir / "gone")
        case _:
            git_dir.rename(repository.path / "hidden")
            git_dir.write_text("gitdir: /dev/zero\n")

    state = await state_of(repository.path)

    is_readable = damage in {"index", "objects"}
    assert state == (DirectoryState(branch="main", commit=head) if is_readable else DirectoryState())


@pytest.mark.parametrize(
    ("name", "text"),
    [(".git", "gitdir: a\0b\n"), (".git/HEAD", "ref: refs/heads/ma\0in\n"), (".git/commondir", "a\0b\n")],
)
async def test_a_name_that_no_file_can_have_leads_nowhere(repository: Repository, name: str, text: str) -> None:
    if name == ".git":
        (repository.path / ".git").rename(repository.path / "hidden")
    repository.write(name, text)

    state = await state_of(repository.path)

    assert (state.commit, state.dirty) == (None, None)


async def test_a_commit_in_a_repository_whose_objects_lie_nowhere_is_still_reported(repository: Repository) -> None:
    head = repository.head
    repository.write(".git/HEAD", f"{head}\n")
    repository.write(".git/commondir", "a\0b\n")

    assert await state_of(repository.path) == DirectoryState(commit=head)


async def test_a_directory_that_leads_to_itself_has_nothing_to_tell(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    assert await state_of(tmp_path / "loop") == DirectoryState()


async def test_of_a_checkout_with_many_files_only_the_settings_are_compared(
    repository: Repository, tmp_path: Path
) -> None:
    blob = repository.git("rev-parse", ":kept.txt")
    count = INDEX_MAX // 100
    many = "".join(f"100644 {blob}\t{'directory/' * 4}{number:050}\n" for number in range(count))
    run_git("update-index", "--index-info", cwd=repository.path, env=PLAIN, input=many.encode())
    git = await read_git(PLAIN, tmp_path / "git")
    before = await read_checkout_marks(git, repository.path)
    repository.write("new.txt", "new\n")
    repository.git("config", "alias.st", "status")

    after = await read_checkout_marks(git, repository.path)

    assert before is not None
    assert after is not None
    assert after.files is None
    assert after.changed_since(before) == [".git/config"]


async def test_delegates_own_home_in_a_checkout_is_not_compared(repository: Repository) -> None:
    git = await read_git(PLAIN, repository.path / "home" / "git")
    repository.write("home/state", "one\n")
    before = await read_checkout_marks(git, repository.path)
    repository.write("home/other", "two\n")

    after = await read_checkout_marks(git, repository.path)

    assert before is not None
    assert after == before
